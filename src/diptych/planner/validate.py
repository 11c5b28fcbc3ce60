"""Predicted beside measured, for anyone's benchmark table.

`predict(rows, catalog, perf)` answers what it can and says why it can't answer the rest; `planner.accuracy` sums it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.design.axes import Worker
from diptych.perf.closed_loop import ColocatedTest, DisaggregatedTest, Loop, LoopResult, play
from diptych.perf.estimate import Array, Basis, Timing
from diptych.perf.memory import kv_capacity
from diptych.perf.model import PerfModel
from diptych.perf.overheads import overheads
from diptych.perf.pools import ColocatedPool, PrefillPool
from diptych.planner.bands import bands
from diptych.planner.benchmark_cases import Case, Unanswerable, case_of, layouts
from diptych.planner.benchmark_rows import Kind, Row, Unread
from diptych.workload.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Prediction:
    """What we say of a row: seconds and output tokens/s, None where the row's kind does not define it.

    `basis` and `outside` are the worst of the steps it was made from; `bands` by metric say how far off it
    may be; `assumptions` what the row left open;
    `cold` says that the run is taken to be the first of its server.
    """

    row: Row
    accelerator: str
    model: str
    ttft: float | None
    tpot: float | None
    output: float | None
    basis: Basis
    bands: Mapping[str, float]
    outside: bool
    assumptions: tuple[str, ...] = field(default=())
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Answers:
    """Predictions and the rows without one, both in file order."""

    predictions: tuple[Prediction, ...]
    unanswered: tuple[Unread, ...]


def predict(
    rows: Sequence[Row], catalog: Catalog, perf: PerfModel, progress: Callable[[int], None] | None = None
) -> Answers:
    """Predict every row that can be answered. Closed loops are played together, the rest computed one by one.

    `progress` is called with the rows done so far.
    """
    predictions: dict[int, Prediction] = {}
    unanswered: list[Unread] = []
    waiting: list[tuple[Case, Any]] = []
    loops: dict[Any, tuple[Loop, _Noted]] = {}
    pools: dict[Any, tuple[ColocatedPool, int, _Noted]] = {}
    for done, row in enumerate(rows):
        if progress and done % 50 == 0:
            progress(done)
        try:
            case = case_of(row, catalog)
            if row.kind in (Kind.CLOSED, Kind.DISAGGREGATED, Kind.STREAM) and not _is_open(case):
                key = _same_load(case)
                if key not in loops:
                    noted = _Noted(perf, pools)
                    loops[key] = (_loop(case, noted), noted)
                waiting.append((case, key))
            else:
                noted = _Noted(perf, pools)
                predictions[row.number] = _prediction(case, noted, *_FORMULAS[row.kind](case, noted))
        except Unanswerable as reason:
            unanswered.append(Unread(row.number, str(reason)))
    results = dict(zip(loops, play([loop for loop, _ in loops.values()]), strict=True))
    for case, key in waiting:
        result = _delivered(case, perf, results[key])
        predictions[case.row.number] = _prediction(case, loops[key][1], result.ttft, result.tpot, _output(case, result))
    return Answers(tuple(predictions[number] for number in sorted(predictions)), tuple(unanswered))


def _delivered(case: Case, perf: PerfModel, result: LoopResult) -> LoopResult:
    """The result as a client sees it: with what lies between engine and client, if the model knows it."""
    known = getattr(perf, "delivery", None)
    return result if known is None else replace(result, ttft=result.ttft + float(known(case.decode, result.tpot)))


def _same_load(case: Case) -> Any:
    """What two rows share when they describe the same test."""
    return (case.decode, case.decode_workers, case.prefill, case.prefill_workers, case.isl, case.osl, case.protocol,
            case.drafts, _concurrency(case.row))  # fmt: skip


class _Noted:
    """A perf model that remembers the worst basis, band and hull of what it was asked, and shares pools with others."""

    def __init__(self, perf: PerfModel, pools: dict[Any, tuple[ColocatedPool, int, _Noted]] | None = None) -> None:
        self.perf, self.basis, self.band, self.outside = perf, Basis.MEASURED, 0.0, False
        self.pools = {} if pools is None else pools

    def take(self, other: _Noted) -> None:
        """Remember what another was told."""
        self.basis, self.band, self.outside = other.basis, other.band, other.outside

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        return self._note(self.perf.prefill(worker, tokens, past, batch))

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        return self._note(self.perf.decode(worker, batch, context))

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        return self._note(self.perf.mixed(worker, tokens, past, batch, context))

    def _note(self, timing: Timing) -> Timing:
        order = list(Basis)
        self.basis = max(self.basis, timing.basis, key=order.index)
        self.band = max(self.band, timing.band)
        self.outside = self.outside or bool(np.any(timing.outside))
        return timing


def _prediction(case: Case, noted: _Noted, ttft: float | None, tpot: float | None, output: float | None) -> Prediction:
    return Prediction(
        case.row, case.decode.accelerator.name, case.decode.model.name, ttft, tpot, output, noted.basis,
        bands(case.row.kind, case.is_assumed, noted.band), noted.outside, case.assumptions, case.protocol.cold > 0,
    )  # fmt: skip


def _is_open(case: Case) -> bool:
    return case.row.kind is Kind.CLOSED and not _concurrency(case.row) and bool(case.row.rate)


def _concurrency(row: Row) -> float:
    return row.concurrency or row.batch or (1.0 if row.kind is Kind.STREAM else 0.0)


def _loop(case: Case, perf: PerfModel) -> Loop:
    concurrency = _concurrency(case.row)
    if not concurrency and case.row.kind is Kind.DISAGGREGATED:
        raise Unanswerable("no concurrency")
    if not concurrency:
        raise Unanswerable("neither concurrency nor request rate")
    kv = kv_capacity(case.decode)
    if case.prefill is not None:
        return DisaggregatedTest(
            case.prefill, case.decode, case.isl, case.osl, concurrency, kv, case.prefill_workers or _matched(case, perf),
            case.decode_workers,
            _transfer(case), case.protocol, case.drafts,
        ).loop(perf)  # fmt: skip
    return ColocatedTest(
        case.decode, case.isl, case.osl, concurrency, kv, case.decode_workers, case.protocol, case.drafts
    ).loop(perf)


def _matched(case: Case, perf: PerfModel) -> int:
    """Prefill workers whose capacity is at least the rate at which the decode side finishes requests."""
    assert case.prefill is not None
    each = (case.row.concurrency or 1.0) / case.decode_workers
    step = _seconds(perf.decode(case.decode, each, case.isl + case.osl / 2).seconds)
    pool = PrefillPool(perf, case.prefill, Lengths.fixed(case.isl, case.osl))
    return max(1, int(np.ceil((case.row.concurrency or 1.0) / (case.osl * step) / pool.capacity)))


def _transfer(case: Case) -> float:
    """Seconds of one prompt's handoff: set-up, then its KV over the NICs of the narrower side (same accelerator on both)."""
    assert case.prefill is not None
    setup = overheads(case.decode.engine).handoff
    ranks = min(case.prefill.accelerators, case.decode.accelerators)
    size = float(case.decode.model.kv_bytes(case.isl, case.decode.precision.kv))
    nic = case.decode.accelerator.nic_bandwidth
    return setup + (size / (nic * ranks) if nic else 0.0)


def _output(case: Case, result: LoopResult) -> float:
    """Output tokens/s; by the closed-loop identity where the table derived its own that way."""
    row = case.row
    if row.derived and row.osl:
        return _concurrency(row) * row.osl / (result.ttft + (row.osl - 1) * result.tpot)
    return result.requests_per_second * case.osl * (case.decode_workers if case.prefill is None else 1)


Figures = tuple[float | None, float | None, float | None]


def _offline(case: Case, perf: _Noted) -> Figures:
    """Throughput with the batch that memory holds, prompts and answers in balance."""
    pool, workers = _best_pool(case, perf)
    return None, None, pool.capacity * case.osl * workers


def _server(case: Case, perf: _Noted) -> Figures:
    """Latencies of Poisson arrivals at the row's rate; the rate itself is what is put out while it can be held.

    At or above the predicted capacity latency grows without bound: then there is none to predict.
    """
    rate = case.row.rate
    if not rate:
        raise Unanswerable("no request rate")
    if case.row.source.startswith("GPUStack"):
        raise Unanswerable("all requests at once, their number not recorded")
    pool, workers = _best_pool(case, perf)
    most = pool.capacity * workers
    if rate >= most:
        return None, None, most * case.osl
    state = pool.at(rate, workers)
    return float(state.ttft.mean), float(state.tpot_mean), rate * case.osl


def _best_pool(case: Case, noted: _Noted) -> tuple[ColocatedPool, int]:
    """The pool of the case's workers and their count; where TP is not recorded, the TP of highest throughput."""
    total = case.decode.accelerators * case.decode_workers
    key = (case.decode, total, round(case.isl), round(case.osl), case.choose_tp)
    if key not in noted.pools:
        own = _Noted(noted.perf, noted.pools)
        noted.pools[key] = (*_search_pool(case, own, total), own)
    pool, workers, told = noted.pools[key]
    noted.take(told)
    return pool, workers


def _search_pool(case: Case, perf: PerfModel, total: int) -> tuple[ColocatedPool, int]:
    lengths = Lengths.fixed(case.isl, case.osl)
    choices = [case.decode]
    if case.choose_tp:
        larger = (w for w in layouts(case.decode, min(total, 8)) if w.accelerators > case.decode.accelerators)
        choices += [worker for worker in larger if total % worker.accelerators == 0]
    pools = [ColocatedPool(perf, worker, lengths, kv_capacity(worker)) for worker in choices]
    best = max(pools, key=lambda pool: pool.capacity / pool.worker.accelerators)
    return best, total // best.worker.accelerators


def _static(case: Case, perf: PerfModel) -> Figures:
    """A batch prefilled together, then decoded to the end."""
    batch = case.row.batch or 0.0
    if not batch:
        raise Unanswerable("no batch size")
    held = batch * float(case.decode.model.kv_bytes(case.isl + case.osl, case.decode.precision.kv))
    if held > kv_capacity(case.decode) * case.decode_workers:
        raise Unanswerable("batch does not fit in memory as recorded")
    prefill = _seconds(perf.prefill(case.decode, case.isl, 0, batch).seconds)
    step = _seconds(perf.decode(case.decode, batch, case.isl + case.osl / 2).seconds)
    return None, None, batch * case.osl / (prefill + (case.osl - 1) * step) * case.decode_workers


def _first_token(case: Case, perf: PerfModel) -> Figures:
    return _seconds(perf.prefill(case.decode, case.isl, 0, case.row.batch or 1).seconds), None, None


def _decode_only(case: Case, perf: PerfModel) -> Figures:
    raise Unanswerable("decode throughput without a batch size")


def _prefill_only(case: Case, perf: PerfModel) -> Figures:
    raise Unanswerable("input throughput: no measured figure of ours")


def _seconds(value: Array) -> float:
    return float(np.asarray(value).reshape(-1)[0])


_FORMULAS = {
    Kind.OFFLINE: _offline,
    Kind.SERVER: _server,
    Kind.CLOSED: _server,
    Kind.STATIC: _static,
    Kind.FIRST_TOKEN: _first_token,
    Kind.DECODE: _decode_only,
    Kind.PREFILL: _prefill_only,
    Kind.STREAM: _server,
    Kind.DISAGGREGATED: _server,
}


def unanswered(unread: Iterable[Unread], answers: Answers) -> tuple[Unread, ...]:
    """Rows without a prediction, those that could not be read first."""
    return tuple(sorted((*unread, *answers.unanswered), key=lambda item: item.number))
