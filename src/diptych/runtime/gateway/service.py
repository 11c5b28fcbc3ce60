"""The gateway's middle: answers in, workers driven, tokens out. Attempts decide, the workforce speaks, the roster remembers.

One event loop's; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from diptych.runtime.gateway.answer import Answer
from diptych.runtime.gateway.asked import Asked, Model
from diptych.runtime.gateway.books import Books
from diptych.runtime.gateway.dispatch import Dispatch
from diptych.runtime.gateway.hearing import Hearing
from diptych.runtime.gateway.history import History
from diptych.runtime.gateway.mailbox import Mailbox
from diptych.runtime.gateway.meters import Meters, OfWorkers
from diptych.runtime.gateway.open_answers import OpenAnswers
from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.roster import Roster
from diptych.runtime.gateway.settings import Settings
from diptych.runtime.gateway.text import FileTokenizer, Tokenizer, ToyTokenizer
from diptych.runtime.gateway.workforce import Workforce

TICK = 0.05
LAST_WORDS = 1.0
"""Seconds for errors to reach clients before connections are closed."""


class Service:
    """Everything between the HTTP edge and the workers."""

    def __init__(self, settings: Settings, tokenizer: Tokenizer | None = None) -> None:
        self.settings = settings
        self.tokenizer = tokenizer or tokenizer_of(settings)
        self.roster = Roster(settings.workers)
        self.meters = Meters(settings.model)
        self.meters.registry.register(OfWorkers(self.roster, settings.model))
        if settings.alternative_usd is not None:
            self.meters.alternative.labels(settings.alternative_name).set(settings.alternative_usd)
        self.history = History(self)
        self.dispatch = Dispatch(settings, self.roster)
        books = Books(settings.model, self.meters, self.history)
        self.answers = OpenAnswers(settings, self.roster, self.dispatch, books, self.now)
        self.meters.open.set_function(lambda: len(self.answers))
        self.meters.held.set_function(lambda: self.answers.attempts.held)
        hearing = Hearing(self.answers)
        self.workforce = Workforce(settings, self.roster, self.now, hearing.said, hearing.lost)
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
        """Take nothing new; wait for what is open, and end what is open then with an error that says why."""
        self.draining = True
        await self._until_empty(seconds)
        self.answers.end_all("shutting_down", "this server stops before the answer is complete; ask again")
        await self._until_empty(LAST_WORDS)

    async def _until_empty(self, seconds: float) -> None:
        until = self.now() + seconds
        while self.answers and self.now() < until:
            await asyncio.sleep(TICK)

    async def _tick(self) -> None:
        before = self.now()
        while True:
            await asyncio.sleep(TICK)
            now = self.now()
            if now - before > self.settings.heartbeat_seconds:  # it was this process that stood still, not its workers
                self.workforce.excuse(now)
            before = now
            self.workforce.listen_for_silence(now)
            self.answers.tick()
            self.history.tick(now)

    def now(self) -> float:
        """The loop's clock."""
        return time.monotonic()

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, asked: Asked) -> list[Answer]:
        """Begin every answer of a request. Raises Refusal when it cannot be taken."""
        count = asked.n * len(asked.prompts)
        self._check_room(count)
        now = self.now()
        mailbox = Mailbox(self.settings.limits.unread_tokens * count)
        deadline = now + self.settings.limits.request_seconds
        answers = []
        for place, prompt in enumerate(asked.prompts):
            for turn in range(asked.n):
                choice, params = place * asked.n + turn, asked.params_of(turn)
                answers.append(
                    Answer(secrets.token_bytes(16), choice, prompt, params, asked.salt, mailbox, now, deadline)
                )
        for answer in answers:
            self.answers.begin(answer)
        return answers

    def _check_room(self, count: int) -> None:
        if self.draining:
            raise self._refusal(503, "draining", "this server is about to stop", 5.0)
        if len(self.answers) + count > self.settings.limits.requests:
            raise self._refusal(429, "too_many_requests", "too many requests are open; try again later", 1.0)

    def _refusal(self, status: int, code: str, message: str, after: float) -> Refusal:
        self.answers.books.refused(code)
        return Refusal(status, message, code, after=after)

    def close(self, answers: Iterable[Answer], why: str) -> None:
        """Nobody reads these any more."""
        for answer in answers:
            self.answers.close(answer, why)

    # --- what there is ----------------------------------------------------------------------------------------------

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

    def ledger(self) -> dict[str, int]:
        """What is open here; all zero at rest."""
        return {
            "attempts": self.answers.attempts.open,
            "held": self.answers.attempts.held,
            "answers": len(self.answers),
            "load": sum(each.load for each in self.roster),
            "ahead": sum(each.ahead for each in self.roster),
            "streams": sum(each.streams for each in self.roster),
            "coming": sum(each.coming for each in self.roster),
        }

    def stuck(self) -> list[str]:
        """Workers that have work and make no steps."""
        return self.workforce.stuck()

    @property
    def retries_refused(self) -> int:
        """Attempts not made for want of budget."""
        return self.dispatch.budget.refused


def tokenizer_of(settings: Settings) -> Tokenizer:
    """`toy`, or the folder of a checkpoint. Raises InvalidInput."""
    return ToyTokenizer() if settings.tokenizer == "toy" else FileTokenizer.load(Path(settings.tokenizer))
