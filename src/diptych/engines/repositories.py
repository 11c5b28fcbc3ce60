"""The Hugging Face repository of a model of the catalog: what an engine is told to load."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from diptych.catalog.model import Model


def repository(model: Model) -> str:
    """'Qwen/Qwen3-32B' for Qwen3-32B; empty where none is known."""
    return _table().get(model.name, "")


@cache
def _table() -> dict[str, str]:
    text = (files("diptych.engines") / "data" / "repositories.csv").read_text(encoding="utf-8")
    return {row["model"]: row["repository"] for row in csv.DictReader(text.splitlines())}
