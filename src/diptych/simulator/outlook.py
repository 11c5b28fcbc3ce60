"""What a gateway can foresee for one request from what it knows: queues ahead, step tables, the path. For early rejection."""

from __future__ import annotations

from diptych.serving.admission import Admission
from diptych.simulator.clock import PS
from diptych.simulator.cluster import Cluster
from diptych.simulator.request import Request
from diptych.simulator.worker import VirtualWorker


class PredictedOutlook:
    """Satisfies `serving.admission.Outlook` for a request whose workers are chosen."""

    def __init__(self, cluster: Cluster, request: Request, now: int) -> None:
        self.cluster, self.request, self.now = cluster, request, now

    def admitted(self, rule: Admission) -> bool:
        """Whether `rule` takes the request."""
        target = self.request.target
        decoding = target.batch + len(target.ready) + len(target.asking)
        first = self.request.source or target
        ahead = len(first.waiting) + len(first.partial)
        return rule.admits(self, decoding, ahead, self.ttft())

    def ttft(self) -> float:
        """Seconds: prompts ahead at the pace of full steps, its own prompt alone, its KV alone on the path."""
        request = self.request
        worker: VirtualWorker = request.source or request.target
        table = worker.table
        per_token = (
            table.prompt_ps(worker.rules.budget, worker.rules.budget * worker.rules.budget) / worker.rules.budget
        )
        own = table.prompt_ps(
            min(request.todo, worker.rules.budget), request.todo * min(request.todo, worker.rules.budget)
        )
        own = own * max(1, -(-request.todo // worker.rules.budget))
        total = worker.load * per_token * worker.pace + own
        if request.source is not None:
            route, crossing = self.cluster.between(request.source, request.target)
            if request.todo >= len(crossing.bytes):
                crossing.grow(request.todo)
            total += crossing.fixed[request.todo] + crossing.bytes[request.todo] * PS / route.limit
        return total / PS

    def tpot(self, batch: float) -> float:
        """Seconds of a decode step with `batch` sequences of the running ones' mean context."""
        target: VirtualWorker = self.request.target
        mean = target.context / target.batch if target.batch else self.request.todo + 1
        size = max(1, round(batch))
        return target.table.decode_ps(size, int(mean * size)) / PS
