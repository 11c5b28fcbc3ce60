"""The table of public issues, and how one of its cases becomes a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from diptych.deploy.commands.read import read_pair
from diptych.deploy.read import read_deployment
from diptych.engines.deployment import Deployment, Expected, Router
from diptych.engines.engine import Launcher, version
from diptych.engines.role import RoleConfig

FOLDER = Path(__file__).parents[1] / "data" / "public_issues"


def issues() -> list[dict[str, Any]]:
    """Every issue of the table, file by file."""
    return [
        issue for path in sorted(FOLDER.glob("*.yaml")) for issue in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]


def cases() -> list[tuple[str, Mapping[str, Any]]]:
    """Every case with a name of its own."""
    return [
        (f"{issue['issue']}: {case.get('name', 'as it was')}", case)
        for issue in issues()
        for case in issue.get("cases", ())
    ]


def deployment(case: Mapping[str, Any]) -> Deployment:
    """A case's commands or manifest read, with what they do not say: accelerators, hosts, releases, the router, the workload."""
    read = read_pair([case["prefill"]], [case["decode"]]) if "prefill" in case else read_deployment(case["file"])
    assert not read.findings, read.findings
    launcher = Launcher(case["launcher"]) if "launcher" in case else read.launcher
    roles = tuple(_role(role, side, case, launcher) for side, role in enumerate(read.roles))
    router = Router(**case["router"]) if "router" in case else read.router
    return replace(read, roles=roles, router=router, launcher=launcher, expected=Expected(**case.get("expected", {})))


def _role(role: RoleConfig, side: int, case: Mapping[str, Any], launcher: Launcher) -> RoleConfig:
    said: dict[str, Any] = {"launcher": launcher}
    for name, field in (("gpus", "gpu"), ("nodes", "node")):
        if name in case:
            said[field] = case[name][side]
    if "versions" in case:
        said["version"] = version(case["versions"][side])
    return replace(role, **said)
