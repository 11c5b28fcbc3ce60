"""Blocks that nobody wants and a connection may still read or write: given back when it says so, or when it was ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diptych.runtime.peer.peers import Peers
from diptych.runtime.worker.half import Key


@dataclass(slots=True)
class _Lingering:
    release: Callable[[], None]
    peer: str
    dialed: bool
    until: int


class Lingering:
    """Those of one worker. `stall_ms`: how long a connection may take before it is ended, which frees them."""

    def __init__(self, peers: Peers, stall_ms: int) -> None:
        self.peers, self.stall_ms = peers, stall_ms
        self._kept: dict[tuple[Key, bool], _Lingering] = {}

    @property
    def open(self) -> int:
        return len(self._kept)

    @property
    def written(self) -> int:
        """How many are written by connections that were accepted."""
        return sum(not dialed for _, dialed in self._kept)

    @property
    def read(self) -> int:
        """How many are read by connections that were dialed."""
        return sum(dialed for _, dialed in self._kept)

    def keep(self, key: Key, dialed: bool, peer: str, now: int, release: Callable[[], None]) -> None:
        """`release` is called once the connection has let them go."""
        self._kept[key, dialed] = _Lingering(release, peer, dialed, now + self.stall_ms)

    def let_go(self, key: Key, dialed: bool) -> None:
        """The connection has said so."""
        kept = self._kept.pop((key, dialed), None)
        if kept is not None:
            kept.release()

    def tick(self, now: int) -> None:
        """End connections that take too long."""
        for kept in self._kept.values():
            if kept.until <= now:
                kept.until = now + self.stall_ms
                self.peers.drop(kept.peer, kept.dialed)
