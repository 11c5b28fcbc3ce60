"""A prefill and a decode by their settings, for tests of rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Expected, Router
from diptych.engines.engine import Engine, Launcher
from diptych.engines.resolve import Joint
from diptych.engines.role import EnvValue, RoleConfig
from diptych.engines.rule import Clash, Rule

CATALOG = Catalog.load()


def role(side: Role, engine: Engine, launcher: Launcher = Launcher.PLAIN, **settings: Any) -> RoleConfig:
    """One role; `env` is given as plain text, and its model where none is named is Qwen3-32B."""
    env = {name: EnvValue(text) for name, text in settings.pop("env", {}).items()}
    return RoleConfig(side, engine, launcher=launcher, env=env, **{"model": "Qwen/Qwen3-32B", **settings})


def pair(
    engine: Engine,
    prefill: Mapping[str, Any] | None = None,
    decode: Mapping[str, Any] | None = None,
    *,
    model: str | None = "Qwen3-32B",
    gpus: tuple[str | None, str | None] = (None, None),
    launcher: Launcher = Launcher.PLAIN,
    router: Router | None = None,
    others: tuple[RoleConfig, ...] = (),
    **expected: float,
) -> Joint:
    """Two roles that meet; what differs from both being alike is all that is said."""
    roles = (
        role(Role.PREFILL, engine, launcher, **(prefill or {})),
        role(Role.DECODE, engine, launcher, **(decode or {})),
    )
    deployment = Deployment((*roles, *others), router, launcher, expected=Expected(**expected))
    sides = [None if name is None else CATALOG.accelerator(name) for name in gpus]
    return Joint(*roles, deployment, None if model is None else CATALOG.model(model), *sides)


def clashes(rules: tuple[Rule, ...], id: str, joint: Joint) -> list[Clash]:
    """What one rule of a table finds at a pair."""
    return [clash for rule in rules if rule.id == id for clash in rule.check(joint)]
