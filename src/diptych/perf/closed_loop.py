"""A closed loop: `concurrency` clients, each sending its next request when the last is answered.

Load tests are run this way, and their averages hold more than a steady state: all clients start at once, so the first wave
queues for prefill; answers of similar length end together, so later waves arrive in bunches; near the end the batch drains.
Formulas for a steady queue miss all three. So the loop is played out (`loop_play`), from step times that are tabulated here by
batch: the same steps that the open-loop pools use. One physics, two arrival laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array
from diptych.perf.loop_play import Apart, Beside, Loop, LoopResult, PrefillStage, Protocol
from diptych.perf.model import PerfModel
from diptych.perf.speculative import seconds_per_token, tokens_per_step
from diptych.perf.stepping import kv_taken, prompt_costs, stepping
from diptych.workload.lengths import Lengths

__all__ = ["ColocatedTest", "DisaggregatedTest", "Loop", "LoopResult", "PrefillStage", "Protocol", "play"]

MOST_CLIENTS = 128
ROWS = 512
BATCH_POINTS = 24
DEFAULT_PROTOCOL = Protocol()


def play(loops: Sequence[Loop]) -> list[LoopResult]:
    """Play every loop to its end, in the given order. Loops are independent; like-sized ones share their numpy arrays."""
    results: dict[int, LoopResult] = {}
    order = sorted(range(len(loops)), key=lambda i: loops[i].clients)
    for kind in (Apart, Beside):
        chosen = [i for i in order if (loops[i].prefill.workers == 0) is (kind is Beside)]
        for start in range(0, len(chosen), ROWS):
            block = chosen[start : start + ROWS]
            results.update(zip(block, kind([loops[i] for i in block]).run(), strict=True))
    return [results[i] for i in range(len(loops))]


def clients_for(concurrency: float) -> tuple[int, float]:
    """(clients, group): as many played clients as there are real ones, up to a limit above which each stands for several."""
    clients = int(min(max(round(concurrency), 1), MOST_CLIENTS))
    return clients, max(concurrency, 1.0) / clients


@dataclass(frozen=True, slots=True)
class ColocatedTest:
    """A load test of `workers` equal colocated workers, the clients spread evenly over them; mean lengths in tokens.

    `drafts` tokens are drafted and verified per step.
    """

    worker: Worker
    isl: float
    osl: float
    concurrency: float
    kv_bytes: float
    workers: int = 1
    protocol: Protocol = DEFAULT_PROTOCOL
    drafts: int = 0

    def loop(self, perf: PerfModel) -> Loop:
        """The step times of one worker and its share of the clients."""
        clients, group = clients_for(self.concurrency / self.workers)
        lengths, context = _lengths(self.isl, self.osl)
        batches, step = _decode_table(perf, self.worker, clients * group, context, self.drafts)
        rules = stepping(self.worker)
        costs = prompt_costs(perf, self.worker, lengths, batches, context)
        most = max(np.floor(rules.budget / lengths.isl[0]), 1.0)
        extra = costs.alone[0] - _steps(lengths, rules.budget) * step * (batches > 0) if rules.mixes else costs.alone[0]
        seconds = np.arange(clients + 1) * group
        return Loop(
            clients, group, self.osl, np.interp(seconds, batches, step),
            _room(self.worker, self.kv_bytes, self.isl, self.osl, group),
            PrefillStage(
                np.interp(seconds, batches, np.maximum(extra, costs.extra[0])),
                np.interp(seconds, batches, costs.extra[0] * most),
                most, 0, _steps(lengths, rules.budget), rules.mixes,
            ),
            replace(self.protocol, poll=self.protocol.poll * tokens_per_step(self.drafts)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DisaggregatedTest:
    """A load test of prefill workers that feed decode workers over a link that takes `transfer` seconds per prompt."""

    prefill: Worker
    decode: Worker
    isl: float
    osl: float
    concurrency: float
    kv_bytes: float
    prefill_workers: int = 1
    decode_workers: int = 1
    transfer: float = 0.0
    protocol: Protocol = DEFAULT_PROTOCOL
    drafts: int = 0

    def loop(self, perf: PerfModel) -> Loop:
        """The step times of both pools; the decode pool as one whose workers hold equal shares of the batch."""
        clients, group = clients_for(self.concurrency)
        lengths, context = _lengths(self.isl, self.osl)
        batches, step = _decode_table(perf, self.decode, self.concurrency / self.decode_workers, context, self.drafts)
        costs = prompt_costs(perf, self.prefill, lengths)
        most = max(np.floor(stepping(self.prefill).budget / lengths.isl[0]), 1.0)
        held = np.arange(clients + 1) * group / self.decode_workers
        flat = np.ones(clients + 1)
        return Loop(
            clients, group, self.osl, np.where(held > 0, np.interp(np.maximum(held, 1.0), batches, step), 0.0),
            _room(self.decode, self.kv_bytes * self.decode_workers, self.isl, self.osl, group, self.decode_workers),
            PrefillStage(
                flat * costs.alone[0, 0], flat * costs.packed[0, 0] * most, most, self.prefill_workers, 1.0, False, self.transfer
            ),
            self.protocol,
        )  # fmt: skip


def _lengths(isl: float, osl: float) -> tuple[Lengths, float]:
    """The mean request, and the mean context of a decode step."""
    return Lengths.fixed(max(isl, 1.0), osl), isl + osl / 2.0


def _decode_table(perf: PerfModel, worker: Worker, most: float, context: float, drafts: int) -> tuple[Array, Array]:
    """Batches from 0 to `most` and the seconds of a token at each; no batch, no step."""
    batches = np.unique(np.concatenate([[0.0, 1.0, 2.0, 4.0], np.geomspace(1.0, max(most, 1.0), BATCH_POINTS)]))
    seconds = np.maximum.accumulate(seconds_per_token(perf, worker, np.maximum(batches, 1.0), context, drafts))
    return batches, np.where(batches > 0, seconds, 0.0)


def _steps(lengths: Lengths, budget: float) -> float:
    """Engine steps that one prompt spans."""
    return float(np.ceil(lengths.isl[0] / budget))


def _room(worker: Worker, kv_bytes: float, isl: float, osl: float, group: float, workers: int = 1) -> int:
    """Played clients whose KV fits."""
    rules = stepping(worker)
    held = float(kv_taken(worker, isl, osl))
    return int(min(kv_bytes / max(held, 1.0), rules.sequences * workers) / group)
