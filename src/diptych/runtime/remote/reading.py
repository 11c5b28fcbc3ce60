"""What vLLM's and SGLang's workers say of themselves in /metrics, as a heartbeat and as handoffs.

Sources: vLLM 0.33 v1/metrics/loggers.py, kv_connector/v1/{nixl,mooncake}/stats.py; SGLang 0.5.23
observability/metrics_collector.py.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace

from diptych.runtime.messages import Load

_SAMPLE = re.compile(r"^((?:vllm|sglang):\w+)(?:\{([^}]*)\})?\s+(\S+)$", re.MULTILINE)
_BLOCKS = re.compile(r'\bnum_gpu_blocks="(\d{1,9})"')
_OURS = ("received", "received_bytes", "seconds", "conversions", "refused", "failed", "expired")
"""Counters of our connector, in the order of `Moved`."""
MB = 1e6
MOST = 1 << 53


@dataclass(frozen=True, slots=True)
class Moved:
    """Handoffs since a worker's start, as its own counters have them: number, bytes, seconds, and rewritten ones.

    Of those that came to nothing: `refused` before anything was sent, `failed` on the way, `expired` unasked for.
    """

    count: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    converted: float = 0.0
    refused: float = 0.0
    failed: float = 0.0
    expired: float = 0.0

    def since(self, before: Moved) -> Moved:
        """What came on top; everything where the worker was started anew."""
        if self.count < before.count or self.bytes < before.bytes:
            return self
        return Moved(*(max(now - then, 0.0) for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one worker."""

    load: Load
    moved: Moved


def read(engine: str, exposition: str) -> Reading:
    """The numbers in an exposition; what is not in it is zero."""
    sums: dict[str, float] = defaultdict(float)
    blocks = 0
    for name, labels, value in _SAMPLE.findall(exposition):
        if name == "vllm:cache_config_info" and (found := _BLOCKS.search(labels)):
            blocks += int(found[1])
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number) and not name.endswith("_created"):
            sums[name] += number
    return _OF[engine](sums, blocks)


def _vllm(sums: Mapping[str, float], blocks: int) -> Reading:
    def of(name: str) -> int:
        return _count(sums.get(f"vllm:{name}", 0.0))

    handing = of("num_requests_kv_fetch_by_stage")
    load = Load(
        queued=max(of("num_requests_waiting") - handing, 0), running=of("num_requests_running"), handing=handing,
        blocks=blocks, blocks_free=_count(blocks * (1 - min(sums.get("vllm:kv_cache_usage_perc", 0.0), 1.0))),
        steps=of("iteration_tokens_total_count"), prompt_tokens=of("prompt_tokens_total"),
        output_tokens=of("generation_tokens_total"), prefix_asked=of("prefix_cache_queries_total"),
        prefix_found=of("prefix_cache_hits_total"), leases=of("diptych_open_leases"),
        transfers=of("diptych_open_transfers"),
    )  # fmt: skip
    return Reading(load, _moved_by_vllm(sums))


def _moved_by_vllm(sums: Mapping[str, float]) -> Moved:
    """NIXL counts where it is pulled from or pushed to, Mooncake where it is sent, our connector where it arrives."""
    ours = (sums.get(f"vllm:diptych_{name}_total", 0.0) for name in _OURS)
    found = Moved(*ours)
    for name in ("nixl", "mooncake"):
        size, seconds = f"vllm:{name}_bytes_transferred", f"vllm:{name}_xfer_time_seconds_sum"
        found = replace(
            found,
            count=found.count + sums.get(f"{size}_count", 0.0),
            bytes=found.bytes + sums.get(f"{size}_sum", 0.0),
            seconds=found.seconds + sums.get(seconds, 0.0),
        )
    return found


def _sglang(sums: Mapping[str, float], blocks: int) -> Reading:
    def of(name: str) -> int:
        return _count(sums.get(f"sglang:{name}", 0.0))

    stages = "prefill_bootstrap", "prefill_inflight", "decode_prealloc", "decode_transfer"
    tokens = of("max_total_num_tokens")
    load = Load(
        queued=of("num_queue_reqs"), running=of("num_running_reqs"),
        handing=sum(of(f"num_{stage}_queue_reqs") for stage in stages), blocks=tokens,
        blocks_free=max(tokens - of("num_used_tokens"), 0), steps=of("generation_tokens_total"),
        prompt_tokens=of("prompt_tokens_total"), output_tokens=of("generation_tokens_total"),
        prefix_asked=of("prompt_tokens_total"), prefix_found=of("cached_tokens_total"),
    )  # fmt: skip
    moved = Moved(
        sums.get("sglang:kv_transfer_total_mb_count", 0.0),
        sums.get("sglang:kv_transfer_total_mb_sum", 0.0) * MB,
        sums.get("sglang:kv_transfer_latency_ms_sum", 0.0) / 1e3,
    )
    return Reading(load, moved)


_OF: Mapping[str, Callable[[Mapping[str, float], int], Reading]] = {"vllm": _vllm, "sglang": _sglang}


def _count(value: float) -> int:
    return min(max(int(value), 0), MOST)
