"""Whether KV really crosses between two running engines: their own counters, before and after."""

from __future__ import annotations

import re

COUNTERS = {
    "vllm": re.compile(
        r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\}\s+(\S+)', re.MULTILINE
    ),
    "sglang": re.compile(r"^sglang:kv_transfer_total_mb_sum(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE),
}
"""vLLM counts on decode the prompt tokens taken from a transfer, SGLang on prefill the megabytes sent."""
PROMPT = " ".join(f"Item {number} is {number * 7 % 97}." for number in range(50))


def counted(engine: str, exposition: str) -> float:
    """The engine's count in the text of its /metrics; 0 where it has none yet."""
    return sum(float(value) for value in COUNTERS[engine].findall(exposition))
