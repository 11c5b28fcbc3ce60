"""Paths for KV and collectives: α + bytes/β(size), per direction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from diptych.catalog.provenance import Provenance


class LinkKind(StrEnum):
    """What carries the bytes."""

    SCALEUP = "scaleup"  # NVLink, xGMI, ICI: inside one server or domain
    INFINIBAND = "infiniband"
    ROCE = "roce"
    TCP = "tcp"
    PCIE = "pcie"
    HOST_STAGED = "host-staged"  # device → host → wire → host → device


@dataclass(frozen=True, slots=True)
class Link:
    """A directed path with latency `alpha` (s), peak `bandwidth` (bytes/s) and a saturation size (bytes).

    β(size) = bandwidth · efficiency · size / (size + half_size): half of the achievable rate is reached at `half_size`.
    So the time is α + half_size/β∞ + bytes/β∞: an affine function whose constant grows with the link's inertia.
    `per_piece` is the fixed cost of each descriptor posted (s).
    """

    name: str
    kind: LinkKind
    bandwidth: float
    alpha: float
    efficiency: float = 1.0
    half_size: float = 0.0
    per_piece: float = 0.0
    same_server: bool = False
    provenance: Provenance | None = None
    notes: str = ""

    @property
    def achievable(self) -> float:
        """Bytes/s of one direction at large sizes."""
        return self.bandwidth * self.efficiency

    def seconds(self, size: Any, pieces: Any = 0) -> Any:
        """Seconds to move `size` bytes (scalar or array) alone on the link, posted as `pieces` descriptors."""
        import numpy as np  # a command that only looks a link up does not wait for it

        size = np.asarray(size, dtype=float)
        return self.alpha + (size + self.half_size) / self.achievable + self.per_piece * np.asarray(pieces, dtype=float)
