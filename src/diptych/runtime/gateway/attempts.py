"""One request, as many attempts as it takes: which workers have it, what the client has been given, and what comes next.

A pure object: events in, deeds out. Every attempt has an epoch, and only the workers of the current one are listened to, so two
workers that both believe a request is theirs cannot both reach the client. Tokens carry their place in the answer: what the
client has is passed over, and a new attempt begins behind it.

| state   | means                                                     |
|---------|-----------------------------------------------------------|
| HELD    | no worker can take it; `tick` tries again                 |
| APART   | prefill at `source`, the answer from `target`             |
| WHOLE   | one worker, `target`, does both                           |

One that has ended, with everything said or with an error, is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from diptych.runtime.messages import Chosen
from diptych.serving.fallback import Way


class State(Enum):
    """Where a request is."""

    HELD = auto()
    APART = auto()
    WHOLE = auto()


@dataclass(frozen=True, slots=True)
class Deed:
    """The base: about one request."""

    id: bytes


@dataclass(frozen=True, slots=True)
class Start(Deed):
    """Give a worker its half ('whole', 'prefill' or 'decode') under an epoch; `peer` has the other one."""

    epoch: int
    worker: str
    half: str
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Stop(Deed):
    """Tell a worker that its half, under this epoch and all older ones, is wanted no more."""

    epoch: int
    worker: str


@dataclass(frozen=True, slots=True)
class Deliver(Deed):
    """Give the client these tokens; they follow what it has."""

    tokens: tuple[Chosen, ...]


@dataclass(frozen=True, slots=True)
class Finish(Deed):
    """The answer is complete: 'stop' or 'length'."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse(Deed):
    """The client gets an error instead of the rest. `after_ms` is when to try again, 0 if that is pointless."""

    reason: str
    after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Note(Deed):
    """Something to count: 'route' with the way taken, 'fallback' with the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Route:
    """Two workers, or one for both halves."""

    way: Way
    source: str = ""
    target: str = ""


Router = Callable[[bytes, int], Route]
"""The way for a request lost so many times, with its workers; `Way.HOLD` and `Way.REFUSE` name none."""


@dataclass(slots=True)
class _Request:
    limit: int
    deadline: int
    epoch: int = 0
    state: State = State.HELD
    source: str = ""
    target: str = ""
    losses: int = 0
    retry_at: int = 0
    first_of_target: int = 0
    given: list[int] = field(default_factory=list)


class Attempts:
    """Every request that a client waits for. `hold_ms` is how long one waits before another try at finding workers."""

    def __init__(self, router: Router, hold_ms: int = 50) -> None:
        self._router, self._hold = router, hold_ms
        self._open: dict[bytes, _Request] = {}

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def held(self) -> int:
        return sum(each.state is State.HELD for each in self._open.values())

    def given(self, id: bytes) -> tuple[int, ...]:
        """The tokens that the client has."""
        return tuple(self._open[id].given) if id in self._open else ()

    def workers(self, id: bytes) -> tuple[str, str]:
        """Source and target of the current attempt; the same twice when one does both."""
        request = self._open.get(id)
        return (request.source, request.target) if request else ("", "")

    def hears(self, worker: str, id: bytes, epoch: int) -> bool:
        """Whether what this worker says under this epoch counts."""
        return self._current(worker, id, epoch) is not None

    # --- events -----------------------------------------------------------------------------------------------------

    def submit(self, id: bytes, limit: int, deadline: int, now: int) -> list[Deed]:
        """A client's request: at most `limit` tokens, an answer by `deadline`."""
        self._open[id] = _Request(limit, deadline)
        return self._attempt(id, now, "new")

    def tokens(
        self, worker: str, id: bytes, epoch: int, index: int, tokens: tuple[Chosen, ...], finish: str, now: int
    ) -> list[Deed]:
        """Tokens from a worker of the current attempt; `finish` is 'stop' or 'length' with an answer's last ones.

        What the client has is passed over. A gap ends the attempt.
        """
        request = self._current(worker, id, epoch)
        if request is None:
            return []
        have = len(request.given)
        if index > have:
            return self._lost(id, request, "tokens are missing", now)
        fresh = tokens[have - index :]
        request.given += [each.token for each in fresh]
        deeds: list[Deed] = [Deliver(id, fresh)] if fresh else []
        if len(request.given) >= request.limit:
            finish = finish or "length"  # prefill's one token may be all that was asked for
        elif not finish or index + len(tokens) < len(request.given):
            return deeds
        del self._open[id]
        return [*deeds, *self._stops(id, request, but=worker), Finish(id, finish)]

    def ended(self, worker: str, id: bytes, epoch: int, reason: str, now: int) -> list[Deed]:
        """A half is done. Prefill's changes nothing; an answer's comes after its last tokens, or they were lost."""
        request = self._current(worker, id, epoch)
        if request is None or reason == "handed":
            return []
        return self._lost(id, request, "tokens are missing", now)

    def failed(
        self, worker: str, id: bytes, epoch: int, reason: str, retry: bool, after_ms: int, now: int
    ) -> list[Deed]:
        """A half failed, and its worker holds nothing of it. What cannot succeed elsewhere is refused at once."""
        request = self._current(worker, id, epoch)
        if request is None:
            return []
        if not retry:
            del self._open[id]
            return [*self._stops(id, request, but=worker), Refuse(id, reason)]
        request.retry_at = now + after_ms
        return self._lost(id, request, reason, now, but=worker)

    def worker_lost(self, worker: str, now: int) -> list[Deed]:
        """A worker is gone. A source that had handed everything over is not missed: its target goes on."""
        deeds: list[Deed] = []
        for id, request in list(self._open.items()):
            if worker == request.target or (worker == request.source and not self._is_past_source(request)):
                deeds += self._lost(id, request, "worker lost", now, but=worker)
        return deeds

    def cancelled(self, id: bytes) -> list[Deed]:
        """The client is gone."""
        request = self._open.pop(id, None)
        return [] if request is None else self._stops(id, request)

    def tick(self, now: int) -> list[Deed]:
        """Requests past their deadline, and held ones whose time to try has come."""
        deeds: list[Deed] = []
        for id, request in list(self._open.items()):
            if request.deadline <= now:
                del self._open[id]
                deeds += [*self._stops(id, request), Refuse(id, "deadline")]
            elif request.state is State.HELD and request.retry_at <= now:
                deeds += self._attempt(id, now, "held")
        return deeds

    # --- within -----------------------------------------------------------------------------------------------------

    def _current(self, worker: str, id: bytes, epoch: int) -> _Request | None:
        request = self._open.get(id)
        if request is None or request.epoch != epoch or request.state is State.HELD:
            return None
        return request if worker in (request.source, request.target) else None

    def _is_past_source(self, request: _Request) -> bool:
        """Whether the target has begun to answer: it said more than the one token that prefill chose."""
        return request.state is State.APART and len(request.given) > request.first_of_target

    def _lost(self, id: bytes, request: _Request, why: str, now: int, but: str = "") -> list[Deed]:
        """This attempt is over; begin another, with what the client has as part of the context."""
        deeds = [*self._stops(id, request, but), Note(id, "fallback", why)]
        request.losses += 1
        request.state, request.source, request.target = State.HELD, "", ""
        return deeds + self._attempt(id, now, why)

    def _attempt(self, id: bytes, now: int, why: str) -> list[Deed]:
        request = self._open[id]
        if request.retry_at > now:
            return []
        route = self._router(id, request.losses)
        if route.way is Way.REFUSE:
            del self._open[id]
            return [Refuse(id, why)]
        if route.way is Way.HOLD:
            request.retry_at = now + self._hold
            return []
        request.epoch += 1
        request.source, request.target = route.source, route.target
        noted = Note(id, "route", str(route.way))
        if route.way is not Way.APART:
            request.state = State.WHOLE
            return [noted, Start(id, request.epoch, route.target, "whole")]
        request.state, request.first_of_target = State.APART, len(request.given) + 1
        return [
            noted,
            Start(id, request.epoch, route.target, "decode", route.source),
            Start(id, request.epoch, route.source, "prefill", route.target),
        ]

    def _stops(self, id: bytes, request: _Request, but: str = "") -> list[Deed]:
        names = dict.fromkeys(name for name in (request.target, request.source) if name and name != but)
        return [Stop(id, request.epoch, name) for name in names]
