"""Stage tables by worker and role, each built once, and bounds on the workers a role needs at a rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from diptych.design.axes import Role, Worker
from diptych.perf.estimate import Array
from diptych.perf.queueing import wait
from diptych.planner.ask import Ask
from diptych.planner.delay import Delay, no_wait
from diptych.planner.enumerate import Candidate, RoleSpace
from diptych.planner.floors import Floors
from diptych.planner.rushes import Steps
from diptych.planner.size import fewest, fluid
from diptych.planner.stages import ColocatedStage, DecodeStage, Load, PrefillStage, answer_seconds


@dataclass
class Tables:
    """Stage tables by worker, each built once, and the counts they need at a rate."""

    ask: Ask
    load: Load
    floors: Floors
    prefill: dict[Worker, PrefillStage] = field(default_factory=dict)
    decode: dict[Worker, DecodeStage] = field(default_factory=dict)
    colocated: dict[Worker, ColocatedStage] = field(default_factory=dict)
    _least: dict[tuple[Role, Worker, float], int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, ask: Ask, spaces: Mapping[Role, RoleSpace] | None = None) -> Tables:
        """Empty tables; with the candidates known, each stage knows what the fastest of the others leaves it of an e2e limit."""
        tiers = {tier.kind: tier for tier in ask.catalog.tiers.values()}
        load = Load(ask.lengths, ask.slo, Steps.of(ask.workload.arrivals, ask.size_for, ask.rate), tiers)
        floors = Floors.of(ask.model, load, ask.perf)
        if ask.slo.of("e2e") and spaces is not None:
            load = replace(load, quickest=_quickest(floors, spaces))
        return cls(ask, load, floors)

    def prefill_stage(self, worker: Worker) -> PrefillStage:
        if worker not in self.prefill:
            self.prefill[worker] = PrefillStage(self.ask.perf, worker, self.load)
        return self.prefill[worker]

    def decode_stage(self, worker: Worker) -> DecodeStage:
        if worker not in self.decode:
            self.decode[worker] = DecodeStage(self.ask.perf, worker, self.load)
        return self.decode[worker]

    def colocated_stage(self, worker: Worker) -> ColocatedStage:
        if worker not in self.colocated:
            self.colocated[worker] = ColocatedStage(self.ask.perf, worker, self.load)
        return self.colocated[worker]

    def stage(self, role: Role, worker: Worker) -> PrefillStage | DecodeStage | ColocatedStage:
        """The table of one role and worker."""
        if role is Role.PREFILL:
            return self.prefill_stage(worker)
        return self.decode_stage(worker) if role is Role.DECODE else self.colocated_stage(worker)

    def least(self, role: Role, worker: Worker, rate: float) -> int | None:
        """The fewest workers that keep the role's promises at `rate` alone."""
        key = (role, worker, rate)
        if key not in self._least:
            self._least[key] = self.stage(role, worker).least(rate)
        return self._least[key]

    def alike(self, candidate: Candidate) -> tuple[object, ...]:
        """What the bill, a handoff and the rules on pairs see of a candidate."""
        worker = candidate.worker
        formats = worker.precision if self.ask.stock else worker.precision.kv
        return (
            candidate.offer, worker.accelerator.name, formats, worker.parallelism, worker.engine, worker.max_batch,
            worker.max_batched_tokens, worker.residency,
        )  # fmt: skip

    def floor(self, role: Role, worker: Worker, rate: float) -> int | None:
        """A count no larger than `least`, from the data sheet alone; None when the data sheet already rules the worker out."""
        slo, floors = self.load.slo, self.floors
        if role is not Role.PREFILL and any(floors.lone_step(worker) > goal.limit for goal in slo.of("tpot")):
            return None
        if role is Role.PREFILL and any(
            goal.quantile is not None
            and float(self.load.lengths.weight @ (floors.prefill_seconds(worker) <= goal.limit)) < goal.quantile - 1e-9
            for goal in slo.of("ttft")
        ):
            return None
        if not self._in_time(role, worker):
            return None
        if role is Role.PREFILL:
            return fluid(rate, floors.prefill_capacity(worker))
        return max(fluid(rate * factor, capacity) for factor, capacity in floors.decode_capacities(worker, role))

    def _in_time(self, role: Role, worker: Worker) -> bool:
        """Whether the floors of a worker, beside the fastest of the other role, leave an end-to-end limit possible."""
        load, (prompt, step) = self.load, self.load.quickest
        if not load.slo.of("e2e"):
            return True
        prompt = self.floors.prefill_seconds(worker) if role is not Role.DECODE else prompt
        step = self.floors.lone_step(worker) if role is not Role.PREFILL else step
        alone = Delay(prompt + answer_seconds(load, step), load.lengths.weight, no_wait(), no_wait())
        return all(bool(alone.keeps(goal.quantile, goal.limit) >= -1e-9) for goal in load.slo.of("e2e"))

    def queued_floor(self, worker: Worker, rate: float) -> int | None:
        """A count no larger than a colocated pool's `least`: its queue with the floor's service, equal for all, is no longer."""
        floors, load = self.floors, self.load
        sure, weight = floors.prefill_seconds(worker), load.lengths.weight
        service = load.lengths.mean(sure)

        def keeps(workers: Array) -> Any:
            rates = load.steps.lowest(rate, workers)
            queue = wait(rates, workers, service, 0.0, load.cv2, load.steps.lasting)
            delay = Delay(np.broadcast_to(sure, (*queue.prob.shape, len(sure))), weight, queue, no_wait(), load.steps)
            met = [delay.keeps(goal.quantile, goal.limit) >= 0 for goal in load.slo.of("ttft")]
            return np.logical_and.reduce([rates[0] / workers * service < 1, *met])

        return fewest(keeps, self.floor(Role.COLOCATED, worker, rate) or 1)


def _quickest(floors: Floors, spaces: Mapping[Role, RoleSpace]) -> tuple[Array | float, float]:
    """Seconds below which no prefill candidate computes a prompt, by length point, and no decode candidate makes a token."""
    prompts = [floors.prefill_seconds(worker) for worker in spaces[Role.PREFILL].workers]
    steps = [floors.lone_step(worker) for worker in spaces[Role.DECODE].workers]
    return np.min(prompts, axis=0) if prompts else 0.0, min(steps, default=0.0)
