"""LLMServingSim's four vLLM runs, replayed request by request: the same prompts, prefixes, answers and arrival times."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.design import Design, Member, Pool
from diptych.metrics.measurements import Measurements
from diptych.perf.calibrate import Calibration
from diptych.perf.kernel_table import Grid, KernelTable, Line
from diptych.perf.model import PerfModel
from diptych.perf.roofline import Roofline
from diptych.simulator.demand import Requests
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate

DATA = Path(__file__).parents[1] / "data"
CATALOG = Catalog.load()
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
BLOCK = 16
HALF = 150  # requests fitted on; the other 150 are checked


@dataclass(frozen=True)
class Run:
    """One run: where it stands in the data, the worker that served it, and its KV blocks where they bind."""

    name: str
    gpu: str
    model: str
    accelerator: str
    parallelism: Parallelism
    sequences: int
    blocks: int | None = None
    trace: str = "Llama-3.1-8B"

    @property
    def worker(self) -> Worker:
        model = CATALOG.model(self.model.split("/")[1].removesuffix("-Instruct-2507"))
        return Worker(
            model, CATALOG.accelerator(self.accelerator), BF16, self.parallelism, "vllm", self.sequences, 2048
        )


LLAMA, PRO = "meta-llama/Llama-3.1-8B", "RTX-PRO-6000-SE"
RTX4090 = Run("Llama-3.1-8B, RTX 4090", "RTX4090", LLAMA, "RTX-4090", Parallelism(), 256, 41_408 // BLOCK)
PRO8B = Run("Llama-3.1-8B, RTX PRO 6000", "RTXPRO6000", LLAMA, PRO, Parallelism(), 128)
DENSE = Run(
    "Qwen3-32B, 2 RTX PRO 6000 (TP2)", "RTXPRO6000", "Qwen/Qwen3-32B", PRO, Parallelism(tp=2), 128, trace="Qwen3-32B"
)
SPARSE = Run(
    "Qwen3-30B-A3B, 2 RTX PRO 6000 (DP2·EP2)", "RTXPRO6000", "Qwen/Qwen3-30B-A3B-Instruct-2507", PRO,
    Parallelism(dp=2, ep=2), 256, trace="Qwen3-32B",
)  # fmt: skip


@cache
def measured(run: Run) -> Mapping[str, Any]:
    """Columns of a run in order of arrival, each (300,): tokens, seconds."""
    with gzip.open(DATA / "sim" / "llmservingsim_vllm_requests.csv.gz", "rt", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if (row["gpu"], row["model"]) == (run.gpu, run.model)]
    names = ("input_tokens", "output_tokens", "arrival_s", "first_token_s", "last_token_s")
    found = {name: np.array([float(row[name]) for row in rows]) for name in names}
    order = np.argsort(found["arrival_s"], kind="stable")
    return {name: column[order] for name, column in found.items()} | latencies(
        found["first_token_s"][order] - found["arrival_s"][order],
        found["last_token_s"][order] - found["arrival_s"][order],
        found["output_tokens"][order],
    )


def latencies(ttft: Any, e2e: Any, osl: Any) -> dict[str, Any]:
    return {"ttft": ttft, "tpot": (e2e - ttft) / (osl - 1), "e2e": e2e}


@cache
def requests(run: Run) -> Requests:
    """What the engine was asked, with hashes of the prompts' full blocks: vLLM caches prefixes unless told otherwise."""
    seen = measured(run)
    with gzip.open(DATA / "traces" / f"sharegpt300_{run.trace}.jsonl.gz", "rt", encoding="utf-8") as lines:
        hashes = [json.loads(line)["hash_ids"] for line in lines]
    isl, osl = seen["input_tokens"].astype(np.int64), seen["output_tokens"].astype(np.int64)
    blocks = tuple(tuple(ids[: n // BLOCK]) for ids, n in zip(hashes, isl.tolist(), strict=True))
    return Requests(seen["arrival_s"], isl, osl, None, blocks, BLOCK, run.name)


def replay(run: Run, perf: PerfModel, **policy: Any) -> Measurements:
    """The run in virtual time."""
    design = Design((Pool(Role.COLOCATED, (Member(run.worker, 1, 1.0),)),))
    return simulate(design, requests(run), perf, policy=Policy(kv_blocks=run.blocks, **policy))


def simulated(run: Run, perf: PerfModel, **policy: Any) -> dict[str, Any]:
    """TTFT, TPOT, E2E (s) of each request."""
    found = replay(run, perf, **policy).requests
    return latencies(found.ttft_prefill, found.e2e, found.osl)


def kernels() -> KernelTable:
    """The RTX 4090's profile of Llama-3.1-8B: kernels alone, nothing fitted, no host time."""
    document = json.loads((DATA / "sim" / "rtx4090_llama-3.1-8b_kernels.json").read_text(encoding="utf-8"))
    layers, micro = document["layers"], 1e-6
    dense, heads, attention = document["dense"], document["per_sequence"], document["attention"]
    once = ("embedding", "final_layernorm")
    rows = {name: np.array(column) for name, column in dense.items() if name != "tokens"}
    per_layer = sum(column * (2 if name == "layernorm" else 1) for name, column in rows.items() if name not in once)
    total = per_layer * layers + sum(rows[name] for name in once)
    prompts, beside = attention["prefill"], attention["beside_2048_prompt_tokens"]
    tokens, past, alone = (np.array(prompts[name], dtype=float) for name in ("tokens", "past", "time_us"))
    return KernelTable(
        Line(np.array(dense["tokens"], dtype=float), total * micro),
        Line(
            np.array(heads["sequences"], dtype=float), (np.array(heads["lm_head"]) + np.array(heads["sampler"])) * micro
        ),
        Line(tokens * (past + tokens / 2), alone * layers * micro),
        _grid(attention["decode"], 0.0, layers * micro),
        _grid(beside, float(alone[1]), layers * micro),
    )


def _grid(table: Mapping[str, Any], less: float, scale: float) -> Grid:
    sequences, context = (np.array(table[name], dtype=float) for name in ("sequences", "context"))
    return Grid(sequences, context, (np.array(table["time_us"]) - less) * scale)


def calibrated(factors: Mapping[str, float]) -> Roofline:
    """The shipped curves with these factors instead of the shipped calibration."""
    return Roofline(calibration=Calibration({name: {"*": value} for name, value in factors.items()}))


def fitted(run: Run) -> Roofline:
    """The model fitted on the run's first half by `benchmarks/fit_vllm_halves.py`."""
    document = json.loads((DATA / "sim" / "vllm_fits.json").read_text(encoding="utf-8"))
    return calibrated(document["runs"][run.name])
