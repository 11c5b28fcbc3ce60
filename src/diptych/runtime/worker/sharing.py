"""Memory of a worker that both gives and takes, so that two that hand to each other never wait for each other's memory.

Under push a handoff takes room at its target first and memory at its source then; under pull it is the other way round. Two
workers could each fill up with first halves of handoffs whose second halves wait for the other. So first halves have at most half
of the memory and leave room for the largest of what else is due here: second halves, and answers up to their longest. A prompt
larger than that goes alone; of two such in both directions the one with the smaller id goes first, which both workers know.
"""

from __future__ import annotations

from collections.abc import Callable


class Sharing:
    """`due` says how many blocks the largest of what waits here needs, among what goes before a handoff of some id.

    `capacity` is of a worker that does both; others, who cannot wait for themselves, have 0.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.due: list[Callable[[bytes], int]] = []
        self._promised: dict[bytes, tuple[int, int]] = {}

    def is_large(self, blocks: int) -> bool:
        """Whether a prompt of so many blocks must go alone."""
        return 0 < self.capacity < 2 * blocks

    def promise(self, id: bytes, blocks: int, longest: int = 0) -> bool:
        """Take the first half of a handoff, if that leaves room for what is due, its own answer among it; until `keep`."""
        if self.capacity and not self._fits(id, blocks, longest):
            return False
        self._promised[id] = blocks, longest
        return True

    def keep(self, id: bytes) -> None:
        """Its second half is done, or it has ended: it waits for nobody any more."""
        self._promised.pop(id, None)

    def _fits(self, id: bytes, blocks: int, longest: int) -> bool:
        due = max(each(id) for each in self.due)
        if not self._promised:
            return blocks + due <= self.capacity
        taken = sum(each for each, _ in self._promised.values()) + blocks
        due = max(due, longest, *(each for _, each in self._promised.values()))
        return not self.is_large(taken) and taken + due <= self.capacity
