"""What a reader has to say beside what it read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from diptych.engines.deployment import Deployment
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


def with_notes(deployment: Deployment, notes: Notes) -> Deployment:
    """The deployment with what its reader had to say, each thing once, after what it has already."""
    return replace(
        deployment,
        findings=tuple(dict.fromkeys((*deployment.findings, *notes.mistakes))),
        unknown=tuple(dict.fromkeys((*deployment.unknown, *notes.unknown))),
    )
