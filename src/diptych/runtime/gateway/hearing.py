"""What workers say of requests, as events of their attempts; what that tells of the workers themselves goes to the roster."""

from __future__ import annotations

import logging

from diptych.boundary.messages import Reason
from diptych.runtime.gateway.charges import refund
from diptych.runtime.gateway.open_answers import RETRY_AFTER_MS, OpenAnswers
from diptych.runtime.gateway.roster import Roster, Worker
from diptych.runtime.gateway.workforce import OfRequests
from diptych.runtime.messages import Ended, Failed, Handed, Tokens

log = logging.getLogger("diptych.gateway")


class Hearing:
    """`said` and `lost` are what the workforce calls."""

    def __init__(self, answers: OpenAnswers) -> None:
        self._answers, self._attempts, self._books = answers, answers.attempts, answers.books

    @property
    def _roster(self) -> Roster:
        return self._answers.roster

    def said(self, worker: Worker, message: OfRequests) -> None:
        match message:
            case Tokens():
                self._tokens(worker, message)
            case Ended():
                self._ended(worker, message)
            case Failed():
                self._failed(worker, message)
            case Handed():
                self._handed(worker, message)

    def lost(self, worker: Worker, why: str) -> None:
        """A worker that was up is gone, and all that was under way on it."""
        self._books.lost(worker, why)
        for answer in self._answers:
            if worker.name in (answer.source, answer.target):
                answer.lost_role = worker.role
                answer.avoid.add(worker.name)
            answer.charges = [each for each in answer.charges if each.worker != worker.name]
        self._answers.do(self._attempts.worker_lost(worker.name, self._answers.milliseconds()))

    def _tokens(self, worker: Worker, said: Tokens) -> None:
        self._cached(worker, said)
        if said.prompt and self._attempts.hears(worker.name, said.request, said.epoch):
            answer = self._answers.get(said.request)
            if answer is not None:
                answer.told.setdefault(worker.name, []).extend(said.prompt)
        place = said.request, said.epoch, said.index
        now = self._answers.milliseconds()
        self._answers.do(self._attempts.tokens(worker.name, *place, said.tokens, said.finish, now))

    def _ended(self, worker: Worker, said: Ended) -> None:
        worker.succeeded()
        self._cached(worker, said)
        answer = self._answers.get(said.request)
        if answer is not None and answer.epoch == said.epoch and said.reason == "handed":
            refund(answer, self._roster.workers, worker.name)
        now = self._answers.milliseconds()
        self._answers.do(self._attempts.ended(worker.name, said.request, said.epoch, said.reason, now))

    def _cached(self, worker: Worker, said: Tokens | Ended) -> None:
        """What of the prompt was in the cache of whoever computes it, counted once: said with its first token and at its end."""
        answer = self._answers.get(said.request)
        if answer is None or answer.epoch != said.epoch or answer.cached or not said.cached:
            return
        if worker.name == (answer.source or answer.target):
            answer.cached = min(said.cached, len(answer.prompt))
            self._books.cached(answer.cached)

    def _failed(self, worker: Worker, said: Failed) -> None:
        answer = self._answers.get(said.request)
        retry = said.retry
        if answer is not None and self._attempts.hears(worker.name, said.request, said.epoch):
            answer.lost_role = worker.role
            log.info("%s %s failed: %s %s", worker.role, worker.name, said.reason, said.detail)
            if said.reason == Reason.INCOMPATIBLE and answer.source:  # the pair's fault, and another way may do
                self._roster.part(self._roster[answer.source], self._roster[answer.target], said.detail)
                retry = True
            elif retry:
                answer.avoid.add(worker.name)
                worker.failed(self._answers.now())
        after, now = said.after_ms or RETRY_AFTER_MS, self._answers.milliseconds()
        self._answers.do(self._attempts.failed(worker.name, said.request, said.epoch, said.reason, retry, after, now))

    def _handed(self, worker: Worker, said: Handed) -> None:
        answer = self._answers.get(said.request)
        source = answer.source if answer is not None and answer.epoch == said.epoch else ""
        source = source or (said.source if said.source in self._roster.workers else "")
        self._books.handed(source, worker.name, said)
