"""Typed reads from a loose JSON object: every mistake becomes a finding, none stops the reading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.errors import Finding

MAX_COUNT = 10**9
"""No width, vocabulary or layer count comes near; a larger number is a slip of the pen."""


@dataclass(slots=True)
class Fields:
    """Reads one mapping found at `where`; `findings` collects what is missing or wrong.

    A field may be spelled in several ways (`hidden_size`, `n_embd`): the first spelling present is read.
    """

    raw: Mapping[str, Any]
    where: str
    findings: list[Finding] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        return any(self.raw.get(name) is not None for name in names)

    def count(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; a required one when there is no default."""
        for name in names:
            value = self.raw.get(name)
            if value is not None:
                return self._whole(name, value, minimum)
        if default is None:
            spelled = " or ".join(names)
            self.findings.append(Finding(self.where, f"{spelled} is missing", "a whole number"))
            return minimum or 1
        return default

    def _whole(self, name: str, value: Any, minimum: int) -> int:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and value == int(value) and minimum <= value <= MAX_COUNT:
            return int(value)
        expected = f"a whole number from {minimum} to {MAX_COUNT:.0e}"
        self.findings.append(Finding(self.where, f"{name} is {value!r}", expected))
        return minimum or 1

    def number(self, name: str, default: float) -> float:
        """A finite positive number."""
        value = self.raw.get(name)
        if value is None:
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            return float(value)
        self.findings.append(Finding(self.where, f"{name} is {value!r}", "a positive number"))
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        return default if value is None else bool(value)

    def text(self, *names: str, default: str = "") -> str:
        for name in names:
            value = self.raw.get(name)
            if isinstance(value, str):
                return value
        return default

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.raw.get(name)
        return value if isinstance(value, Mapping) else {}

    def indices(self, name: str, length: int) -> frozenset[int]:
        """Layer numbers below `length`; none when absent."""
        value = self.raw.get(name)
        if value is None:
            return frozenset()
        if isinstance(value, list) and all(type(index) is int and 0 <= index < length for index in value):
            return frozenset(value)
        self.findings.append(
            Finding(self.where, f"{name} is {value!r}", f"a list of layer numbers from 0 to {length - 1}")
        )
        return frozenset()

    def sequence(self, name: str, length: int) -> list[Any] | None:
        """A list of at least `length` entries, cut to it (trailing entries describe MTP layers); None when absent."""
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, list) and len(value) >= length:
            return value[:length]
        found = f"has {len(value)} entries" if isinstance(value, list) else f"is {type(value).__name__}"
        self.findings.append(Finding(self.where, f"{name} {found}", f"a list of {length}, one per layer"))
        return None
