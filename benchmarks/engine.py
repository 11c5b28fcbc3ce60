"""The torch engine beside `transformers` generate, in one run on the demo model; the last line is JSON.

What it must cost: at batch 1 and on an equal-length batch of 8 no more than `transformers`; on requests of unlike lengths a third
of it; and a pair of roles in two precisions less than either precision alone.

    python benchmarks/engine.py                  # several minutes; fetches the demo model once
    python benchmarks/engine.py --only ragged    # one of batch, ragged, roles
    python benchmarks/engine.py --write          # and benchmarks/engine.md; with --only that part of it alone

One thread, CPU-seconds of this process, so that what else the machine does enters only through caches and memory. The best of
the turns counts, turns of all columns in rotation. Greedy, end tokens ignored.

`transformers` gets requests of unlike lengths as a user's script hands them to it: in order of arrival, eight at a time, padded
on the left to the longest prompt, until the longest answer is there, then the next eight. Only tokens that were asked for count.
The engine serves the same requests in the same order with at most eight at a time.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from diptych.runtime.engine import Chunk, Step
from diptych.runtime.engines.torch.engine import Setup, TorchEngine
from diptych.runtime.model_files import demo_model
from diptych.runtime.sampling import GREEDY

PROMPT, ANSWER, BATCH = 128, 16, 8
BLOCK = 16
PARTS = ("batch", "ragged", "roles")
Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Request:
    prompt: Prompt
    answer: int


@dataclass(frozen=True)
class Spent:
    """CPU-seconds in prefill and decode, and the useful tokens that they gave."""

    prefill: float
    decode: float
    prompt_tokens: int
    answer_tokens: int

    @property
    def total(self) -> float:
        return self.prefill + self.decode


def prompts(numbers: np.random.Generator, lengths: Sequence[int]) -> list[Prompt]:
    return [tuple(numbers.integers(100, 49_000, length).tolist()) for length in lengths]


def equal(count: int) -> list[Request]:
    return [Request(prompt, ANSWER) for prompt in prompts(np.random.default_rng(count), [PROMPT] * count)]


def ragged(count: int = 32) -> list[Request]:
    """Prompts of 16 to 256 tokens; answers of 4 to 64, most of them short. So many that the last ones' end does not decide."""
    numbers = np.random.default_rng(5)
    lengths = numbers.integers(16, 257, count)
    answers = np.clip(numbers.lognormal(2.4, 0.9, count), 4, 64).astype(int)
    return [Request(prompt, int(answer)) for prompt, answer in zip(prompts(numbers, lengths), answers, strict=True)]


# --- transformers -----------------------------------------------------------------------------------------------------


@torch.inference_mode()
def generate(model: PreTrainedModel, requests: Sequence[Request], batch: int) -> Spent:
    """Batches in order of arrival, padded on the left, each until its longest answer is there."""
    prefill = decode = 0.0
    for begin in range(0, len(requests), batch):
        some = requests[begin : begin + batch]
        width = max(len(each.prompt) for each in some)
        tokens = torch.tensor([[0] * (width - len(each.prompt)) + list(each.prompt) for each in some])
        mask = torch.tensor([[0] * (width - len(each.prompt)) + [1] * len(each.prompt) for each in some])
        given = {"attention_mask": mask, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        longest = max(each.answer for each in some)
        start = time.process_time()
        model.generate(tokens, max_new_tokens=1, min_new_tokens=1, **given)
        first = time.process_time()
        model.generate(tokens, max_new_tokens=longest, min_new_tokens=longest, **given)
        prefill += first - start
        decode += time.process_time() - first - (first - start)
    return spent(prefill, decode, requests)


def spent(prefill: float, decode: float, requests: Sequence[Request]) -> Spent:
    return Spent(prefill, decode, sum(len(each.prompt) for each in requests), sum(each.answer - 1 for each in requests))


# --- the engine -------------------------------------------------------------------------------------------------------


class Continuous:
    """A first-come queue before a batch of at most `most`: whoever fits joins, whoever is done leaves."""

    def __init__(self, prefill: TorchEngine, decode: TorchEngine, most: int) -> None:
        self.prefill, self.decode, self.most = prefill, decode, most
        self.spent_prefill = self.spent_decode = 0.0

    def serve(self, requests: Sequence[Request]) -> Spent:
        waiting = list(enumerate(requests))
        free = list(range(self.decode.memory.blocks))[::-1]
        blocks: dict[int, tuple[int, ...]] = {}
        answers: dict[int, list[int]] = {}
        while waiting or answers:
            joining = [waiting.pop(0) for _ in range(min(self.most - len(answers), len(waiting)))]
            for number, each in joining:
                blocks[number] = tuple(free.pop() for _ in range(-(-(len(each.prompt) + each.answer) // BLOCK)))
            if joining:
                self._join(joining, blocks, answers)
            for number in [number for number, answer in answers.items() if len(answer) >= requests[number].answer]:
                self.decode.release(number)
                free.extend(blocks.pop(number))
                del answers[number]
            if answers:
                self._step(requests, blocks, answers)
        return spent(self.spent_prefill, self.spent_decode, requests)

    def _join(self, joining: list[tuple[int, Request]], blocks: dict[int, Any], answers: dict[int, list[int]]) -> None:
        start = time.process_time()
        chunks = [Chunk(number, each.prompt, 0, blocks[number], GREEDY, each.prompt) for number, each in joining]
        for (number, each), found in zip(joining, self.prefill.prefill(chunks), strict=True):
            answers[number] = [found.sampled.token]
            if self.prefill is not self.decode:
                self._hand_over(number, blocks[number], len(each.prompt))
        self.spent_prefill += time.process_time() - start

    def _hand_over(self, number: int, blocks: tuple[int, ...], tokens: int) -> None:
        for source, target in zip(self.prefill.memory.layers, self.decode.memory.layers, strict=True):
            for block in blocks[: -(-tokens // BLOCK)]:
                target.block(block)[:] = source.block(block)
        self.decode.insert(number, blocks, tokens)

    def _step(self, requests: Sequence[Request], blocks: dict[int, Any], answers: dict[int, list[int]]) -> None:
        start = time.process_time()
        steps = [
            Step(number, answer[-1], len(requests[number].prompt) + len(answer) - 1, blocks[number], GREEDY)
            for number, answer in answers.items()
        ]
        for step, found in zip(steps, self.decode.decode_step(steps), strict=True):
            answers[step.sequence].append(found.token)
        self.spent_decode += time.process_time() - start


# --- the run ----------------------------------------------------------------------------------------------------------


def best(title: str, columns: dict[str, Callable[[], Spent]], turns: int) -> dict[str, Spent]:
    """The cheapest turn of every column, in rotation."""
    print(title, flush=True)
    found: dict[str, Spent] = {}
    for _ in range(turns):
        for name, turn in columns.items():
            now = turn()
            found[name] = min(found.get(name, now), now, key=lambda each: each.total)
            print(f"  {name}: {now.total:.2f} CPU-s", flush=True)
    return found


def measured(place: Path, turns: int, parts: Sequence[str]) -> dict[str, dict[str, Spent]]:
    engines = {
        weights: TorchEngine.load(place, Setup(weights=weights, kv="fp32", blocks=256))
        for weights in ("fp32", "bf16", "int8")
    }
    theirs = {
        name: AutoModelForCausalLM.from_pretrained(place, dtype=dtype).eval()
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
    }

    def ours(prefill: str, decode: str, requests: list[Request], most: int) -> Callable[[], Spent]:
        return lambda: Continuous(engines[prefill], engines[decode], most).serve(requests)

    def hf(name: str, requests: list[Request], batch: int) -> Callable[[], Spent]:
        return lambda: generate(theirs[name], requests, batch)

    found = {}
    sizes = ((1, "batch 1"), (BATCH, f"batch {BATCH}, equal")) if "batch" in parts else ()
    for batch, title in sizes:
        requests = equal(batch)
        columns = {
            "transformers fp32": hf("fp32", requests, batch),
            "engine fp32": ours("fp32", "fp32", requests, batch),
        }
        if batch == 1:
            columns |= {"transformers bf16": hf("bf16", requests, 1), "engine bf16": ours("bf16", "bf16", requests, 1)}
        found[title] = best(title, {**columns, "engine int8": ours("int8", "int8", requests, batch)}, turns)
    if "ragged" in parts:
        some = ragged()
        title = f"{len(some)} requests of unlike lengths, batches of up to {BATCH}"
        columns = {"transformers fp32": hf("fp32", some, BATCH), "engine fp32": ours("fp32", "fp32", some, BATCH)}
        found[title] = best(title, {**columns, "engine int8": ours("int8", "int8", some, BATCH)}, turns)
    if "roles" not in parts:
        return found
    pairs = [("fp32", "fp32"), ("bf16", "bf16"), ("int8", "int8"), ("bf16", "int8"), ("fp32", "int8")]
    title, requests = "roles, prefill → decode, batch 2", equal(2)
    columns = {f"{one} → {two}": ours(one, two, requests, 2) for one, two in pairs}
    found[title] = best(title, columns, turns)
    return found


def table(title: str, rows: dict[str, Spent]) -> str:
    reference = next(iter(rows.values()))
    lines = [f"### {title}", "", "| | prefill tokens/CPU-s | decode tokens/CPU-s | CPU-s in all | against the first |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, each in rows.items():
        lines.append(
            f"| {name} | {each.prompt_tokens / each.prefill:.0f} | {each.answer_tokens / each.decode:.1f} "
            f"| {each.total:.2f} | {reference.total / each.total:.2f}× |"
        )
    return "\n".join(lines)


def page(found: dict[str, dict[str, Spent]], turns: int) -> str:
    """What was measured, as benchmarks/engine.md."""
    bf16 = "with" if torch.cpu._is_avx512_bf16_supported() else "without"
    head = f"""# The torch engine beside transformers

SmolLM2-135M-Instruct, one thread, {platform.machine()} {bf16} bf16 instructions, torch {torch.__version__}. Prompts of {PROMPT}
tokens and answers of {ANSWER} where lengths are equal. CPU-seconds of the process, the best of {turns} turn(s) in rotation; other
work on the machine enters through caches and memory. Written by `benchmarks/engine.py --write`.

KV is fp32 everywhere. `transformers` pads a batch on the left and runs it to its longest answer; the engine lets requests join
and leave a batch. Useful tokens count, not padding. int8 is weights per row and activations per token, the output head too.

On a CPU without bf16 instructions bf16 products go through float32 (weights widened per call), so bf16 is no faster than fp32
there, and int8 is the fastest precision of both halves: a pair of bf16 prefill and int8 decode can pay only where bf16 is native.
Here no pair beats int8 in both roles; fp32 before int8 comes next, ahead of fp32, bf16 and bf16 before int8, and is nearer to the
baseline's answers than int8 twice (docs/quality.md).
"""
    return "\n\n".join([head.rstrip(), *(table(title, rows) for title, rows in found.items())]) + "\n"


def merged(old: str, new: str) -> str:
    """The old page with the new one's tables in place of its own of the same beginning, and the new one's head."""
    head, *tables = new.split("\n### ")
    named = {_kind(table): table for table in tables}
    parts = [named.pop(_kind(table), table).rstrip("\n") for table in old.split("\n### ")[1:]]
    return "\n\n### ".join([head.rstrip("\n"), *parts, *(table.rstrip("\n") for table in named.values())]) + "\n"


def _kind(table: str) -> str:
    """A table by its title, whatever numbers are in it."""
    return "ragged" if "unlike" in table.splitlines()[0] else table.splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/engine.md")
    parser.add_argument("--model", type=Path, help="a checkpoint instead of the demo model")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", choices=PARTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    found = measured(given.model or demo_model(say=print), given.turns, [given.only] if given.only else PARTS)
    text = page(found, given.turns)
    print(text)
    if given.write:
        place = Path(__file__).with_suffix(".md")
        place.write_text(merged(place.read_text(), text) if given.only else text)
    print(json.dumps({title: {name: each.total for name, each in rows.items()} for title, rows in found.items()}))


if __name__ == "__main__":
    main()
