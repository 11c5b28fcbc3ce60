"""A design: pools of workers and, when prefill and decode are apart, the boundary between them."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.design.axes import Role, Worker
from diptych.design.boundary import Boundary


@dataclass(frozen=True, slots=True)
class Member:
    """`count` equal workers of a pool and what one of them costs per hour."""

    worker: Worker
    count: int
    usd_per_hour: float = 0.0
    offer: str = ""


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one role. More than one member makes it a mixed pool."""

    role: Role
    members: tuple[Member, ...]

    @property
    def count(self) -> int:
        return sum(member.count for member in self.members)

    @property
    def accelerators(self) -> int:
        return sum(member.count * member.worker.accelerators for member in self.members)

    @property
    def usd_per_hour(self) -> float:
        return sum(member.count * member.usd_per_hour for member in self.members)


@dataclass(frozen=True, slots=True)
class Design:
    """One colocated pool, or a prefill and a decode pool with a boundary. Frozen and hashable."""

    pools: tuple[Pool, ...]
    boundary: Boundary | None = None

    def pool(self, role: Role) -> Pool | None:
        return next((pool for pool in self.pools if pool.role is role), None)

    @property
    def is_disaggregated(self) -> bool:
        return self.boundary is not None

    @property
    def is_heterogeneous(self) -> bool:
        """More than one accelerator among its workers."""
        return len({member.worker.accelerator.name for pool in self.pools for member in pool.members}) > 1

    @property
    def accelerators(self) -> int:
        return sum(pool.accelerators for pool in self.pools)

    @property
    def usd_per_hour(self) -> float:
        return sum(pool.usd_per_hour for pool in self.pools)
