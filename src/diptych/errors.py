"""What can go wrong, drawn once.

```
DiptychError
├── InvalidInput             a user's mistake: every finding at once, each with its place     (exit 2)
│   ├── InvalidCatalog
│   ├── InvalidTrace
│   └── InvalidDesign
├── NoFeasibleDesign         nothing meets the request: what each rule dropped, the nearest miss (exit 1)
└── Unsupported              a target cannot express this choice                               (exit 1)
```

An expected refusal is a return value, a broken law is an `assert` with its numbers; neither is in this tree.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: where it is, what is wrong, what was expected, and what to do about it."""

    where: str
    problem: str
    expected: str = ""
    hint: str = ""

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.problem}" if self.where else self.problem]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.hint and self.hint != f"known: {self.expected}":
            parts.append(self.hint)
        return "; ".join(parts)


class DiptychError(Exception):
    """The base of every error that diptych raises on purpose."""


class InvalidInput(DiptychError):
    """A user's mistake. Carries every finding, so that one round of corrections is enough."""

    def __init__(self, findings: Iterable[Finding] | Finding) -> None:
        self.findings: tuple[Finding, ...] = (findings,) if isinstance(findings, Finding) else tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


class InvalidCatalog(InvalidInput):
    """An accelerator, link, model or price row that cannot be used."""


class InvalidTrace(InvalidInput):
    """A request trace that cannot be read or makes no sense."""


class InvalidDesign(InvalidInput):
    """A design, or a choice on one of its axes, that breaks a rule."""


class NoFeasibleDesign(DiptychError):
    """No design meets the request. `dropped` counts the designs by rule; `nearest` says how close it came."""

    def __init__(self, reason: str, dropped: Mapping[str, int] | None = None, nearest: str = "") -> None:
        self.reason = reason
        self.dropped = dict(dropped or {})
        self.nearest = nearest
        super().__init__(f"{reason}; {nearest}" if nearest else reason)


class Unsupported(DiptychError):
    """A target cannot express this choice; the message names the choice and the nearest expressible one."""


def did_you_mean(name: str, known: Sequence[str], limit: int = 3) -> str:
    """A hint naming the closest known names, or all of them when they are few.

    >>> did_you_mean("H10", ["H100", "A100", "L4"])
    'did you mean H100?'
    """
    folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=limit, cutoff=0.6)
    if close:
        return f"did you mean {', '.join(folded[match] for match in close)}?"
    if len(known) <= 20:
        return f"known: {', '.join(known)}"
    return f"{len(known)} names are known"
