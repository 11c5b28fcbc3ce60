"""A planned design on what this machine has: its roles, precisions and ownership, with fewer workers and a nearer precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.cli.plan_inputs import Reader
from diptych.cli.target_inputs import read_target
from diptych.design.design import Design, Pool
from diptych.errors import InvalidInput
from diptych.runtime.launch.machine import Machine

_KV = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class Stand:
    """A design as pools of this machine, in the words of `--prefill`, with what was changed."""

    pools: Mapping[str, str]
    ownership: str = ""
    notes: tuple[str, ...] = ()


def stand_in(run: str, toy: bool, named: bool) -> Stand:
    """The design of a plan, an earlier run or a file, cut to this machine. `named`: whether a model was given for it.

    Raises:
        InvalidInput: there is no design, or none that can be read.
    """
    reader = Reader({}, lambda text: None, None)
    target = read_target(reader, run, Catalog.load(), None, None)
    if target is None or reader.findings:
        raise InvalidInput(reader.findings)
    device = "cuda" if Path("/dev/nvidia0").exists() else "cpu"
    return of_design(target.design, Machine.here(), device, toy, named)


def of_design(design: Design, machine: Machine, device: str, toy: bool, named: bool) -> Stand:
    """The stand-in for a design."""
    counts = cut({str(pool.role): pool.count for pool in design.pools}, max(len(design.pools), machine.cores))
    pools, notes = {}, []
    if not named:
        model = design.pools[0].members[0].worker.model.name
        notes.append(f"the demo model stands in for {model}; --model serves a checkpoint of yours")
    for pool in design.pools:
        role = str(pool.role)
        pools[role], changed = _pool(pool, counts[role], device, toy)
        notes.append(f"{role}: {pool.count} × {pool.members[0].worker.label} is {pools[role]} here" + changed)
    return Stand(pools, str(design.boundary.ownership) if design.boundary else "", tuple(notes))


def cut(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """Counts in about the same proportion, at least one each, no more than `most` together.

    >>> cut({"prefill": 3, "decode": 5}, 4), cut({"prefill": 1, "decode": 1}, 8)
    ({'prefill': 1, 'decode': 3}, {'prefill': 1, 'decode': 1})
    """
    kept = dict(counts)
    while sum(kept.values()) > most and any(count > 1 for count in kept.values()):
        shrinks = max((name for name in kept if kept[name] > 1), key=lambda name: kept[name] / counts[name])
        kept[shrinks] -= 1
    return kept


def _pool(pool: Pool, count: int, device: str, toy: bool) -> tuple[str, str]:
    """The pool's text, and what of its precision became something else."""
    precision = pool.members[0].worker.precision
    weights, kv = nearest_weights(precision.weights), nearest_kv(precision.kv)
    if toy:
        return f"{count} x cpu", ""
    changed = [
        f"{what} {wanted} as {got}"
        for what, wanted, got in (("weights", precision.weights, weights), ("KV", precision.kv, kv))
        if str(wanted) != got
    ]
    return f"{count} x {device}:{weights}, kv={kv}", f" ({', '.join(changed)})" if changed else ""


def nearest_weights(wanted: Dtype) -> str:
    """The weights of this engine that come nearest: as wide, or the narrowest it has."""
    return "fp32" if wanted.bytes > 2 else "bf16" if wanted.bytes > 1 else "int8"


def nearest_kv(wanted: Dtype) -> str:
    """The KV format of this engine that comes nearest."""
    return _KV.get(str(wanted)) or ("fp32" if wanted.bytes > 2 else "bf16" if wanted.bytes > 1 else "int8")


def given_of(given: Mapping[str, Any], stand: Stand) -> dict[str, Any]:
    """The flags, with the design's ownership where none was given."""
    return {**given, "ownership": given.get("ownership") or stand.ownership or None}
