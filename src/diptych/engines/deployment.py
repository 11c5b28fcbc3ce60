"""What is deployed together: roles, what routes between them, and the pairs that may meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.catalog.model import Model
from diptych.design.axes import Role
from diptych.engines.engine import Launcher
from diptych.engines.role import RoleConfig
from diptych.errors import Finding


@dataclass(frozen=True, slots=True)
class Router:
    """What sits before the roles, as it was told to run: its kind ('dynamo.frontend', 'vllm-router', 'epp', ...) and settings."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a rule may need of the workload: tokens of prompts and outputs. None is unknown, and such a rule says nothing."""

    prompt_p50: float | None = None
    prompt_max: float | None = None
    output_p50: float | None = None
    output_p90: float | None = None
    admission_wait: float | None = None  # seconds from the end of prefill to decode's admission, at worst


UNKNOWN = Expected()


@dataclass(frozen=True, slots=True)
class Deployment:
    """Roles that may serve one request together. Every prefill may meet every decode, as routers pair them.

    `findings` are what its reader knows that a program refuses or drops: an unknown flag, a field outside the schema. `unknown`
    are settings that are decided outside of what was read. `models` are those that the catalog does not have, by the name a role
    says.
    """

    roles: tuple[RoleConfig, ...]
    router: Router | None = None
    launcher: Launcher = Launcher.PLAIN
    source: str = ""
    expected: Expected = UNKNOWN
    findings: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    models: Mapping[str, Model] = field(default_factory=dict)

    def of(self, role: Role) -> tuple[RoleConfig, ...]:
        return tuple(config for config in self.roles if config.role is role)

    def pairs(self) -> Iterator[tuple[RoleConfig, RoleConfig]]:
        """Each prefill with each decode that may receive from it."""
        for prefill in self.of(Role.PREFILL):
            for decode in self.of(Role.DECODE):
                yield prefill, decode
