"""What a reader has to say beside what it read."""

from __future__ import annotations

from dataclasses import dataclass, field

from diptych.errors import Finding


@dataclass(slots=True)
class Notes:
    """`mistakes` are what a program or an API server refuses or drops; `unknown` is what is decided outside the text."""

    mistakes: list[Finding] = field(default_factory=list)
    unknown: list[Finding] = field(default_factory=list)

    def mistake(self, where: str, problem: str, expected: str = "", hint: str = "") -> None:
        self.mistakes.append(Finding(where, problem, expected, hint))

    def not_known(self, where: str, problem: str, expected: str = "") -> None:
        self.unknown.append(Finding(where, problem, expected))
