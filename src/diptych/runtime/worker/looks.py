"""What is offered, looked at before room is made: how it becomes this worker's KV, what that takes, or why it must not."""

from __future__ import annotations

from diptych.boundary import serial
from diptych.design.boundary import Side
from diptych.errors import InvalidInput
from diptych.runtime.engine import Engine
from diptych.runtime.memory import allocate
from diptych.runtime.worker.rewriting import Passage, passage
from diptych.serving.blocks import blocks_for

STAGED_AT_MOST = 16
"""What arrives to be rewritten is at most so many times as large as what becomes of it: fp32 beside int4 with scales is 7."""


class Looks:
    """Of one worker, whose engine stores its KV in one way."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._own, self._same = serial.to_msgpack(engine.state), passage(engine.state, engine.state, Side.DECODE)

    def passage(self, state: bytes, tokens: int) -> Passage | str:
        """How so many tokens of KV of a state, in its msgpack form, become this worker's, or why they must not."""
        if state == self._own:
            return self._same
        try:
            arriving = serial.from_msgpack(state).state
            found = passage(arriving, self.engine.state, Side.DECODE)
            if isinstance(found, Passage) and not found.is_copy and self._is_out_of_proportion(found, tokens):
                return "its blocks are out of all proportion"
        except InvalidInput as error:
            return f"its KV state cannot be read: {error}"[:480]
        return found

    def peak(self, found: Passage, tokens: int) -> int:
        """Blocks of this worker that weigh as much as what must lie beside them until it is rewritten."""
        return 0 if found.is_copy else -(-_weight(found, tokens) // self.engine.memory.bytes_per_block)

    def _is_out_of_proportion(self, found: Passage, tokens: int) -> bool:
        memory = self.engine.memory
        here = memory.bytes_per_block / memory.block_tokens * max(tokens, memory.block_tokens)
        return _weight(found, tokens) > STAGED_AT_MOST * here


def _weight(found: Passage, tokens: int) -> int:
    """Bytes of so many tokens as they arrive."""
    there = allocate(found.arriving, 0)
    return there.bytes_per_block * blocks_for(tokens, there.block_tokens)
