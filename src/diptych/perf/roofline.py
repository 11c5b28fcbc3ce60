"""Step times: every op's curve over its work, summed, plus what the host adds.

The sum over ops of max(FLOP/peak, bytes/bandwidth) is the roofline; `efficiency` says how far above it each op lies, `calibrate`
what an engine's step adds around the kernels. The floor returned beside every time is the weaker bound that no engine can beat:
max(all FLOP over their peaks, all bytes over the bandwidth).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Worker
from diptych.perf.calibrate import Calibration, Factors, shipped_calibration
from diptych.perf.collectives import collective_curve, link_bandwidth
from diptych.perf.efficiency import Curve, Curves, shipped_curves
from diptych.perf.estimate import Array, Basis, Timing
from diptych.perf.layout import operations
from diptych.perf.ops import Op, OpKind, Step

COLLECTIVES = (OpKind.ALL_REDUCE, OpKind.ALL_TO_ALL, OpKind.POINT_TO_POINT)
CEILING_OPS = (OpKind.LINEAR, OpKind.EXPERTS, OpKind.DECODE_ATTENTION, OpKind.DECODE_MLA)
UNMEASURED = (OpKind.ELEMENTWISE, OpKind.STATE, OpKind.POINT_TO_POINT)
MEASURED_CONTEXT, MEASURED_ROWS = 131_072, 16_384  # the hull of the op tables
SLOWEST = 1e12  # FLOP/s of an accelerator about which nothing is known
BYTES_TO_FLOP = 150.0  # FLOP per byte of bandwidth assumed where a data sheet gives no peak: about A100's ridge


def peak_flops(accelerator: Accelerator, compute: Dtype) -> float:
    """FLOP/s of a multiply; where the sheet is silent, the next wider format's, half of INT8's, or the usual ridge."""
    known = accelerator.peak_flops
    wider = {Dtype.FP4: (Dtype.FP8, Dtype.INT8), Dtype.FP8: (Dtype.FP8_FNUZ,), Dtype.INT8: (Dtype.FP8,)}
    for dtype in (compute, *wider.get(compute, ())):
        if known.get(dtype):
            return known[dtype]
    half_int8 = known.get(Dtype.INT8, 0.0) / 2.0
    narrower = known.get(Dtype.FP8, 0.0) / 2.0
    return accelerator.peak_16bit or half_int8 or narrower or BYTES_TO_FLOP * accelerator.memory_bandwidth or SLOWEST


def memory_bandwidth(accelerator: Accelerator) -> float:
    """Bytes/s of device memory; where the sheet is silent, what the usual ridge gives for its peak."""
    return accelerator.memory_bandwidth or peak_flops(accelerator, Dtype.BF16) / BYTES_TO_FLOP


@dataclass(frozen=True, slots=True)
class PricedOp:
    """An op with the curve, peak and bandwidth that turn its work into seconds."""

    op: Op
    curve: Curve
    peak: float
    bandwidth: float

    def price(self, step: Step) -> tuple[Array, Array, Array]:
        """(seconds of all its launches in one step, FLOP over peak, bytes over bandwidth); without work it is not launched."""
        work = self.op.work(step)
        size, flop = np.asarray(work.bytes, dtype=float), np.asarray(work.flop, dtype=float)
        busy = (size > 0) | (flop > 0)
        seconds = np.where(busy, self.op.count * self.curve.seconds(work, self.peak, self.bandwidth), 0.0)
        return seconds, self.op.count * flop / self.peak, self.op.count * size / self.bandwidth


@dataclass(frozen=True, slots=True)
class Compiled:
    """A worker ready to be timed."""

    ops: tuple[PricedOp, ...]
    factors: Factors
    basis: Basis
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Roofline:
    """The shipped `PerfModel`: op curves and a calibration. Stateless but for a cache of compiled workers."""

    curves: Curves = field(default_factory=shipped_curves)
    calibration: Calibration = field(default_factory=shipped_calibration)
    _cache: dict[Any, Compiled] = field(default_factory=dict, repr=False, compare=False)
    _ceilings: dict[Any, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        """Seconds of one step that prefills `batch` prompts of `tokens` new tokens after `past` cached ones."""
        tokens, past, batch = _arrays(tokens, past, batch)
        prompts = spread(batch, worker.parallelism.dp)
        zero = np.zeros_like(prompts)
        return self._time(worker, Step(tokens, past, prompts, zero, zero, tokens * batch))

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        """Seconds of one token for each of `batch` sequences over the whole worker, with mean `context` tokens."""
        batch, context = _arrays(batch, context)
        in_flight = _micro(batch, worker)
        zero = np.zeros_like(batch)
        return self._time(worker, Step(zero, zero, zero, spread(in_flight, worker.parallelism.dp), context, in_flight))

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        """Seconds of a chunked-prefill step: `tokens` prefill tokens in all, after `past`, beside `batch` sequences."""
        tokens, past, batch, context = _arrays(tokens, past, batch, context)
        dp, in_flight = worker.parallelism.dp, _micro(batch, worker)
        prompts = np.where(tokens > 0, 1.0, 0.0)
        return self._time(worker, Step(tokens / dp, past, prompts, spread(in_flight, dp), context, tokens + in_flight))

    def delivery(self, worker: Worker, step: Any) -> Array:
        """Seconds of a TTFT as a client sees it that no step of the prompt holds, beside decode steps of `step` seconds.

        HTTP, tokenising and streaming, and the decode steps for which an engine does not look at new requests.
        """
        factors = self.compiled(worker).factors
        return np.asarray(factors.delivery + factors.delivery_steps * np.asarray(step, dtype=float))

    def ceilings(self, worker: Worker) -> tuple[float, float]:
        """(share of peak FLOP/s, share of memory bandwidth) that no matrix or decode-attention op of the worker exceeds.

        A search may divide data-sheet bounds by them: every op takes at least flop/(peak·mfu) and bytes/(bandwidth·mbu).
        """
        accelerator = worker.accelerator
        key = (accelerator.name, accelerator.memory_bandwidth, accelerator.peak_16bit, worker.engine, worker.precision,
               worker.model.name)  # fmt: skip
        if key not in self._ceilings:  # curves and factors follow the format, not the parallelism
            priced = [p for p in self.compiled(worker).ops if p.op.kind in CEILING_OPS]
            self._ceilings[key] = (
                max((p.curve.mfu for p in priced), default=1.0),
                max((p.curve.mbu for p in priced), default=1.0),
            )
        return self._ceilings[key]

    def warnings(self, worker: Worker) -> tuple[str, ...]:
        """What to know about this worker's numbers: transferred curves, refused tables, backends that disagree."""
        return tuple(dict.fromkeys((*self.compiled(worker).warnings, *disagreements(self.curves, worker))))

    def compiled(self, worker: Worker) -> Compiled:
        key = (worker, tuple(sorted(worker.accelerator.peak_flops.items())))
        if key not in self._cache:
            self._cache[key] = self._compile(worker)
        return self._cache[key]

    def _compile(self, worker: Worker) -> Compiled:
        accelerator, factors = worker.accelerator, self.calibration.factors(worker)
        priced, notes, basis = [], dict.fromkeys([""]), Basis.FITTED
        for op in operations(worker):
            if op.kind in COLLECTIVES:
                curve = collective_curve(self.curves, worker, op)
                priced.append(PricedOp(op, _scaled(curve, op, factors), 1.0, link_bandwidth(worker, op)))
                continue
            found = self.curves.find(accelerator, worker.engine, op.kind, op.format.name)
            if found.basis is Basis.ROOFLINE and op.kind not in UNMEASURED:
                basis = Basis.ROOFLINE
            if found.refused:
                notes[f"{op.kind} {op.format.name} on {worker.engine}: measured table refused ({found.refused})"] = None
            peak = peak_flops(accelerator, op.format.compute)
            priced.append(PricedOp(op, _scaled(found.curve, op, factors), peak, memory_bandwidth(accelerator)))
        return Compiled(tuple(priced), factors, basis, tuple(note for note in notes if note))

    def _time(self, worker: Worker, step: Step) -> Timing:
        compiled = self.compiled(worker)
        seconds = np.zeros(np.shape(step.rows)) + compiled.factors.host(step, worker.model.num_layers)
        flop = traffic = np.zeros(np.shape(step.rows))
        for op in compiled.ops:
            taken, multiplying, moving = op.price(step)
            seconds = seconds + taken
            if op.op.kind not in COLLECTIVES:
                flop, traffic = flop + multiplying, traffic + moving
        outside = (
            (step.context > MEASURED_CONTEXT)
            | (step.tokens + step.past > MEASURED_CONTEXT)
            | (step.rows > MEASURED_ROWS)
        )
        band = compiled.factors.band if compiled.basis is Basis.FITTED else compiled.factors.transferred_band
        return Timing(seconds, np.maximum(flop, traffic), compiled.basis, band, outside)


def _scaled(curve: Curve, op: Op, factors: Factors) -> Curve:
    """The curve with the calibration's factors: launch cost, and achieved fractions kept at or below the data sheet."""
    launch, memory, compute = factors.of(op)
    return replace(
        curve,
        overhead=curve.overhead * launch,
        mbu=min(1.0, curve.mbu * memory),
        mfu=min(1.0, curve.mfu * compute),
    )


def spread(count: Any, groups: int) -> Array:
    """Sequences on the fullest of `groups` DP ranks: an even share, but a whole sequence if there is one."""
    return np.asarray(np.maximum(count / groups, np.minimum(count, 1.0)), dtype=float)


def _micro(batch: Array, worker: Worker) -> Array:
    """Sequences in one micro-batch of a pipeline: its stages work on `pp` of them at once."""
    return spread(batch, worker.parallelism.pp)


def _arrays(*values: Any) -> list[Array]:
    return [np.asarray(value, dtype=float) for value in np.broadcast_arrays(*values)]


def disagreements(curves: Curves, worker: Worker, factor: float = 3.0) -> Iterator[str]:
    """Ops whose measured backends differ by more than `factor` on a typical decode matrix: one of them may be wrong."""
    for op in operations(worker):
        of = curves.of(worker.accelerator.name, op.kind, op.format.name)
        if len(of) < 2 or op.kind in COLLECTIVES:
            continue
        one = Step(*(np.asarray(value, dtype=float) for value in (0, 0, 0, 64, 4096, 64)))
        work = op.work(one)
        if not float(np.asarray(work.bytes)) > 0:
            continue
        peak = peak_flops(worker.accelerator, op.format.compute)
        times = {
            engine: float(curve.seconds(work, peak, worker.accelerator.memory_bandwidth))
            for engine, curve in of.items()
        }
        slow, fast = max(times, key=times.__getitem__), min(times, key=times.__getitem__)
        if times[slow] > factor * times[fast]:
            yield f"{op.kind} {op.format.name}: {slow} measured {times[slow] / times[fast]:.1f} times slower than {fast}"


def default_perf() -> Roofline:
    """The shipped curves and calibration."""
    return Roofline()
