"""The workers a gateway knows: what each said of itself, whether it is up, how much of it is taken, what was seen of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from diptych.boundary.contract import contract
from diptych.boundary.serial import from_msgpack
from diptych.errors import InvalidInput
from diptych.runtime.gateway.link import Link
from diptych.runtime.gateway.outlook import Speed
from diptych.runtime.gateway.prefix_index import PrefixIndex
from diptych.runtime.gateway.settings import Endpoint
from diptych.runtime.messages import Hello, Load, Ready

BENCH_AFTER, BENCH_SECONDS = 5, 2.0
"""So many failures in a row, and a worker is passed over for so long."""


class Condition(StrEnum):
    """What can be said of a worker."""

    CONNECTING = "connecting"
    UP = "up"
    DRAINING = "draining"
    DOWN = "down"
    REFUSED = "refused"  # another version, name, model or secret


@dataclass(slots=True)
class Worker:
    """One worker. `load` is the tokens routed to it and not done; `index` its place among all."""

    endpoint: Endpoint
    index: int
    condition: Condition = Condition.CONNECTING
    why: str = ""
    since: float = 0.0
    heard: float = 0.0
    moved: float = 0.0  # when its steps last advanced, or it was idle
    link: Link | None = None
    hello: Hello | None = None
    ready: Ready | None = None
    last: Load | None = None
    life: int | None = None
    load: int = 0
    ahead: int = 0  # prompt tokens sent and not answered
    streams: int = 0
    coming: int = 0  # those of them that have no first token yet
    failures: int = 0
    benched_until: float = 0.0
    restarts: int = 0
    output_rate: float = 0.0
    prompt_rate: float = 0.0
    speed: Speed = field(default_factory=Speed)
    prefixes: PrefixIndex = field(default_factory=lambda: PrefixIndex(1 << 16))

    @property
    def name(self) -> str:
        return self.endpoint.name

    @property
    def role(self) -> str:
        return self.endpoint.role

    @property
    def up(self) -> bool:
        return self.condition is Condition.UP

    def becomes(self, condition: Condition, now: float, why: str = "") -> None:
        if condition is not self.condition or why != self.why:
            self.condition, self.why, self.since = condition, why, now

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self, now: float) -> None:
        self.failures += 1
        if self.failures >= BENCH_AFTER:
            self.benched_until = now + BENCH_SECONDS

    def hears(self, said: Load, now: float) -> None:
        """A heartbeat: rates and proof of progress follow from the one before it."""
        before, age = self.last, now - self.heard
        if before is not None and age > 0:
            self.output_rate = _fading(self.output_rate, (said.output_tokens - before.output_tokens) / age)
            self.prompt_rate = _fading(self.prompt_rate, (said.prompt_tokens - before.prompt_tokens) / age)
        if before is None or said.steps != before.steps or not (said.running or said.queued):
            self.moved = now
        self.last, self.heard = said, now
        if said.draining and self.condition is Condition.UP:
            self.becomes(Condition.DRAINING, now)

    def forgets(self) -> None:
        """The connection is gone, and everything that was under way on it."""
        self.link = self.last = None
        self.load = self.ahead = self.streams = self.coming = 0
        self.output_rate = self.prompt_rate = 0.0


def _fading(old: float, new: float) -> float:
    return old + 0.3 * (max(new, 0.0) - old)


class Roster:
    """All workers, by name."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.workers = {each.name: Worker(each, place) for place, each in enumerate(endpoints)}
        self.pairs_refused: Counter[tuple[str, str, str]] = Counter()
        self._parted: dict[tuple[str, str], tuple[int | None, int | None, str]] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers.values())

    def __getitem__(self, name: str) -> Worker:
        return self.workers[name]

    def able(self, roles: tuple[str, ...], now: float, but: frozenset[str] = frozenset()) -> list[Worker]:
        """Workers of these roles that take requests; those in `but`, and failing ones, only when there are no others."""
        up = [each for each in self if each.role in roles and each.up]
        return (
            [each for each in up if each.name not in but and each.benched_until <= now]
            or [each for each in up if each.name not in but]
            or up
        )

    def fits(self, source: Worker, target: Worker) -> bool:
        """Whether the target may read what the source stores, by the boundary's contract."""
        assert source.ready is not None, source.name
        assert target.ready is not None, target.name
        why = _misfit(source.ready.state, target.ready.state)
        *lives, said = self._parted.get((source.name, target.name), (None, None, ""))
        if lives == [source.life, target.life]:
            why = why or said
        if why:
            self.pairs_refused[source.name, target.name, why] += 1
        return not why

    def part(self, source: Worker, target: Worker, why: str) -> None:
        """These two found that they do not fit; while both live they are not tried again."""
        self._parted[source.name, target.name] = source.life, target.life, why or "they refuse each other's KV"


@lru_cache(maxsize=1024)
def _misfit(produced: bytes, consumed: bytes) -> str:
    """Why KV of one state is nothing for the other; empty when it is, and when a worker says nothing of its state."""
    if not produced or not consumed:
        return ""
    try:
        found = contract(from_msgpack(produced).state, from_msgpack(consumed).state)
    except InvalidInput as error:
        return f"a state that cannot be read: {error}"[:300]
    return "" if found.is_usable else "; ".join(str(each) for each in found.reasons)[:300] or str(found.verdict)
