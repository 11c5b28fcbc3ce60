"""How published disaggregated runs were laid out, where their result table does not say.

The counts come from the run's own configuration (data/README.md), never from what was measured.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from math import log

from diptych.design.axes import Parallelism

Key = tuple[str, str, str, int, int]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Workers of both roles, whether drafts were verified, and whether this was the largest concurrency of its server.

    The largest is run first, on a server that has just started.
    """

    concurrency: int
    largest: bool
    mtp: bool
    prefill_workers: int
    prefill: Parallelism
    decode_workers: int
    decode: Parallelism

    def drafts(self, concurrency: float) -> int:
        """Tokens drafted per step: three where few sequences share a rank, one where many do (as the recipes have it)."""
        ranks = self.decode_workers * self.decode.dp
        return 0 if not self.mtp else 3 if concurrency / ranks <= 48 else 1


def recipes(key: Key, concurrency: float, prefill: int, decode: int) -> tuple[Recipe, ...]:
    """The recipes of (accelerator, engine, precision, isl, osl) at the nearest concurrency whose workers have these sizes.

    A size of 0 fits any. Nearest is by ratio; within a factor of two, else there is none.
    """
    fitting = [
        recipe
        for recipe in _all().get(key, ())
        if prefill in (0, recipe.prefill.accelerators) and decode in (0, recipe.decode.accelerators)
    ]
    if not fitting:
        return ()
    away = min(_away(recipe, concurrency) for recipe in fitting)
    return tuple(recipe for recipe in fitting if _away(recipe, concurrency) == away) if away <= log(2) else ()


def _away(recipe: Recipe, concurrency: float) -> float:
    return abs(log(recipe.concurrency / concurrency))


def layout(text: str) -> Parallelism:
    """Ranks of 'tp8', 'tep8', 'dep8' or 'dp8'.

    >>> layout("dep8")
    Parallelism(tp=1, pp=1, ep=8, dp=8)
    """
    match = re.fullmatch(r"(tp|tep|dep|dp)(\d+)", text)
    assert match, f"unknown layout {text!r}"
    kind, size = match[1], int(match[2])
    tp, dp = (1, size) if kind in ("dep", "dp") else (size, 1)
    return Parallelism(tp, 1, size if "ep" in kind else 1, dp)


@lru_cache(maxsize=1)
def _all() -> Mapping[Key, tuple[Recipe, ...]]:
    text = files("diptych.planner").joinpath("data/inferencex_recipes.csv").read_text(encoding="utf-8")
    found: dict[Key, list[Recipe]] = {}
    for row in csv.DictReader(text.splitlines()):
        key = (row["accelerator"], row["engine"], row["precision"], int(row["isl"]), int(row["osl"]))
        found.setdefault(key, []).append(_recipe(row))
    return {key: tuple(items) for key, items in found.items()}


def _recipe(row: Mapping[str, str]) -> Recipe:
    return Recipe(
        int(row["concurrency"]), row["largest_of_its_server"] == "yes", row["mtp"] == "yes",
        int(row["prefill_workers"]), layout(row["prefill_layout"]),
        int(row["decode_workers"]), layout(row["decode_layout"]),
    )  # fmt: skip
