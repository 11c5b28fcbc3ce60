"""A rule of a prefill/decode pair: what must hold, what happens otherwise, and how it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from diptych.engines.engine import EVERY, Engine, Versions

if TYPE_CHECKING:
    from diptych.engines.resolve import Joint


class Severity(StrEnum):
    """What the real stack does when a rule is broken, worst for the operator first."""

    SILENT = "silently wrong output"
    REQUEST = "fails each request while pods look healthy"
    STARTUP = "fails at start-up"
    LEAK = "leaks or hangs"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Clash:
    """One place where a rule is broken: the two values as resolved, where each was set, and what to change.

    `prefill` and `decode` are what the engine will do, not the flag's spelling; one is empty when the other alone is at fault.
    `severity` stands for the rule's own where the outcome depends on the values. `is_spurious`: the engine refuses what would be
    compatible, by comparing spellings.
    """

    prefill: str
    decode: str
    change: str
    places: tuple[str, ...] = ()
    detail: str = ""
    severity: Severity | None = None
    is_spurious: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `message` is what the engine itself says, to be found in its logs; `source` is where that is known from."""

    id: str
    engine: Engine | None
    severity: Severity
    sentence: str
    source: str
    check: Callable[[Joint], Iterable[Clash]]
    versions: Versions = EVERY
    message: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule and one clash that breaks it. `severity` may be milder than the rule's: a spurious refusal of what is compatible."""

    rule: Rule
    clash: Clash
    severity: Severity


@dataclass(frozen=True, slots=True)
class Remark:
    """Something fine that looks wrong, and how to satisfy the engine's own comparison where it refuses it all the same."""

    prefill: str
    decode: str
    sentence: str
    change: str = ""
    places: tuple[str, ...] = ()
