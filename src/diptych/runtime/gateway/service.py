"""The gateway's middle: answers in, workers driven, tokens out. Attempts decide, the workforce speaks, the roster remembers.

One event loop's; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from diptych.boundary.messages import Reason
from diptych.runtime.gateway.answer import Answer, Charge
from diptych.runtime.gateway.asked import Asked, Model
from diptych.runtime.gateway.attempts import Attempts, Deed, Deliver, Finish, Note, Refuse, Route, Start, Stop
from diptych.runtime.gateway.dispatch import Dispatch, overlap
from diptych.runtime.gateway.history import History
from diptych.runtime.gateway.mailbox import Done, Given, Lost, Mailbox
from diptych.runtime.gateway.meters import Meters, OfWorkers
from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.roster import Roster, Worker
from diptych.runtime.gateway.settings import Settings
from diptych.runtime.gateway.text import FileTokenizer, Tokenizer, ToyTokenizer
from diptych.runtime.gateway.workforce import OfRequests, Workforce
from diptych.runtime.messages import (
    Cancel,
    Ended,
    Failed,
    Handed,
    Submit,
    Tokens,
)

log = logging.getLogger("diptych.gateway")

TICK = 0.05
RETRY_AFTER_MS = 20


class Service:
    """Everything between the HTTP edge and the workers."""

    def __init__(self, settings: Settings, tokenizer: Tokenizer | None = None) -> None:
        self.settings = settings
        self.tokenizer = tokenizer or tokenizer_of(settings)
        self.roster = Roster(settings.workers)
        self.meters = Meters(settings.model)
        self.meters.registry.register(OfWorkers(self.roster, settings.model))
        self.meters.open.set_function(lambda: len(self._answers))
        self.meters.held.set_function(lambda: self._attempts.held)
        self.history = History(self)
        self.dispatch = Dispatch(settings, self.roster)
        self._attempts = Attempts(self._route)
        self._answers: dict[bytes, Answer] = {}
        self.workforce = Workforce(settings, self.roster, self.now, self._said, self._lost)
        self._ticking: asyncio.Task[None] | None = None
        self.draining = False
        self.started = time.time()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to the workers."""
        self.workforce.start()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> None:
        """Leave: links close, workers see it and give everything back."""
        await self.workforce.stop()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Take nothing new; wait for what is open."""
        self.draining = True
        until = self.now() + seconds
        while self._answers and self.now() < until:
            await asyncio.sleep(0.05)

    @property
    def model(self) -> Model | None:
        """What is served, as the workers that are up say; None when there are none yet."""
        known = [each.ready for each in self.roster if each.ready is not None]
        if not known:
            return None
        vocabulary = min(each.vocabulary for each in known)
        telling = [each.ready for each in self.roster if each.ready is not None and each.role != "prefill"] or known
        context = min(min(each.max_context, each.blocks * each.block_tokens) for each in telling)
        return Model(self.settings.model, self.tokenizer, vocabulary, context)

    @property
    def is_ready(self) -> bool:
        """Whether a request could be served now."""
        able = {each.role for each in self.roster if each.up}
        return not self.draining and bool(able & {"colocated", "decode"} or (able and self._colocates()))

    def _colocates(self) -> bool:
        return "colocate" in (self.settings.prefill_loss, self.settings.decode_loss)

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, asked: Asked) -> list[Answer]:
        """Begin every answer of a request. Raises Refusal when it cannot be taken."""
        self._check_room(asked.n * len(asked.prompts))
        now = self.now()
        mailbox = Mailbox(self.settings.limits.unread_tokens)
        answers = []
        for place, prompt in enumerate(asked.prompts):
            for turn in range(asked.n):
                choice = place * asked.n + turn
                deadline = now + self.settings.limits.request_seconds
                params = asked.params_of(turn)
                answers.append(
                    Answer(secrets.token_bytes(16), choice, prompt, params, asked.salt, mailbox, now, deadline)
                )
        for answer in answers:
            self._begin(answer, now)
        return answers

    def _check_room(self, count: int) -> None:
        if self.draining:
            raise self._refusal(503, "draining", "this server is about to stop", 5.0)
        if len(self._answers) + count > self.settings.limits.requests:
            raise self._refusal(429, "too_many_requests", "too many requests are open; try again later", 1.0)

    def _refusal(self, status: int, code: str, message: str, after: float) -> Refusal:
        self.meters.refused.labels(code).inc()
        self.history.refused(code)
        return Refusal(status, message, code, after=after)

    def _begin(self, answer: Answer, now: float) -> None:
        self._answers[answer.id] = answer
        self.dispatch.budget.asked(now)
        meters = self.meters
        meters.prompt_tokens.inc(len(answer.prompt))
        meters.prompt_length.observe(len(answer.prompt))
        meters.max_tokens.observe(answer.params.max_tokens)
        deadline = round(answer.deadline * 1000)
        self._do(self._attempts.submit(answer.id, max(answer.params.max_tokens, 1), deadline, round(now * 1000)))

    def close(self, answers: Iterable[Answer], why: str) -> None:
        """Nobody reads these any more: what is still under way is stopped at both halves."""
        for answer in answers:
            if self._answers.pop(answer.id, None) is None:
                continue
            if not answer.ended:
                self._do(self._attempts.cancelled(answer.id))
                self._settle(answer, why)

    def finish_early(self, answer: Answer, reason: str) -> None:
        """The answer is complete by the gateway's own word: a stop string."""
        if not answer.ended:
            self._do(self._attempts.cancelled(answer.id))
            self._complete(answer, reason)

    def _settle(self, answer: Answer, why: str) -> None:
        answer.ended = True
        self._refund(answer)
        self.meters.cancelled.labels(why).inc()
        self.history.count("cancelled")

    # --- deeds ------------------------------------------------------------------------------------------------------

    def _do(self, deeds: list[Deed]) -> None:
        for deed in deeds:
            match deed:
                case Deliver():
                    self._deliver(deed)
                case Start():
                    self._send_half(deed)
                case Stop():
                    link = self.roster[deed.worker].link
                    if link is not None:
                        link.send(Cancel(deed.id, deed.epoch))
                case Finish():
                    self._complete(self._answers.get(deed.id), deed.reason)
                case Refuse():
                    self._refuse(deed)
                case Note():
                    self._note(deed)

    def _deliver(self, deed: Deliver) -> None:
        answer = self._answers.get(deed.id)
        if answer is None:
            return
        now, count = self.now(), len(deed.tokens)
        if answer.count:
            gap = (now - answer.last) / count
            for _ in range(count):
                self.meters.itl.observe(gap)
        else:
            self._first(answer, now)
        answer.last, answer.count = now, answer.count + count
        self.meters.output_tokens.inc(count)
        self.history.told += count
        if not answer.mailbox.put(Given(answer.choice, deed.tokens)):
            self._do(self._attempts.cancelled(answer.id))
            self._settle(answer, "slow reader")
            answer.mailbox.put(Lost(answer.choice, 408, "slow_reader", "the answer was not read fast enough"))

    def _first(self, answer: Answer, now: float) -> None:
        answer.first = now
        ttft = now - answer.began
        self.meters.ttft.observe(ttft)
        source = answer.source or answer.target
        if answer.ahead and source:
            self.roster[source].speed.per_token.add(ttft / answer.ahead)
        for charge in answer.charges:
            self.roster[charge.worker].ahead -= charge.ahead
            charge.ahead = 0

    def _complete(self, answer: Answer | None, reason: str) -> None:
        if answer is None:
            return
        now = self.now()
        answer.ended = True
        if answer.count > 1:
            tpot = (answer.last - answer.first) / (answer.count - 1)
            self.meters.tpot.observe(tpot)
            if answer.target:
                target = self.roster[answer.target]
                target.speed.step.add(target.streams, tpot)
        if answer.target:
            self.roster[answer.target].succeeded()
        self._refund(answer)
        self.dispatch.answer_seconds.add(now - answer.began)
        self.meters.e2e.observe(now - answer.began)
        self.meters.answer_length.observe(answer.count)
        self.meters.done.labels(self.settings.model, reason).inc()
        self.history.finished(answer, now)
        answer.mailbox.put(Done(answer.choice, reason))

    def _send_half(self, deed: Start) -> None:
        answer, worker = self._answers[deed.id], self.roster[deed.worker]
        if answer.epoch != deed.epoch:
            self._refund(answer)
            answer.epoch, answer.source, answer.target = deed.epoch, "", ""
        if not answer.count:
            answer.told.pop(deed.worker, None)
        if deed.half == "prefill":
            answer.source = deed.worker
        else:
            answer.target = deed.worker
        self._charge(answer, worker, deed.half)
        if worker.link is None or not worker.link.send(self._half(answer, deed)):
            asyncio.get_running_loop().call_soon(self._unsent, deed)

    def _half(self, answer: Answer, deed: Start) -> Submit:
        peer = self.roster[deed.peer].ready if deed.peer else None
        return Submit(
            request=deed.id,
            epoch=deed.epoch,
            half=deed.half,
            prompt=answer.prompt,
            params=answer.params,
            generated=self._attempts.given(deed.id),
            peer=deed.peer,
            peer_address=peer.address if peer else "",
            ownership=self.settings.ownership,
            wire=self.settings.wire,
            salt=answer.salt,
            lease_ms=round(self.settings.lease_seconds * 1000),
            deadline_ms=max(1, round((answer.deadline - self.now()) * 1000)),
        )

    def _unsent(self, deed: Start) -> None:
        now = round(self.now() * 1000)
        self._do(self._attempts.failed(deed.worker, deed.id, deed.epoch, "worker lost", True, RETRY_AFTER_MS, now))

    def _charge(self, answer: Answer, worker: Worker, half: str) -> None:
        prompt = max(1, answer.todo - overlap(worker, answer))
        load = prompt + (0 if half == "prefill" else min(answer.params.max_tokens, 1024))
        if half == "decode":
            load -= prompt
        charge = Charge(worker.name, load, 0 if half == "decode" else prompt, int(half != "prefill"))
        worker.load += charge.load
        worker.ahead += charge.ahead
        worker.streams += charge.stream
        answer.charges.append(charge)
        worker.prefixes.sent(answer.blocks)

    def _refund(self, answer: Answer, only: str = "") -> None:
        for charge in [each for each in answer.charges if not only or each.worker == only]:
            worker = self.roster[charge.worker]
            worker.load = max(0, worker.load - charge.load)
            worker.ahead = max(0, worker.ahead - charge.ahead)
            worker.streams = max(0, worker.streams - charge.stream)
            answer.charges.remove(charge)

    def _refuse(self, deed: Refuse) -> None:
        answer = self._answers.get(deed.id)
        if answer is None:
            return
        answer.ended = True
        self._refund(answer)
        status, code, message, after = answer.refused or _status(deed.reason)
        self.meters.refused.labels(code).inc()
        self.history.refused(code)
        answer.mailbox.put(Lost(answer.choice, status, code, message, after))

    def _note(self, deed: Note) -> None:
        answer = self._answers[deed.id]
        if deed.what == "route":
            self.meters.routes.labels(deed.why, answer.why).inc()
            self.history.routed(deed.why, answer.why)
        else:
            self.meters.fallbacks.labels(deed.why).inc()
            self.history.fell_back(deed.why)

    def _route(self, id: bytes, losses: int) -> Route:
        answer = self._answers[id]
        return self.dispatch.route(answer, losses, self._attempts.held, self.now())

    # --- what workers say ----------------------------------------------------------------------------------------------------

    def _lost(self, worker: Worker, why: str) -> None:
        self.meters.worker_losses.labels(worker.name, worker.role, why.partition(":")[0][:40]).inc()
        self.history.lost_worker(worker.name, why)
        for answer in self._answers.values():
            if worker.name in (answer.source, answer.target):
                answer.lost_role = worker.role
                answer.avoid.add(worker.name)
            answer.charges = [each for each in answer.charges if each.worker != worker.name]
        self._do(self._attempts.worker_lost(worker.name, round(self.now() * 1000)))

    def _said(self, worker: Worker, message: OfRequests) -> None:
        match message:
            case Tokens():
                self._tokens(worker, message)
            case Ended():
                self._ended(worker, message)
            case Failed():
                self._failed(worker, message)
            case Handed():
                self._handed(worker, message)

    def _tokens(self, worker: Worker, said: Tokens) -> None:
        if said.prompt and self._attempts.hears(worker.name, said.request, said.epoch):
            answer = self._answers.get(said.request)
            if answer is not None:
                answer.told.setdefault(worker.name, []).extend(said.prompt)
        now = round(self.now() * 1000)
        self._do(
            self._attempts.tokens(worker.name, said.request, said.epoch, said.index, said.tokens, said.finish, now)
        )

    def _ended(self, worker: Worker, said: Ended) -> None:
        worker.succeeded()
        answer = self._answers.get(said.request)
        if answer is not None and answer.epoch == said.epoch:
            if worker.name == (answer.source or answer.target):
                answer.cached = min(said.cached, len(answer.prompt))
                self.meters.cached_tokens.inc(answer.cached)
            if said.reason == "handed":
                self._refund(answer, worker.name)
        now = round(self.now() * 1000)
        self._do(self._attempts.ended(worker.name, said.request, said.epoch, said.reason, now))

    def _failed(self, worker: Worker, said: Failed) -> None:
        now = self.now()
        answer = self._answers.get(said.request)
        retry = said.retry
        if answer is not None and self._attempts.hears(worker.name, said.request, said.epoch):
            answer.lost_role = worker.role
            log.info("%s %s failed: %s %s", worker.role, worker.name, said.reason, said.detail)
            if said.reason == Reason.INCOMPATIBLE and answer.source:  # the pair's fault, and another way may do
                self.roster.part(self.roster[answer.source], self.roster[answer.target], said.detail)
                retry = True
            elif retry:
                answer.avoid.add(worker.name)
                worker.failed(now)
        after = said.after_ms or RETRY_AFTER_MS
        self._do(
            self._attempts.failed(worker.name, said.request, said.epoch, said.reason, retry, after, round(now * 1000))
        )

    def _handed(self, worker: Worker, said: Handed) -> None:
        answer = self._answers.get(said.request)
        source = answer.source if answer is not None and answer.epoch == said.epoch else ""
        source = source or (said.source if said.source in self.roster.workers else "")
        self.meters.transfer_seconds.labels(source, worker.name).observe(said.seconds)
        self.meters.transfer_bytes.labels(source, worker.name).inc(said.bytes)
        if said.converted:
            self.meters.conversions.labels(said.converted).inc()
            self.meters.convert_seconds.labels(said.converted).inc(said.convert_seconds)
        self.history.handed(source, worker.name, said)

    # --- time -------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        before = self.now()
        while True:
            await asyncio.sleep(TICK)
            now = self.now()
            if now - before > self.settings.heartbeat_seconds:  # it was this process that stood still, not its workers
                self.workforce.excuse(now)
            before = now
            self.workforce.listen_for_silence(now)
            self._do(self._attempts.tick(round(now * 1000)))
            self.history.tick(now)

    def ledger(self) -> dict[str, int]:
        """What is open here; all zero at rest."""
        return {
            "attempts": self._attempts.open,
            "held": self._attempts.held,
            "answers": len(self._answers),
            "load": sum(each.load for each in self.roster),
            "ahead": sum(each.ahead for each in self.roster),
            "streams": sum(each.streams for each in self.roster),
        }

    def now(self) -> float:
        """The loop's clock."""
        return time.monotonic()


_REASONS = {
    "deadline": (503, "deadline_exceeded", "the answer was not complete before its deadline", 1.0),
    "bad request": (400, "invalid_request", "the workers take no such request", 0.0),
    "too large": (400, "context_length_exceeded", "no worker has memory for this prompt and answer", 0.0),
    "too long": (400, "context_length_exceeded", "the prompt and answer are longer than the model's context", 0.0),
}


def _status(reason: str) -> tuple[int, str, str, float]:
    return _REASONS.get(reason) or (503, "worker_failed", f"a worker could not do this: {reason}"[:300], 1.0)


def tokenizer_of(settings: Settings) -> Tokenizer:
    """`toy`, or the folder of a checkpoint. Raises InvalidInput."""
    return ToyTokenizer() if settings.tokenizer == "toy" else FileTokenizer.load(Path(settings.tokenizer))
