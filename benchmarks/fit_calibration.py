"""Fit the named parameters of `diptych.perf.calibrate` to published end-to-end rows.

    python benchmarks/fit_calibration.py tests/data/benchmarks/benchmarks_unified.csv.gz [--rounds 3] [--folds 5]

The predictor fitted is the shipped one: rows become workers and load tests as `diptych validate` makes them. Each round plays all
tests with the present parameters, freezes what the play adds to the step times (queueing, bunching, draining), and solves a
robust least-squares problem over step times alone (soft L1 of log ratios; priors pull engines and architectures together).
No parameter belongs to a model or a row. Held-out errors come from folds of whole (model, accelerator) groups; the values
kept are fitted to all rows. Load tests with drafted tokens, disaggregated, MLPerf and GPUStack rows are not fitted to.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from diptych.catalog.catalog import Catalog
from diptych.design.axes import Worker
from diptych.perf.calibrate import ATTENTION_KINDS, COLLECTIVE_KINDS, NEUTRAL, Calibration, family
from diptych.perf.memory import max_sequences
from diptych.perf.ops import OpKind, Step
from diptych.perf.roofline import Roofline, spread
from diptych.planner.benchmark_cases import Case, Unanswerable, case_of
from diptych.planner.benchmark_rows import Kind, read_table
from diptych.planner.validate import predict

ENGINES = ("vllm", "trtllm", "sglang", "trtllm-cpp")
FAMILIES = ("blackwell", "hopper", "ampere", "ada", "other")
FITTED_KINDS = (Kind.CLOSED, Kind.OFFLINE, Kind.STATIC, Kind.FIRST_TOKEN)
CHUNK = 8192.0
ENGINE_SEQUENCES = 2048.0


@dataclass(frozen=True)
class Prior:
    """Log-normal beliefs: `centre` and `spread` of the value over all, how far engines and engine/family pairs stray from it."""

    centre: float
    spread: float
    stray: float


PRIORS = {
    "launch": Prior(0.8, 0.4, 0.25),
    "memory": Prior(1.0, 0.05, 0.04),
    "compute_linear": Prior(1.0, 0.05, 0.06),
    "compute_experts": Prior(1.0, 0.15, 0.15),
    "compute_attention": Prior(1.0, 0.2, 0.15),
    "collective": Prior(1.0, 0.35, 0.25),
    "expert_imbalance": Prior(1.1, 0.2, 0.1),
    "host_step": Prior(0.5e-3, 1.0, 0.4),
    "host_sequence": Prior(8e-6, 0.7, 0.4),
    "host_prefill": Prior(1e-3, 1.0, 0.5),
    "host_prefill_layer": Prior(30e-6, 1.0, 0.5),
    "delivery": Prior(15e-3, 1.0, 0.6),
    "delivery_steps": Prior(3.0, 1.0, 0.8),
}
NAMES = tuple(PRIORS)
SCOPES = len(ENGINES) * len(FAMILIES)
PRIOR_WEIGHT, TTFT_WEIGHT, THROUGHPUT_WEIGHT = 0.25, 0.6, 0.7
SOFT, SOFT_TTFT = 0.1, 0.15


def scope_of(worker: Worker) -> int:
    line = family(worker.accelerator)
    return ENGINES.index(worker.engine) * len(FAMILIES) + FAMILIES.index(line if line in FAMILIES else "other")


def start() -> Any:
    x = np.zeros((len(NAMES), 1 + len(ENGINES) + SCOPES))
    x[:, 0] = [np.log(PRIORS[name].centre) for name in NAMES]
    return x.ravel()


def unpack(x: Any, scope: Any) -> dict[str, Any]:
    """Values of every parameter in `scope` (array)."""
    table, engine = x.reshape(len(NAMES), -1), scope // len(FAMILIES)
    return {
        name: np.exp(row[0] + row[1 + engine] + row[1 + len(ENGINES) + scope])
        for name, row in zip(NAMES, table, strict=True)
    }


def tables(x: Any, seen: frozenset[int] | None = None) -> dict[str, dict[str, float]]:
    """Values by parameter and scope name, as `Calibration` takes them; scopes without rows are left to more general ones."""
    found: dict[str, dict[str, float]] = {}
    for name, row in zip(NAMES, x.reshape(len(NAMES), -1), strict=True):
        values = {"*": float(np.exp(row[0]))}
        for i, engine in enumerate(ENGINES):
            values[engine] = float(np.exp(row[0] + row[1 + i]))
            for j, line in enumerate(FAMILIES[:-1]):
                if seen is None or i * len(FAMILIES) + j in seen:
                    deviation = row[1 + len(ENGINES) + i * len(FAMILIES) + j]
                    values[f"{engine}/{line}"] = float(np.exp(row[0] + row[1 + i] + deviation))
        found[name] = values
    return found


@dataclass
class Ops:
    """Every op of many steps in flat arrays, so that all step times follow from the parameters in a few numpy calls."""

    raw: Roofline = field(default_factory=lambda: Roofline(calibration=Calibration(_unscaled())))
    parts: dict[str, list[Any]] = field(default_factory=lambda: collections.defaultdict(list))
    sampled: list[Any] = field(default_factory=list)
    steps: int = 0

    def add(self, worker: Worker, step: Step) -> Any:
        """Add steps (one array entry each) and return their indices."""
        index = np.arange(self.steps, self.steps + step.rows.size)
        for priced in self.raw.compiled(worker).ops:
            work, curve = priced.op.work(step), priced.curve
            size = np.broadcast_to(np.asarray(work.bytes, dtype=float), step.rows.shape)
            flop = np.asarray(work.flop) + curve.inertia * np.asarray(work.padding)
            flop = np.broadcast_to(flop * (1.0 + curve.narrow / work.columns), step.rows.shape)
            busy = (size > 0) | (flop > 0)
            columns = {
                "step": index, "count": priced.op.count * busy, "overhead": curve.overhead, "sharpness": curve.sharpness,
                "memory": size / (priced.bandwidth * curve.mbu), "compute": flop / (priced.peak * curve.mfu),
                "mbu": curve.mbu, "mfu": curve.mfu, "collective": priced.op.kind in COLLECTIVE_KINDS,
                "experts": priced.op.kind is OpKind.EXPERTS, "attention": priced.op.kind in ATTENTION_KINDS,
            }  # fmt: skip
            for name, value in columns.items():
                self.parts[name].append(np.broadcast_to(value, index.shape))
        self.sampled.append(step.sampled)
        self.steps += index.size
        return index

    def freeze(self) -> None:
        for name, parts in self.parts.items():
            setattr(self, f"_{name}", np.concatenate(parts))
        self._sampled = np.concatenate(self.sampled)

    def seconds(self, value: dict[str, Any], layers: Any, prompts: Any) -> Any:
        """Seconds of every step; `value` holds the parameters of each."""
        at = {name: entry[self._step] for name, entry in value.items()}
        wire, routed = self._collective, self._experts
        overhead = self._overhead * np.where(wire, 1.0 / at["collective"], at["launch"])
        memory = np.where(routed, at["memory"] / at["expert_imbalance"], at["memory"])
        memory = np.minimum(np.where(wire, at["collective"], memory), 1.0 / self._mbu)
        dense = np.where(self._attention, at["compute_attention"], at["compute_linear"])
        compute = np.minimum(np.where(routed, at["compute_experts"] / at["expert_imbalance"], dense), 1.0 / self._mfu)
        a, b = self._memory / memory, self._compute / compute
        larger = np.maximum(a, b)
        ratio = np.minimum(a, b) / np.where(larger > 0, larger, 1.0)
        taken = self._count * (overhead + larger * (1.0 + ratio**self._sharpness) ** (1.0 / self._sharpness))
        host = value["host_step"] + value["host_sequence"] * self._sampled
        host = host + prompts * (value["host_prefill"] + value["host_prefill_layer"] * layers)
        return np.bincount(self._step, taken, minlength=self.steps) + host


def _unscaled() -> dict[str, dict[str, float]]:
    return {name: {"*": 1.0} for name in NEUTRAL}


class Problem:
    """All rows, their measured figures, and what playing them adds to step times."""

    def __init__(self, cases: Sequence[Case], catalog: Catalog) -> None:
        self.cases, self.catalog = cases, catalog
        self.kind = np.array([case.row.kind.value for case in cases])
        self.ttft, self.tpot, self.output = (
            np.array([getattr(case.row.measured, name) or np.nan for case in cases])
            for name in ("ttft", "tpot", "output")
        )
        self.scope = np.array([scope_of(case.decode) for case in cases])
        self.layers = np.array([float(case.decode.model.num_layers) for case in cases])
        self.isl, self.osl = (np.array([getattr(case, name) for case in cases]) for name in ("isl", "osl"))
        self.alternates = np.array([case.decode.engine == "sglang" for case in cases])
        self.closed, self.static = self.kind == Kind.CLOSED.value, self.kind == Kind.STATIC.value
        self.group = np.array([_group(case) for case in cases])
        labels = [
            f"{case.row.source[:12]}|{_group(case)}|{case.decode.engine}|{case.row.dtype}|{case.row.kind}"
            for case in cases
        ]
        _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
        weight = counts[inverse] ** -0.3  # a sweep of 70 points is not 70 independent facts
        self.weight = weight / weight.mean()

    def play(self, x: Any) -> tuple[Any, Any, Any, Any]:
        """(TTFT, TPOT, output, batch of a step) of the shipped predictor at `x`, before delivery."""
        undelivered = tables(x) | {"delivery": {"*": 0.0}, "delivery_steps": {"*": 0.0}}
        answers = predict(
            [case.row for case in self.cases], self.catalog, Roofline(calibration=Calibration(undelivered))
        )
        found = {(answer.row.reference, answer.row.number): answer for answer in answers.predictions}
        answered = [found.get((case.row.reference, case.row.number)) for case in self.cases]
        ttft, tpot, output = (
            np.array([np.nan if answer is None else (getattr(answer, name) or np.nan) for answer in answered])
            for name in ("ttft", "tpot", "output")
        )
        decoding = tpot * np.maximum(self.osl - 1.0, 1.0)
        loaded = np.array([case.row.concurrency or case.row.batch or 1.0 for case in self.cases])
        batch = np.where(self.closed, loaded * decoding / (ttft + decoding), loaded)
        room = np.array([float(max_sequences(case.decode, case.isl + case.osl / 2)) for case in self.cases])
        batch = np.where(self.kind == Kind.OFFLINE.value, np.minimum(room, ENGINE_SEQUENCES), batch)
        return ttft, tpot, output, np.maximum(np.nan_to_num(batch, nan=1.0), 1.0)

    def freeze(self, x: Any) -> None:
        """Play at `x` and keep the factors that turn step times into the play's figures."""
        self.played = self.play(x)
        ttft, tpot, output, self.batch = self.played
        ops, n = Ops(), len(self.cases)
        self.decode, self.beside, self.prefill = (np.zeros(n, dtype=int) for _ in range(3))
        workers: dict[Worker, list[int]] = collections.defaultdict(list)
        for i, case in enumerate(self.cases):
            workers[case.decode].append(i)
        for worker, rows in workers.items():
            self._add(ops, worker, np.array(rows))
        ops.freeze()
        self.ops = ops
        self.step_scope, self.step_layers, self.step_prompts = (
            np.zeros(ops.steps, dtype=kind) for kind in (int, float, bool)
        )
        for index in (self.decode, self.beside, self.prefill):
            self.step_scope[index], self.step_layers[index] = self.scope, self.layers
        self.step_prompts[self.prefill] = self.step_prompts[self.beside] = True
        decode, extra, prefill = self.parts(x)
        self.interference = np.clip((tpot - decode) / np.maximum(self.batch / self.osl * extra, 1e-9), -0.2, 6.0)
        self.queue, self.rest = ttft / prefill, output / self._rate(decode, extra, prefill)

    def _add(self, ops: Ops, worker: Worker, rows: Any) -> None:
        batch, isl, context = self.batch[rows], self.isl[rows], self.isl[rows] + self.osl[rows] / 2
        zero, dp = 0.0 * batch, worker.parallelism.dp
        flight = spread(batch, worker.parallelism.pp)
        self.decode[rows] = ops.add(worker, Step(zero, zero, zero, spread(flight, dp), context, flight))
        prompts = np.where(self.static[rows], batch, 1.0)
        isl = np.where(self.static[rows], isl, np.minimum(isl, CHUNK * dp))
        self.prefill[rows] = ops.add(worker, Step(isl, zero, spread(prompts, dp), zero, zero, isl * prompts))
        self.beside[rows] = (
            self.prefill[rows]
            if worker.engine == "sglang"
            else ops.add(worker, Step(isl / dp, zero, zero + 1, spread(flight, dp), context, isl + flight))
        )

    def parts(self, x: Any) -> tuple[Any, Any, Any]:
        """Seconds of a decode step, of what a prompt adds beside it, and of a prompt alone."""
        seconds = self.ops.seconds(unpack(x, self.step_scope), self.step_layers, self.step_prompts)
        decode, beside, prefill = seconds[self.decode], seconds[self.beside], seconds[self.prefill]
        return decode, np.maximum(np.where(self.alternates, beside, beside - decode), 1e-6), prefill

    def _rate(self, decode: Any, extra: Any, prefill: Any) -> Any:
        static = 1.0 / (prefill + (self.osl - 1) * decode)
        return np.where(self.static, static, 1.0 / (self.osl * decode / self.batch + extra))

    def predict(self, x: Any) -> tuple[Any, Any, Any]:
        """(TTFT, TPOT, output) with the play's factors frozen."""
        decode, extra, prefill = self.parts(x)
        value = unpack(x, self.scope)
        delivered = np.where(self.closed, value["delivery"] + value["delivery_steps"] * decode, 0.0)
        tpot = decode + self.interference * self.batch / self.osl * extra
        return self.queue * prefill + delivered, tpot, self.rest * self._rate(decode, extra, prefill)

    def exact(self, x: Any) -> tuple[Any, Any, Any]:
        """(TTFT, TPOT, output) of the shipped predictor at the `x` last frozen."""
        ttft, tpot, output, _ = self.played
        value = unpack(x, self.scope)
        return ttft + np.where(self.closed, value["delivery"] + value["delivery_steps"] * tpot, 0.0), tpot, output

    def residuals(self, x: Any, mask: Any) -> Any:
        ttft, tpot, output = self.predict(x)
        parts = [
            self._soft(tpot, self.tpot, mask, SOFT),
            TTFT_WEIGHT * self._soft(ttft, self.ttft, mask, SOFT_TTFT),
            THROUGHPUT_WEIGHT * self._soft(output, self.output, mask & ~self.closed, SOFT),
        ]
        for name, row in zip(NAMES, x.reshape(len(NAMES), -1), strict=True):
            prior = PRIORS[name]
            parts.append(PRIOR_WEIGHT * np.array([(row[0] - np.log(prior.centre)) / prior.spread]))
            parts.append(PRIOR_WEIGHT * row[1:] / prior.stray)
        return np.concatenate(parts)

    def _soft(self, predicted: Any, measured: Any, mask: Any, scale: float) -> Any:
        """Weighted log ratios whose square grows linearly beyond `scale`; 0 where there is nothing to compare."""
        with np.errstate(all="ignore"):
            ratio = np.log(predicted / measured)
        known = mask & np.isfinite(ratio)
        ratio = np.where(known, ratio, 0.0)
        soft = np.sign(ratio) * scale * np.sqrt(2.0 * (np.sqrt(1.0 + (ratio / scale) ** 2) - 1.0))
        return soft * self.weight

    def solve(self, x: Any, mask: Any) -> Any:
        """One robust solve; scopes without rows in `mask` keep to their engine."""
        free = np.ones(x.size, dtype=bool).reshape(len(NAMES), -1)
        used = set(self.scope[mask])
        free[:, [1 + len(ENGINES) + scope for scope in range(SCOPES) if scope not in used]] = False
        free = free.ravel()
        base = np.where(free, x, 0.0) if len(used) else x
        base.reshape(len(NAMES), -1)[:, 0] = x.reshape(len(NAMES), -1)[:, 0]

        def residuals(y: Any) -> Any:
            full = base.copy()
            full[free] = y
            return self.residuals(full, mask)

        solved = base.copy()
        solved[free] = least_squares(residuals, base[free], max_nfev=8, x_scale=0.3).x
        return solved


DELIVERIES = (2e-3, 5e-3, 10e-3, 15e-3, 20e-3, 30e-3, 50e-3, 80e-3, 120e-3, 160e-3)
DELIVERY_STEPS = (0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0)
FEWEST = 20


def deliver(problem: Problem, x: Any, mask: Any) -> Any:
    """`x` with the delivery of every engine and architecture of enough load tests at the least absolute relative TTFT error.

    What lies between client and engine differs between test campaigns by whole factors, so a squared loss would follow the few
    that poll slowest; the median follows the usual one. A small mean term settles ties.
    """
    x = x.copy()
    decode, extra, prefill = problem.parts(x)
    del extra
    table = x.reshape(len(NAMES), -1)
    for scope in np.unique(problem.scope[mask]):
        rows = mask & problem.closed & (problem.scope == scope) & np.isfinite(problem.ttft * problem.queue)
        if rows.sum() < FEWEST:
            continue
        engine = problem.queue[rows] * prefill[rows]

        def loss(fixed: float, steps: float, engine: Any = engine, rows: Any = rows) -> float:
            ratio = (engine + fixed + steps * decode[rows]) / problem.ttft[rows]
            return float(np.median(np.abs(ratio - 1.0)) + 0.1 * np.mean(np.minimum(np.abs(np.log(ratio)), 2.0)))

        best = min(((fixed, steps) for fixed in DELIVERIES for steps in DELIVERY_STEPS), key=lambda pair: loss(*pair))
        for name, value in zip(("delivery", "delivery_steps"), best, strict=True):
            row = table[NAMES.index(name)]
            row[1 + len(ENGINES) + scope] = np.log(value) - row[0] - row[1 + scope // len(FAMILIES)]
    return x


def _group(case: Case) -> str:
    """Model and accelerator; DeepSeek-R1 and V3 are one architecture and were published under both names."""
    return f"{case.decode.model.name.replace('DeepSeek-R1', 'DeepSeek-V3')}|{case.decode.accelerator.name}"


def read_cases(paths: Sequence[Path], catalog: Catalog) -> list[Case]:
    """Rows that are fitted to; a point published twice counts once."""
    seen, cases = set(), []
    for path in paths:
        for row in read_table(path).rows:
            if row.kind not in FITTED_KINDS or row.source.startswith(("MLPerf", "GPUStack")):
                continue
            try:
                case = case_of(row, catalog)
            except Unanswerable:
                continue
            if case.drafts or (row.kind is Kind.CLOSED and not (row.concurrency or row.batch)):
                continue
            key = (row.kind, _group(case), row.measured)
            if key not in seen:
                seen.add(key)
                cases.append(case)
    return cases


def errors(predicted: Any, measured: Any, mask: Any) -> dict[str, float]:
    with np.errstate(all="ignore"):
        ratio = np.log(predicted / measured)
    ratio = ratio[mask & np.isfinite(ratio)]
    if not len(ratio):
        return {}
    absolute = np.abs(np.expm1(ratio))
    return {
        "n": len(ratio), "median": round(float(np.median(absolute)), 4), "p90": round(float(np.quantile(absolute, 0.9)), 4),
        "ratio": round(float(np.exp(np.median(ratio))), 4),
    }  # fmt: skip


def report(problem: Problem, figures: tuple[Any, Any, Any], title: str) -> dict[str, dict[str, float]]:
    found = {}
    for kind in dict.fromkeys(problem.kind):
        measured = (("ttft", problem.ttft), ("tpot", problem.tpot), ("output", problem.output))
        for (name, truth), predicted in zip(measured, figures, strict=True):
            row = errors(predicted, truth, problem.kind == kind)
            if row and not (kind == Kind.CLOSED.value and name == "output"):
                found[f"{kind} {name}"] = row
                print(f"{title:12s} {kind:14s} {name:7s} {row}", flush=True)
    return found


def hold_out(problem: Problem, folds: int) -> tuple[Any, Any, Any]:
    """Figures of every row from parameters fitted without its (model, accelerator) group."""
    groups = np.unique(problem.group)
    np.random.default_rng(0).shuffle(groups)
    parts = [np.full(len(problem.cases), np.nan) for _ in range(3)]
    for fold in range(folds):
        held = np.isin(problem.group, groups[fold::folds])
        fitted = problem.solve(problem.solve(start(), ~held), ~held)
        for whole, part in zip(parts, problem.predict(deliver(problem, fitted, ~held)), strict=True):
            whole[held] = part[held]
        print(f"fold {fold + 1} of {folds}: {int(held.sum())} rows held out", flush=True)
    return parts[0], parts[1], parts[2]


def document(x: Any, problem: Problem, quality: dict[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """calibration.json: each value with its rows and their residual."""
    seen = frozenset(int(scope) for scope in problem.scope)
    figures = problem.exact(x)
    parameters: dict[str, Any] = {}
    for name, values in tables(x, seen).items():
        parameters[name] = {
            scope: {"value": float(f"{value:.4g}"), **_evidence(problem, figures, scope)}
            for scope, value in values.items()
        }
    return {
        "what": "parameters of diptych.perf.calibrate, fitted by benchmarks/fit_calibration.py",
        "date": time.strftime("%Y-%m-%d"),
        "sources": list(sources),
        "quality": quality,
        "parameters": parameters,
    }


def _evidence(problem: Problem, figures: tuple[Any, Any, Any], scope: str) -> dict[str, float]:
    engine, _, line = scope.partition("/")
    mask = np.ones(len(problem.cases), dtype=bool)
    if scope != "*":
        index = ENGINES.index(engine) * len(FAMILIES)
        mask = (
            (problem.scope == index + FAMILIES.index(line))
            if line
            else (problem.scope // len(FAMILIES) == index // len(FAMILIES))
        )
    predicted, measured = (
        np.where(problem.closed, figures[1], figures[2]),
        np.where(problem.closed, problem.tpot, problem.output),
    )
    first = problem.kind == Kind.FIRST_TOKEN.value
    row = errors(np.where(first, figures[0], predicted), np.where(first, problem.ttft, measured), mask)
    return {"rows": int(row.get("n", 0)), "residual": row.get("median", 0.0)}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("src/diptych/perf/data/calibration.json"))
    options = parser.parse_args(argv)
    catalog = Catalog.load()
    problem = Problem(read_cases(options.tables, catalog), catalog)
    x, everything = start(), np.ones(len(problem.cases), dtype=bool)
    for number in range(options.rounds):
        problem.freeze(x)
        report(problem, problem.exact(x), f"round {number}")
        x = problem.solve(x, everything)
        options.out.write_text(json.dumps(document(x, problem, {}, []), indent=1) + "\n", encoding="utf-8")
    problem.freeze(x)
    x = deliver(problem, x, everything)
    quality = {"in_sample": report(problem, problem.exact(x), "in sample")}
    if options.folds > 1:
        quality["held_out_groups"] = report(problem, hold_out(problem, options.folds), "held out")
    sources = sorted({case.row.source for case in problem.cases})
    options.out.write_text(json.dumps(document(x, problem, quality, sources), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
