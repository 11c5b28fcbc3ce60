"""KV of decoding sequences once more, as attention wants to read it: in one piece, in the type that is computed with.

Blocks stay the truth; what is here is read out of them once, when a sequence's first step comes, and grows with its steps. On a
CPU that saves gathering all of a sequence's blocks in every layer of every step, and the padding of a batch of unlike lengths.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from diptych.runtime.engine import Step
from diptych.runtime.engines.torch.paged import Blocks, Table

MOST_BYTES = 512 << 20
"""Of all sequences together; whoever finds no place here is gathered from blocks in every step."""
SLACK = 64
"""Tokens that a sequence may grow by before it is laid out anew."""


@dataclass(slots=True)
class _Kept:
    """`values`: (layers, 2, heads, room, dim); the first `tokens` are those of `blocks`."""

    values: torch.Tensor
    blocks: tuple[int, ...]
    tokens: int


class Dense:
    """Decoding sequences by number. One that was not in the last steps may be given up for others."""

    def __init__(self, layers: Sequence[Blocks], dtype: torch.dtype, most_bytes: int = MOST_BYTES) -> None:
        self._layers, self._dtype, self._most = layers, dtype, most_bytes
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._bytes = 0

    def drop(self, sequence: int) -> None:
        """What lies in its blocks is not known any more."""
        kept = self._kept.pop(sequence, None)
        if kept is not None:
            self._bytes -= kept.values.nbytes

    def rows(self, steps: Sequence[Step]) -> list[torch.Tensor] | None:
        """(layers, 2, heads, room, dim) of each with all that is before its position; None when there is no room for all."""
        asked = {step.sequence: self._size(step) for step in steps}
        if sum(asked.values()) > self._most:
            for sequence in asked:
                self.drop(sequence)  # it will have grown in its blocks alone
            return None
        held = sum(self._kept[sequence].values.nbytes for sequence in asked if sequence in self._kept)
        self._make_room(asked, self._most - sum(asked.values()) + held)
        return [self._row(step) for step in steps]

    def wrote(self, steps: Sequence[Step]) -> None:
        """Each step's own token has been put in its row."""
        for step in steps:
            kept = self._kept[step.sequence]
            kept.blocks, kept.tokens = step.blocks, step.position + 1

    def _row(self, step: Step) -> torch.Tensor:
        kept = self._kept.get(step.sequence)
        if kept is None or kept.tokens != step.position or kept.blocks != step.blocks[: len(kept.blocks)]:
            self.drop(step.sequence)
            kept = self._put(step, self._room(step.position))
            for number, layer in enumerate(self._layers):
                self._read(layer, kept.values[number], step)
        elif step.position >= kept.values.shape[3]:
            before = kept.values
            self.drop(step.sequence)
            kept = self._put(step, self._room(step.position))
            kept.values[..., : step.position, :] = before[..., : step.position, :]
        self._kept.move_to_end(step.sequence)
        return kept.values

    def _put(self, step: Step, values: torch.Tensor) -> _Kept:
        kept = self._kept[step.sequence] = _Kept(values, step.blocks, step.position)
        self._bytes += values.nbytes
        return kept

    def _room(self, position: int) -> torch.Tensor:
        first = self._layers[0]
        return torch.empty((len(self._layers), 2, first.heads, _tokens(position), first.dim), dtype=self._dtype)

    def _size(self, step: Step) -> int:
        """Bytes of its row after this step."""
        kept = self._kept.get(step.sequence)
        if kept is not None and step.position < kept.values.shape[3]:
            return kept.values.nbytes
        first = self._layers[0]
        return len(self._layers) * 2 * first.heads * _tokens(step.position) * first.dim * self._dtype.itemsize

    def _read(self, layer: Blocks, row: torch.Tensor, step: Step) -> None:
        count = -(-step.position // layer.size)
        if count:
            table = Table.of([step.blocks[:count]], layer.heads, layer.codes.device)
            row[:, :, : step.position] = layer.read(table, self._dtype)[:, 0, :, : step.position]

    def _make_room(self, wanted: Mapping[int, int], most: int) -> None:
        """Give up those that were not asked for, the longest silent first, until all together hold `most` bytes."""
        for sequence in [each for each in self._kept if each not in wanted]:
            if self._bytes <= most:
                return
            self.drop(sequence)


def _tokens(position: int) -> int:
    """Tokens that a row has room for when it is laid out for a token at `position`."""
    return -(-(position + 1) // SLACK) * SLACK
