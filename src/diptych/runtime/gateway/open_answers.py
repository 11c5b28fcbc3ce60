"""Every answer that somebody waits for: deeds of its attempts are done to workers and told to its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from diptych.runtime.gateway.answer import Answer
from diptych.runtime.gateway.attempts import Attempts, Deed, Deliver, Finish, Note, Refuse, Route, Start, Stop
from diptych.runtime.gateway.books import Books
from diptych.runtime.gateway.charges import begun, charge, refund
from diptych.runtime.gateway.dispatch import Dispatch
from diptych.runtime.gateway.mailbox import Done, Given, Lost
from diptych.runtime.gateway.refusal import sentence
from diptych.runtime.gateway.roster import Roster
from diptych.runtime.gateway.settings import Settings
from diptych.runtime.messages import Cancel, Submit

RETRY_AFTER_MS = 20


@dataclass(slots=True)
class OpenAnswers:
    """`do` carries out what `attempts` decide. `now` is the loop's clock in seconds."""

    settings: Settings
    roster: Roster
    dispatch: Dispatch
    books: Books
    now: Callable[[], float]
    attempts: Attempts = field(init=False)
    _open: dict[bytes, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attempts = Attempts(self._route)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._open.values())

    def get(self, id: bytes) -> Answer | None:
        return self._open.get(id)

    def milliseconds(self) -> int:
        """The clock of `attempts`."""
        return round(self.now() * 1000)

    def begin(self, answer: Answer) -> None:
        """A client asks."""
        self._open[answer.id] = answer
        self.dispatch.budget.asked(self.now())
        self.books.asked(answer)
        limit, deadline = max(answer.params.max_tokens, 1), round(answer.deadline * 1000)
        self.do(self.attempts.submit(answer.id, limit, deadline, self.milliseconds()))

    def close(self, answer: Answer, why: str) -> None:
        """Nobody reads it any more: what is still under way is stopped at both halves."""
        if self._open.pop(answer.id, None) is not None and not answer.ended:
            self._give_up(answer, why)

    def finish_early(self, answer: Answer, reason: str) -> None:
        """It is complete by the gateway's own word: a stop string."""
        if not answer.ended:
            self.do(self.attempts.cancelled(answer.id))
            self._complete(answer, reason)

    def end_all(self, code: str, message: str) -> None:
        """This process goes: whoever still waits is told so."""
        for answer in [each for each in self if not each.ended]:
            self._give_up(answer, code)
            answer.mailbox.put(Lost(answer.choice, 503, code, message, 1.0))

    def tick(self) -> None:
        """Deadlines, and held requests that try again."""
        self.do(self.attempts.tick(self.milliseconds()))

    # --- deeds ------------------------------------------------------------------------------------------------------

    def do(self, deeds: list[Deed]) -> None:
        for deed in deeds:
            answer = self._open.get(deed.id)
            match deed:
                case Stop():
                    self._stop(deed)
                case _ if answer is None:
                    pass
                case Deliver():
                    self._deliver(answer, deed)
                case Start():
                    self._start(answer, deed)
                case Finish():
                    self._complete(answer, deed.reason)
                case Refuse():
                    self._refuse(answer, deed)
                case Note():
                    self._note(answer, deed)

    def _route(self, id: bytes, losses: int) -> Route:
        return self.dispatch.route(self._open[id], losses, self.attempts.held, self.now())

    def _deliver(self, answer: Answer, deed: Deliver) -> None:
        now, count = self.now(), len(deed.tokens)
        self.books.told(answer, count, now)
        if not answer.count:
            answer.first = now
            self.books.began(answer)
            self.dispatch.began(answer)
            begun(answer, self.roster.workers)
        answer.last, answer.count = now, answer.count + count
        if not answer.mailbox.put(Given(answer.choice, deed.tokens)):
            self._give_up(answer, "slow reader")
            answer.mailbox.put(Lost(answer.choice, 408, "slow_reader", "the answer was not read fast enough"))

    def _start(self, answer: Answer, deed: Start) -> None:
        worker = self.roster[deed.worker]
        if answer.epoch != deed.epoch:
            refund(answer, self.roster.workers)
            answer.epoch, answer.source, answer.target = deed.epoch, "", ""
        if not answer.count:
            answer.told.pop(deed.worker, None)
        if deed.half == "prefill":
            answer.source = deed.worker
        else:
            answer.target = deed.worker
        charge(answer, worker, deed.half)
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
            generated=self.attempts.given(deed.id),
            peer=deed.peer,
            peer_address=peer.address if peer else "",
            ownership=self.settings.ownership,
            wire=self.settings.wire,
            salt=answer.salt,
            lease_ms=round(self.settings.lease_seconds * 1000),
            deadline_ms=max(1, round((answer.deadline - self.now()) * 1000)),
        )

    def _unsent(self, deed: Start) -> None:
        now = self.milliseconds()
        self.do(self.attempts.failed(deed.worker, deed.id, deed.epoch, "worker lost", True, RETRY_AFTER_MS, now))

    def _stop(self, deed: Stop) -> None:
        link = self.roster[deed.worker].link
        if link is not None:
            link.send(Cancel(deed.id, deed.epoch))

    def _complete(self, answer: Answer, reason: str) -> None:
        now = self.now()
        answer.ended = True
        self.dispatch.finished(answer, now)
        refund(answer, self.roster.workers)
        self.books.finished(answer, reason, now)
        answer.mailbox.put(Done(answer.choice, reason))

    def _give_up(self, answer: Answer, why: str) -> None:
        self.do(self.attempts.cancelled(answer.id))
        answer.ended = True
        refund(answer, self.roster.workers)
        self.books.cancelled(why)

    def _refuse(self, answer: Answer, deed: Refuse) -> None:
        answer.ended = True
        refund(answer, self.roster.workers)
        status, code, message, after = answer.refused or sentence(deed.reason)
        self.books.refused(code)
        answer.mailbox.put(Lost(answer.choice, status, code, message, after))

    def _note(self, answer: Answer, deed: Note) -> None:
        if deed.what == "route":
            self.books.routed(deed.why, answer.why)
        else:
            self.books.fell_back(deed.why)
