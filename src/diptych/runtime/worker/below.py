"""What lies below a worker's device memory: the tiers of its configuration, as its blocks use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diptych.boundary import serial
from diptych.runtime.engine import Engine
from diptych.runtime.memory import KVMemory
from diptych.runtime.messages import Tier
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.peers import Tls
from diptych.runtime.residency.dram import Dram
from diptych.runtime.residency.nvme import Nvme
from diptych.runtime.residency.place import Place
from diptych.runtime.residency.remote import Remote, dial
from diptych.runtime.residency.tiers import Level, Tiers
from diptych.runtime.worker.config import TierConfig


class Below:
    """`LowerTiers`: a block of every layer together is one block of a tier."""

    def __init__(self, tiers: Tiers, memory: KVMemory) -> None:
        self._tiers, self._memory = tiers, memory

    def on_evict(self, hash: bytes, block: int) -> None:
        self._tiers.demote(hash, self._pieces(block))

    def find(self, hashes: Sequence[bytes]) -> int:
        return self._tiers.leading(hashes)

    def fetch(self, hash: bytes, block: int) -> bool:
        return self._tiers.promote(hash, self._pieces(block))

    def report(self) -> tuple[Tier, ...]:
        return self._tiers.told()

    def close(self) -> None:
        self._tiers.close()

    def _pieces(self, block: int) -> list[memoryview]:
        return [layer.block(block) for layer in self._memory.layers]


def below(tiers: Sequence[TierConfig], engine: Engine, tls: Tls | None) -> Below | None:
    """The tiers under this engine's memory, nearest first; None where there are none."""
    if not tiers:
        return None
    size = engine.memory.bytes_per_block
    state = bytes.fromhex(serial.digest(engine.state))
    return Below(
        Tiers([Level(_place(tier, size, state, tls), max(1, tier.bytes // size)) for tier in tiers]), engine.memory
    )


def _place(tier: TierConfig, size: int, state: bytes, tls: Tls | None) -> Place:
    if tier.kind == "dram":
        return Dram(size, max(1, tier.bytes // size))
    if tier.kind == "nvme":
        return Nvme(Path(tier.place), size, state)
    address = Address.of(tier.place)
    return Remote(dial(address, None if address.is_local or tls is None else tls.context(server=False)), size, state)
