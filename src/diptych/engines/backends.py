"""Which attention backend two accelerators can share, since vLLM hashes its name and picks another one by generation."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Model
from diptych.design.capability import CUSTOM, family


@dataclass(frozen=True, slots=True)
class Backend:
    """An attention backend of vLLM: the KV formats it reads on each family of accelerator, and the multiple of its blocks."""

    name: str
    block: int
    reads: frozenset[tuple[str, Dtype]]

    def runs(self, accelerator: Accelerator, kv: Dtype) -> bool:
        """Whether it reads `kv` there. A user's own accelerator is assumed to be of the newest family."""
        mine = family(accelerator)
        return ("blackwell" if mine == CUSTOM else mine, kv) in self.reads


def shared_backend(model: Model, *sides: tuple[Accelerator, Dtype]) -> Backend | None:
    """The first backend, in vLLM's order, that every (accelerator, KV format) runs; None when there is none."""
    is_mla = any(attention.is_mla for _, attention in model.attention_groups())
    candidates = backends("mla" if is_mla else "gqa")
    return next((backend for backend in candidates if all(backend.runs(*side) for side in sides)), None)


@cache
def backends(attention: str) -> tuple[Backend, ...]:
    """The backends of 'gqa' (and MHA) or 'mla' attention, preferred first."""
    found: dict[str, Backend] = {}
    for row in _rows():
        if row["attention"] != attention:
            continue
        reads = {(name, Dtype(kv)) for name in row["families"].split(";") for kv in row["kv"].split(";")}
        known = found.get(row["backend"])
        reads |= known.reads if known else set()
        found[row["backend"]] = Backend(row["backend"], int(row["block"]), frozenset(reads))
    return tuple(found.values())


@cache
def _rows() -> tuple[dict[str, str], ...]:
    text = (files("diptych.engines") / "data" / "backends.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
