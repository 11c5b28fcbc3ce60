"""Tiers in which KV may reside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from diptych.catalog.provenance import Provenance


class TierKind(StrEnum):
    """Where KV resides, nearest first."""

    HBM = "hbm"
    DRAM = "dram"
    NVME = "nvme"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class MemoryTier:
    """A tier's capacity (bytes per worker) and bandwidth to the accelerator (bytes/s), read and write.

    HBM's capacity and bandwidth are the accelerator's own and are left at 0 here. `usd_per_gb_hour` prices what is kept.
    """

    name: str
    kind: TierKind
    capacity: float
    read_bandwidth: float
    write_bandwidth: float
    latency: float = 0.0
    usd_per_gb_hour: float = 0.0
    provenance: Provenance | None = None
