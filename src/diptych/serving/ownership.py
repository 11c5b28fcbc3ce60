"""Who owns KV in transit, and how long: leases renewed while the other side is heard, and epochs that fence the late.

A source pins its blocks under a lease. The target renews it by heartbeats; when they stop, the lease runs out and the source may
free. Defaults are vLLM's NIXL connector: 30 s, a heartbeat every 5 s. Times are whatever unit the driver counts in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Heartbeats(StrEnum):
    """From when on a target renews the lease of what it will pull."""

    ENQUEUE = "enqueue"  # once the request is in its queue
    ADMISSION = "admission"  # once it has reserved blocks: a long queue outlives the lease


@dataclass(frozen=True, slots=True)
class Lease:
    """A right to read blocks of one epoch until a time."""

    epoch: int
    until: int


class Leases:
    """The leases that one side has granted, by what they are on. At most one is live per key: a newer epoch replaces it."""

    __slots__ = ("held", "term")

    def __init__(self, term: int) -> None:
        self.term = term
        self.held: dict[Any, Lease] = {}

    def grant(self, key: Any, epoch: int, now: int) -> Lease:
        """A lease from now on. Raises nothing: the highest epoch wins, and an older one gets back the lease that stands."""
        standing = self.held.get(key)
        if standing is not None and standing.epoch > epoch:
            return standing
        lease = self.held[key] = Lease(epoch, now + self.term)
        return lease

    def valid(self, key: Any, epoch: int, now: int) -> bool:
        """Whether a read under this epoch is allowed now."""
        lease = self.held.get(key)
        return lease is not None and lease.epoch == epoch and now < lease.until

    def renew(self, key: Any, epoch: int, now: int) -> bool:
        """A heartbeat: extend a live lease; False when it has run out or belongs to another epoch."""
        if not self.valid(key, epoch, now):
            return False
        self.held[key] = Lease(epoch, now + self.term)
        return True

    def end(self, key: Any, epoch: int) -> bool:
        """Give a lease up; False when it was not this epoch's."""
        lease = self.held.get(key)
        if lease is None or lease.epoch != epoch:
            return False
        del self.held[key]
        return True

    def expired(self, now: int) -> list[Any]:
        """Keys whose lease has run out, in the order they were granted. All are looked at: renewals break any order by time."""
        return [key for key, lease in self.held.items() if lease.until <= now]
