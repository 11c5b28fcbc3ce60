"""What no engine can compute: tokens outside the vocabulary, positions without a block, blocks that do not exist."""

from __future__ import annotations

from collections.abc import Sequence

from diptych.runtime.engine import EngineFault
from diptych.runtime.memory import KVMemory


def misfit(
    memory: KVMemory,
    vocabulary: int,
    max_context: int,
    sequence: int,
    tokens: Sequence[int],
    start: int,
    blocks: Sequence[int],
) -> EngineFault | None:
    """A fault of this sequence alone if `tokens` from position `start` on cannot be computed in `blocks`."""
    end, room = start + len(tokens), min(len(blocks) * memory.block_tokens, max_context)
    if not tokens or start < 0:
        return EngineFault(sequence, f"{len(tokens)} tokens from position {start}")
    if end > room:
        return EngineFault(sequence, f"{end} tokens, room for {room}")
    if not all(0 <= block < memory.blocks for block in blocks):
        return EngineFault(sequence, f"blocks beyond {memory.blocks}")
    if not all(0 <= token < vocabulary for token in tokens):
        return EngineFault(sequence, f"tokens beyond a vocabulary of {vocabulary}")
    return None
