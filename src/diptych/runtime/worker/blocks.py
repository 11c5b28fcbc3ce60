"""Which physical blocks a sequence's tokens lie in. How many there are to give is the batch's word; this follows it.

`serving.batching` decides by counts: who is admitted, preempted, evicted. Here the counts become block ids. After every change
`agree` holds the two against each other, so that neither can drift: blocks free here are exactly those that the pool has not
given to a sequence, a handoff or the prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from diptych.runtime.messages import Tier
from diptych.serving.batching import Batch, S
from diptych.serving.blocks import BlockPool, blocks_for


class LowerTiers(Protocol):
    """Where blocks go that the device gives up, and where they are looked for. Called on the engine's thread alone."""

    def on_evict(self, hash: bytes, block: int) -> None:
        """`block` holds what `hash` names until this returns; then it belongs to somebody else."""
        ...

    def find(self, hashes: Sequence[bytes]) -> int:
        """How many leading ones of these can be fetched."""
        ...

    def fetch(self, hash: bytes, block: int) -> bool:
        """Put what `hash` names into `block`; False when it is gone or damaged, which is a miss."""
        ...

    def report(self) -> tuple[Tier, ...]:
        """The tiers as the gateway shows them."""
        ...


@dataclass(slots=True)
class Table:
    """The blocks of one sequence in the order of its tokens. Those at places in `shared` belong to the prefix cache."""

    blocks: list[int] = field(default_factory=list)
    shared: set[int] = field(default_factory=set)


class Blocks:
    """The block ids of one worker. `pool` counts them; both have one block per hash."""

    def __init__(self, pool: BlockPool, tiers: LowerTiers | None = None) -> None:
        assert pool.per_hash in (0, 1), f"{pool.per_hash} blocks per hash"
        self.pool, self.tiers = pool, tiers
        pool.reports = True
        self.free = list(range(pool.capacity - 1, -1, -1))
        self.by_hash: dict[bytes, int] = {}

    # --- tables -----------------------------------------------------------------------------------------------------

    def begin(self, taken: Sequence[bytes]) -> Table:
        """The table of a sequence that refers to these cached blocks, its first ones."""
        return Table([self.by_hash[key] for key in taken], set(range(len(taken))))

    def grow(self, table: Table, tokens: int) -> None:
        """Blocks for so many tokens. The batch has said that they are there."""
        for _ in range(blocks_for(tokens, self.pool.size) - len(table.blocks)):
            table.blocks.append(self.free.pop())

    def end(self, table: Table) -> None:
        """A sequence's own blocks are free again; shared ones are the cache's to give up. Neighbours stay neighbours."""
        self.free += [table.blocks[place] for place in reversed(range(len(table.blocks))) if place not in table.shared]
        table.blocks, table.shared = [], set()

    # --- the prefix cache ---------------------------------------------------------------------------------------------

    def share(self, table: Table, hashes: Sequence[bytes], taken: Sequence[bytes]) -> None:
        """The batch has offered a prompt's full blocks to others: those in `taken` are the cache's from now on.

        `taken` is empty when the sequence has gone already; then its blocks stay for the hashes that nobody else holds.
        """
        cache = self.pool.cache
        if cache is None:
            return
        mine = set(taken)
        for place, key in enumerate(hashes[: len(table.blocks)]):
            if place in table.shared:
                continue
            here = self.by_hash.get(key)
            if key in mine or (not mine and here is None and (key in cache.live or key in cache.idle)):
                if here is not None:
                    self.free.append(here)  # the same tokens, computed twice: nobody refers to the older copy
                self.by_hash[key] = table.blocks[place]
                table.shared.add(place)

    def evict(self) -> None:
        """Free what the cache gave up since the last call, unless it has come back."""
        cache, gone = self.pool.cache, self.pool.evicted
        if cache is None or not gone:
            return
        for key in gone:
            if key not in cache.live and key not in cache.idle and key in self.by_hash:
                block = self.by_hash.pop(key)
                if self.tiers is not None:
                    self.tiers.on_evict(key, block)
                self.free.append(block)
        gone.clear()

    def distrust(self, hashes: Sequence[bytes]) -> None:
        """KV under these names gave a fault: whoever comes next computes it anew. What others refer to stays theirs."""
        cache = self.pool.cache
        for key in hashes if cache is not None else ():
            assert cache is not None
            if key in cache.idle:
                del cache.idle[key]
                self.free.append(self.by_hash.pop(key))

    def promote(self, hashes: Sequence[bytes], spare: int) -> int:
        """Fetch from the lower tiers what the cache lacks of a prefix; how many blocks came.

        `spare`: blocks that nobody needs now. Cached ones are among them and make room, the oldest first.
        """
        cache = self.pool.cache
        if cache is None or self.tiers is None:
            return 0
        here = cache.match(hashes)
        cache.keep(hashes[:here])
        coming = min(self.tiers.find(hashes[here:]), spare - here)
        if coming <= 0:
            return 0
        self.pool.evicted.extend(cache.evict(spare - coming))
        self.evict()
        for count, key in enumerate(hashes[here : here + coming]):
            block = self.free.pop()
            if not self.tiers.fetch(key, block):
                self.free.append(block)
                return count
            self.by_hash[key] = block
            cache.keep((key,))
        return coming

    # --- the law ----------------------------------------------------------------------------------------------------

    def agree(self, batch: Batch[S]) -> None:
        """Raise unless blocks free here are those that the counts say. Called when every sequence has its blocks."""
        cache = self.pool.cache
        idle = len(cache.idle) if cache is not None else 0
        left = self.pool.capacity - self.pool.held - batch.growing() - idle
        assert len(self.free) == left, f"{len(self.free)} blocks free, {left} by the counts"
