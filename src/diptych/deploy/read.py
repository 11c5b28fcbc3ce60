"""Others' files as deployments: the reader is chosen by what is in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from diptych.deploy.commands.read import leaders, named_roles, read_script, roles_of_router
from diptych.deploy.commands.roles import Reading
from diptych.deploy.manifests.read import UNDERSTOOD, read_documents
from diptych.deploy.safe_yaml import MAX_BYTES, Node, load_text, read_text
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment
from diptych.engines.engine import Launcher
from diptych.errors import Finding, InvalidInput

_YAML = (".yaml", ".yml", ".json")
_SHELL = (".sh", ".bash", ".txt")


def read_deployment(source: Path | str, name: str = "", base: Path | None = None) -> Deployment:
    """A manifest, values file, compose file or shell script as a deployment.

    A `Path` is a file, and files that it names are looked for in its folder; a `str` is the text itself, called `name` in places,
    which may name files only below a `base` that is given. Raises InvalidInput with what was found and what is understood.
    """
    if isinstance(source, Path):
        text, name, base = read_text(source), name or str(source), source.parent
    else:
        text, name = source, name or "text"
        if len(text) > MAX_BYTES:
            raise InvalidInput(Finding(name, f"{len(text):,} characters", f"at most {MAX_BYTES:,}"))
    if not text.strip():
        raise InvalidInput(Finding(name, "empty", UNDERSTOOD))
    documents = _documents(text, name)
    if documents is None:
        return read_script(text, name, base)
    return replace(read_documents(documents, name, Reading(None, base)), source=name)


def together(parts: Sequence[Deployment]) -> Deployment:
    """Several files of one deployment, such as a script for each role and one for the router, as one."""
    router = next((part.router for part in parts if part.router is not None), None)
    read = [role for part in parts for role in part.roles]
    nameless = [replace(role, name="") if role.name == Role.COLOCATED else role for role in read]  # it may be told yet
    roles = named_roles(leaders(roles_of_router(nameless, router)))
    launcher = next((part.launcher for part in parts if part.launcher is not Launcher.PLAIN), Launcher.PLAIN)
    return Deployment(
        tuple(roles),
        router,
        launcher,
        ", ".join(part.source for part in parts),
        findings=tuple(finding for part in parts for finding in part.findings),
        unknown=tuple(finding for part in parts for finding in part.unknown),
    )


def _documents(text: str, name: str) -> list[Node] | None:
    """The YAML documents of a text; None where it is a script: by its name, its first line, or because it is no mapping."""
    suffix = Path(name).suffix.casefold()
    if suffix in _SHELL or text.startswith("#!"):
        return None
    if suffix in _YAML or re.search(
        r"^(apiVersion|kind|services|servingEngineSpec|modelArtifacts)\s*:", text, re.MULTILINE
    ):
        return load_text(text, name)
    try:
        documents = load_text(text, name)
    except InvalidInput:
        return None
    return documents if any(isinstance(each.value, dict) for each in documents) else None
