"""One fact on which two sides differ, or on which nobody can say whether they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Weight(StrEnum):
    """What a difference does to a handoff."""

    IDENTITY = "identity"  # another state: no step makes one from the other
    TRANSFORMABLE = "transformable"  # a step makes one from the other
    UNTRANSFORMABLE = "untransformable"  # a representation that no step changes
    UNVERIFIED = "unverified"  # one side or both do not say: taken as equal, and told


@dataclass(frozen=True, slots=True)
class Difference:
    """`where` is the field of the state ('identity.position.theta'); the two values as resolved; `why` in one sentence."""

    where: str
    produced: str
    consumed: str
    weight: Weight
    why: str = ""

    def __str__(self) -> str:
        said = f"{self.where}: {self.produced} → {self.consumed} ({self.weight})"
        return f"{said}: {self.why}" if self.why else said


def compared(where: str, produced: Any, consumed: Any, unknown: Any = None) -> Iterator[Difference]:
    """Nothing when both sides say the same; unverified when one says `unknown`; else another identity."""
    if unknown in (produced, consumed):
        both = "neither side says" if produced == consumed else "one side does not say"
        yield Difference(where, shown(produced, unknown), shown(consumed, unknown), Weight.UNVERIFIED, both)
    elif produced != consumed:
        yield Difference(where, shown(produced), shown(consumed), Weight.IDENTITY)


def shown(value: Any, unknown: Any = None) -> str:
    """A value for people: unknown, none or itself, cut to a line."""
    if value == unknown:
        return "unknown"
    text = "none" if value == "" else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def pair(show: Callable[[T], str], produced: T, consumed: T) -> tuple[str, str]:
    """Both sides' values in the same words."""
    return show(produced), show(consumed)
