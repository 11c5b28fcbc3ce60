"""Runs beside one another: plans as they were predicted, simulations as they were seen, in the same columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diptych.errors import Finding, InvalidInput
from diptych.planner.plan import Latency, Plan
from diptych.planner.simulated import LATENCIES, Latencies, Simulated
from diptych.report import words
from diptych.report.simulation_tables import pair, seconds, share
from diptych.report.tables import table
from diptych.units import format_usd

Number = float | None
_TITLES = {
    "ttft_prefill": "TTFT, computed by prefill",
    "ttft": "TTFT, delivered by decode",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "end to end",
}
_STAGES = ("queue", "prefill", "convert", "transfer", "wait", "decode")
_PLANNED = {"wait": "queue", "prefill": "prefill", "conversion": "convert", "transfer": "transfer"}
"""Names of a plan's parts of TTFT; its wait is the queue before prefill. The rest of end to end is decode."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One run. `stages` are mean seconds of a request, `queues` mean and most waiting by role; None is what a kind can't say."""

    name: str
    kind: str
    model: str
    what: str
    workload: str
    slo: str
    rate: float
    holds: bool | None
    goodput: float
    attainment: Number
    latencies: Mapping[str, Latencies]
    stages: Mapping[str, float]
    queues: Mapping[str, tuple[Number, Number]]
    busy: Mapping[str, Number]
    accelerators: int
    usd_per_hour: float
    usd_per_mtok_output: Number
    watts: float | None


def load(paths: Sequence[str]) -> tuple[Compared, ...]:
    """What each folder (or plan.json, or summary.json) holds. Raises `InvalidInput` with all findings of all of them."""
    findings: list[Finding] = []
    found: list[Compared] = []
    for text in paths:
        try:
            found += _load(Path(text).expanduser(), text)
        except InvalidInput as error:
            findings += [Finding(f.where or text, f.problem, f.expected, f.hint) for f in error.findings]
    if findings:
        raise InvalidInput(findings)
    return tuple(found)


def _load(path: Path, name: str) -> list[Compared]:
    """A folder may hold a plan, a simulation or both."""
    if path.is_dir():
        read = [reader for file, reader in _READERS if (path / file).is_file()]
        if not read:
            raise InvalidInput(Finding(name, "neither a plan nor a simulation in it", "a folder that --out wrote"))
        return [reader(path, name.rstrip("/")) for reader in read]
    if not path.is_file():
        raise InvalidInput(
            Finding(name, "there is no such run", "a folder that --out wrote, a plan.json or a summary.json")
        )
    try:
        kind = json.loads(path.read_text(encoding="utf-8")).get("kind")
    except (OSError, ValueError, AttributeError):
        raise InvalidInput(Finding(name, "not a run", "a plan.json or a summary.json")) from None
    return [_simulation(path, name) if kind == "simulation" else _plan(path, name)]


def _simulation(path: Path, name: str) -> Compared:
    seen = Simulated.load(path)
    return Compared(
        name=name,
        kind="simulated",
        model=seen.model,
        what=seen.design,
        workload=seen.workload,
        slo=seen.slo,
        rate=seen.offered if seen.concurrency is None else seen.request_rate,
        holds=seen.holds if seen.promises else None,
        goodput=seen.goodput,
        attainment=seen.attainment,
        latencies=seen.latencies,
        stages={stage: part.mean for stage, part in seen.stages.items() if part.mean is not None},
        queues={str(pool.role): (pool.queue_mean, pool.queue_max) for pool in seen.pools},
        busy={str(pool.role): pool.busy for pool in seen.pools},
        accelerators=seen.accelerators,
        usd_per_hour=seen.usd_per_hour,
        usd_per_mtok_output=seen.usd_per_mtok_output,
        watts=seen.energy_j / seen.duration if seen.duration and seen.energy_j else None,
    )


def _plan(path: Path, name: str) -> Compared:
    plan = Plan.load(path)
    best, said = plan.best, plan.best.ttft if plan.best.boundary else plan.best.ttft_decode
    parts = {_PLANNED[part]: value for part, value in best.ttft_parts.items() if part in _PLANNED}
    parts["decode"] = max(best.e2e.mean - sum(parts.values()), 0.0)
    return Compared(
        name=name,
        kind="planned",
        model=plan.question.model,
        what=best.label,
        workload=plan.question.workload.name,
        slo=plan.question.slo,
        rate=best.rate,
        holds=None,
        goodput=best.goodput,
        attainment=None,
        latencies={"ttft": _predicted(said), "tpot": _predicted(best.tpot), "e2e": _predicted(best.e2e)},
        stages=parts,
        queues={},
        busy={str(pool.role): pool.utilisation for pool in best.pools},
        accelerators=best.accelerators,
        usd_per_hour=best.usd_per_hour,
        usd_per_mtok_output=best.usd_per_mtok_output if best.usd_per_hour else None,
        watts=best.power_w,
    )


_READERS = (("plan.json", _plan), ("summary.json", _simulation))


def _predicted(latency: Latency) -> Latencies:
    return Latencies(latency.mean, latency.p50, latency.p90, None, latency.p99, None)


def comparison_json(runs: Sequence[Compared]) -> dict[str, Any]:
    """The runs as one document."""
    return {"runs": [asdict(run) for run in runs]}


def comparison_text(runs: Sequence[Compared]) -> Group:
    """One column a run, few enough for a terminal; what differs in what was asked is told first."""
    parts: list[RenderableType] = [_runs(runs), *(_warning(text) for text in differences(runs))]
    for title, rows in (("Result", _result(runs)), ("Latency", _latency(runs)), ("Where the time went, mean", _went(runs)),
                        ("Pools: busy; waiting, mean / most", _pools(runs)), ("Bill and power", _bill(runs))):  # fmt: skip
        parts += [Text(), Text(title, style="bold"), Padding(_grid(runs, rows), (0, 0, 0, 2))]
    return Group(*parts)


def differences(runs: Sequence[Compared]) -> tuple[str, ...]:
    """What was not asked alike: such runs are not rivals."""
    told = []
    for what, values in (("models", {run.model for run in runs}), ("workloads", {run.workload for run in runs}),
                         ("SLOs", {run.slo for run in runs})):  # fmt: skip
        if len(values) > 1:
            told.append(f"different {what}: {', '.join(sorted(value or 'none' for value in values))}")
    rates = [run.rate for run in runs]
    if max(rates) > 1.05 * min(rates):
        told.append(f"different loads: {min(rates):.3g} to {max(rates):.3g} requests/s")
    return tuple(told)


def _warning(text: str) -> Text:
    return Text(f"! {text}", style="yellow")


def _runs(runs: Sequence[Compared]) -> Table:
    rows = table("", "run", "what", text=("run", "what"))
    for number, run in enumerate(runs, 1):
        rows.add_row(f"{number}", f"{run.name}\n{run.kind}", run.what)
    return rows


def _grid(runs: Sequence[Compared], rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    shown = table("", *(f"{number}" for number in range(1, len(runs) + 1)))
    for name, cells in rows:
        shown.add_row(name, *cells)
    return shown


def _result(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    verdicts = {None: "–", True: "holds", False: "missed"}
    return [
        ("SLO", [verdicts[run.holds] for run in runs]),
        ("load, requests/s", [words.count(run.rate) for run in runs]),
        ("goodput, requests/s", [words.count(run.goodput) for run in runs]),
        ("inside every limit", [share(run.attainment) for run in runs]),
    ]


def _latency(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    rows = []
    for metric in LATENCIES:
        known = [run.latencies.get(metric) for run in runs]
        for statistic in ("p50", "p90", "p99"):
            cells = [seconds(getattr(latency, statistic) if latency else None) for latency in known]
            if any(cell != "–" for cell in cells):
                rows.append((f"{_TITLES[metric]} {statistic}", cells))
    return rows


def _went(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    return [
        (stage, [seconds(run.stages.get(stage)) for run in runs])
        for stage in _STAGES
        if any(run.stages.get(stage) for run in runs)
    ]


def _pools(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    roles = dict.fromkeys(role for run in runs for role in run.busy)
    rows = []
    for role in roles:
        rows.append((f"{role} busy", [share(run.busy.get(role)) for run in runs]))
        if any(role in run.queues for run in runs):
            rows.append((f"{role} queue", [pair(*run.queues.get(role, (None, None))) for run in runs]))
    return rows


def _bill(runs: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    return [
        ("accelerators", [str(run.accelerators) for run in runs]),
        ("USD/h", [format_usd(run.usd_per_hour) if run.usd_per_hour else "–" for run in runs]),
        ("USD/Mtok output", [format_usd(run.usd_per_mtok_output) if run.usd_per_mtok_output else "–" for run in runs]),
        ("power", [words.power(run.watts) for run in runs]),
    ]
