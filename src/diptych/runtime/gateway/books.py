"""What is counted of answers, for Prometheus and for the page at once."""

from __future__ import annotations

from diptych.runtime.gateway.answer import Answer
from diptych.runtime.gateway.history import History
from diptych.runtime.gateway.meters import Meters
from diptych.runtime.gateway.roster import Worker
from diptych.runtime.messages import Handed


class Books:
    """Both, kept together: what one says the other does."""

    def __init__(self, model: str, meters: Meters, history: History) -> None:
        self._model, self.meters, self.history = model, meters, history

    def asked(self, answer: Answer) -> None:
        meters = self.meters
        meters.prompt_tokens.inc(len(answer.prompt))
        meters.prompt_length.observe(len(answer.prompt))
        meters.max_tokens.observe(answer.params.max_tokens)

    def began(self, answer: Answer) -> None:
        self.meters.ttft.observe(answer.first - answer.began)

    def told(self, answer: Answer, count: int, now: float) -> None:
        """`count` more tokens are given to the client, the first ones or behind those before."""
        if answer.count:
            gap = (now - answer.last) / count
            for _ in range(count):
                self.meters.itl.observe(gap)
        self.meters.output_tokens.inc(count)
        self.history.told += count

    def finished(self, answer: Answer, reason: str, now: float) -> None:
        meters = self.meters
        if answer.count > 1:
            meters.tpot.observe(answer.tpot)
        meters.e2e.observe(now - answer.began)
        meters.answer_length.observe(answer.count)
        meters.done.labels(self._model, reason).inc()
        self.history.finished(answer, now)

    def cached(self, tokens: int) -> None:
        self.meters.cached_tokens.inc(tokens)

    def cancelled(self, why: str) -> None:
        self.meters.cancelled.labels(why).inc()
        self.history.count("cancelled")

    def refused(self, code: str) -> None:
        self.meters.refused.labels(code).inc()
        self.history.refused(code)

    def routed(self, path: str, why: str) -> None:
        self.meters.routes.labels(path, why).inc()
        self.history.routed(path, why)

    def fell_back(self, why: str) -> None:
        self.meters.fallbacks.labels(why).inc()
        self.history.fell_back(why)

    def lost(self, worker: Worker, why: str) -> None:
        self.meters.worker_losses.labels(worker.name, worker.role, why.partition(":")[0][:40]).inc()
        self.history.lost_worker(worker.name, why)

    def handed(self, source: str, target: str, said: Handed) -> None:
        self.meters.transfer_seconds.labels(source, target).observe(said.seconds)
        self.meters.transfer_bytes.labels(source, target).inc(said.bytes)
        if said.converted:
            self.meters.conversions.labels(said.converted).inc()
            self.meters.convert_seconds.labels(said.converted).inc(said.convert_seconds)
        self.history.handed(source, target, said)
