"""What a probe asks: sizes of prompts and batches, those that a fit may use and those that only check it."""

from __future__ import annotations

from dataclasses import dataclass

PROMPTS = (16, 32, 64, 128, 256, 512, 1024)
HELD_PROMPTS = (48, 96, 192, 384)
PASTS = ((32, 256), (128, 256), (32, 512))
"""(tokens, past)."""
BATCHES = (1, 2, 4, 8, 16)
HELD_BATCHES = (3, 6)
SHORT, MIDDLE, LONG = 24, 96, 256
"""Tokens of the prompts that decode steps go on from: their contexts are these and half an answer more."""
STEPS = 16
"""Decode steps of a point."""
TURNS, MORE_TURNS, CHEAP = 3, 5, 256
"""Turns of a point; prompts of up to `CHEAP` tokens have more of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Points to measure, as far as they fit: `most` tokens in one prompt, `room` tokens in a worker's KV, `sequences` at once."""

    most: int
    room: int
    sequences: int

    @property
    def prompts(self) -> list[tuple[int, bool]]:
        """(tokens, fitted) without a past. The longest is the measured context's end where that is shorter than all."""
        fitted = [size for size in PROMPTS if size <= self.longest] or [self.longest]
        held = [size for size in HELD_PROMPTS if fitted[0] < size < fitted[-1]]
        return [*((size, True) for size in fitted), *((size, False) for size in held)]

    @property
    def pasts(self) -> list[tuple[int, int, bool]]:
        """(tokens, past, fitted)."""
        fitting = [(tokens, past) for tokens, past in PASTS if tokens + past <= self.longest]
        return [(tokens, past, index != 1) for index, (tokens, past) in enumerate(fitting)]

    @property
    def decodes(self) -> list[tuple[int, int, bool]]:
        """(sequences, prompt tokens of each, fitted)."""
        wanted = [(batch, SHORT, True) for batch in BATCHES]
        wanted += [(batch, LONG, True) for batch in (1, 4, 8)]
        wanted += [(batch, MIDDLE, False) for batch in HELD_BATCHES]
        return [each for each in wanted if self._fits(each[0], each[1])] or [(1, 1, True)]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(1, min(PROMPTS[-1], self.most - STEPS - 2, self.room - STEPS - 2))

    def _fits(self, batch: int, tokens: int) -> bool:
        each = tokens + STEPS + 34  # a block more for each, and one that is begun
        return batch <= self.sequences and batch * each <= self.room and each <= self.most
