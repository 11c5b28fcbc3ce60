"""Models that are named by a folder of this machine: read from its config.json, as the catalog does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from diptych.catalog.hf_config import read_hf_config
from diptych.catalog.model import Model
from diptych.engines.deployment import Deployment
from diptych.engines.role import RoleConfig
from diptych.errors import InvalidInput

LOCAL = ("127.0.0.1", "localhost", "::1")


def with_folders(deployment: Deployment, loopback_only: bool = False) -> Deployment:
    """The deployment with the models of its folders. A server of another machine names a folder of its own: not looked at."""
    models = dict(deployment.models)
    for role in deployment.roles:
        if role.model not in models and not (loopback_only and role.host not in LOCAL):
            found = _model(role)
            if found is not None:
                models[role.model] = found
    return replace(deployment, models=models)


def _model(role: RoleConfig) -> Model | None:
    if not role.model.startswith(("/", ".", "~")):
        return None
    try:
        folder = Path(role.model).expanduser()
        return read_hf_config(folder, folder.name) if (folder / "config.json").is_file() else None
    except (InvalidInput, OSError, RuntimeError, ValueError):
        return None
