"""The requests of a trace one by one, to be replayed: when each came, how long it was, which prefix blocks it had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diptych.errors import Finding, InvalidTrace
from diptych.workload.formats import detect
from diptych.workload.load import is_described, locate
from diptych.workload.presets import SOURCES
from diptych.workload.reuse import block_size
from diptych.workload.stage import Progress
from diptych.workload.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Requests in order, each array of shape (n,). `arrival` is s from the first one, None where the file has no times;
    `blocks` are each prompt's prefix hashes, of `block_tokens` tokens, None where the file has none."""

    name: str
    source: str
    isl: NDArray[np.int64]
    osl: NDArray[np.int64]
    arrival: NDArray[np.float64] | None
    blocks: tuple[tuple[int, ...], ...] | None
    block_tokens: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.isl)


def is_trace(spec: str, columns: Mapping[str, str] | None = None) -> bool:
    """Whether `spec` names a file of requests, rather than a description of a workload."""
    if is_described(spec):
        return False
    path, name, _ = locate(spec)
    return bool(detect(path, name, columns).isl)


def read_replay(
    spec: str,
    *,
    columns: Mapping[str, str] | None = None,
    sort: bool = False,
    drop_empty: bool = False,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Every request of the trace that `spec` names; about 24 bytes of memory each, and 80 per prefix block.

    Raises `InvalidTrace` with every finding; requests without tokens are a finding unless the format means failures by them
    or `drop_empty` leaves them out.
    """
    path, name, _ = locate(spec, say)
    with Trace(path, name, columns, sort=sort, drop_empty=drop_empty, progress=progress) as trace:
        arrival, isl, osl, blocks = trace.rows()
        source, dropped = f"{SOURCES.get(name, name)}, read as {trace.layout.format}", trace.dropped
    if arrival is not None:
        arrival = arrival - arrival[0]
    if (isl < 1).any() or (osl < 1).any():
        raise InvalidTrace(Finding(name, "requests without tokens", "at least one in and one out", "--drop-empty"))
    counts = np.array([len(hashes) for hashes in blocks], np.int64) if blocks is not None else np.zeros(1, np.int64)
    tokens = block_size(counts, isl.astype(float)) if counts.any() else 0
    notes = (f"{dropped:,} requests without tokens left out",) if dropped else ()
    return Replay(name, source, isl, osl, arrival, blocks if counts.any() else None, tokens, notes)
