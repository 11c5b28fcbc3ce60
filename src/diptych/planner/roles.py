"""Which side of a pair an accelerator belongs on: comparative advantage, computed, free of prices.

If a mix of two parts pays at all, the one whose prefill capacity is larger in proportion to its decode capacity belongs on
prefill, whatever both cost: swapping the roles of one unit of each would gain on neither side. The ratio depends on the model, on
how many accelerators a worker spans and on the link between them, so it is asked, never looked up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diptych.design.axes import Worker
from diptych.perf.model import PerfModel
from diptych.perf.pools import ColocatedPool, DecodePool, PrefillPool
from diptych.workload.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Leaning:
    """A worker's capacities per accelerator (requests/s of one stage alone) and their ratio: higher leans to prefill."""

    worker: Worker
    prefill: float
    decode: float

    @property
    def ratio(self) -> float:
        return self.prefill / self.decode


def leaning(perf: PerfModel, worker: Worker, lengths: Lengths) -> Leaning:
    """The stage capacities of one worker on `lengths`, each stage alone."""
    prefill, decode = PrefillPool(perf, worker, lengths).capacity, DecodePool(perf, worker, lengths).capacity
    return Leaning(worker, prefill / worker.accelerators, decode / worker.accelerators)


def prefill_side_first(perf: PerfModel, workers: Iterable[Worker], lengths: Lengths) -> list[Leaning]:
    """`workers` from the one that leans most to prefill to the one that leans most to decode."""
    return sorted((leaning(perf, worker, lengths) for worker in workers), key=lambda each: -each.ratio)


def blended_ratio(perf: PerfModel, worker: Worker, heavy: Lengths, light: Lengths) -> float:
    """Output tokens/s of a colocated worker on prefill-heavy lengths over those on decode-heavy ones, both at capacity.

    What published throughput tables allow; both runs mix the phases, so it understates the contrast.
    """
    rates = [ColocatedPool(perf, worker, lengths).capacity * lengths.mean_osl for lengths in (heavy, light)]
    return rates[0] / rates[1]
