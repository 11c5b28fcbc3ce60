"""What attends to what: chunks of prompts to their past and themselves, decoding sequences to all of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from diptych.runtime.engine import Chunk, Step
from diptych.runtime.engines.torch.paged import Blocks, Slots


def slots_of(places: Sequence[tuple[Sequence[int], int, int]], size: int, device: torch.device) -> Slots:
    """The slots of runs of tokens, each given by its blocks, first position and length."""
    block: list[int] = []
    place: list[int] = []
    for blocks, start, count in places:
        for position in range(start, start + count):
            block.append(blocks[position // size])
            place.append(position % size)
    return Slots(torch.tensor(block, device=device), torch.tensor(place, device=device))


class PrefillAttention:
    """Chunks of prompts, their tokens one behind the other."""

    def __init__(
        self,
        layers: Sequence[Blocks],
        chunks: Sequence[Chunk],
        device: torch.device,
        done: Callable[[int], None] | None,
    ) -> None:
        self._layers, self._chunks, self._done = layers, chunks, done
        size = layers[0].size
        runs = [(chunk.blocks, chunk.start, len(chunk.tokens)) for chunk in chunks]
        self._slots = slots_of(runs, size, device)
        self._pasts = [_table([chunk.blocks[: -(-chunk.start // size)]], device) for chunk in chunks]
        self._masks = [_causal(len(chunk.tokens), chunk.start, device) for chunk in chunks]
        self._written = [
            block for blocks, start, count in runs for block in blocks[start // size : -(-(start + count) // size)]
        ]

    def __call__(self, number: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        layer = self._layers[number]
        layer.write(self._slots, kv)
        layer.publish(self._written)
        if self._done is not None:
            self._done(number)
        seen = layer.round_trip(kv)
        attended, begin = [], 0
        for place, chunk in enumerate(self._chunks):
            end = begin + len(chunk.tokens)
            keys, values = self._context(layer, place, seen[begin:end]).unbind(0)
            asking = queries[begin:end].transpose(0, 1)[None]
            attended.append(_attend(asking, keys, values, self._masks[place])[0].transpose(0, 1).flatten(1))
            begin = end
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _context(self, layer: Blocks, place: int, kv: torch.Tensor) -> torch.Tensor:
        """Keys and values of a chunk's past and its own: (2, 1, heads, tokens, dim)."""
        own = kv.permute(1, 2, 0, 3)[:, None]
        start = self._chunks[place].start
        if not start:
            return own
        return torch.cat((layer.read(self._pasts[place], own.dtype)[..., :start, :], own), -2)


def _causal(count: int, start: int, device: torch.device) -> torch.Tensor | None:
    """Which of start + count tokens each of the last `count` sees; None where a plain triangle says it."""
    if start == 0:
        return None
    return torch.ones((count, start + count), dtype=torch.bool, device=device).tril_(start)


def _attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences of like lengths, attended to together. `rows`: theirs in the batch, None for all."""

    rows: torch.Tensor | None
    table: torch.Tensor
    mask: torch.Tensor


class DecodeAttention:
    """One token of each of many sequences. Padding has no weight, but what is not finite there shows in the result."""

    def __init__(self, layers: Sequence[Blocks], steps: Sequence[Step], device: torch.device) -> None:
        self._layers = layers
        size = layers[0].size
        self._slots = slots_of([(step.blocks, step.position, 1) for step in steps], size, device)
        self._written = [step.blocks[step.position // size] for step in steps]
        self._groups = [
            _group(steps, rows, size, device) for rows in alike([step.position // size + 1 for step in steps])
        ]

    def __call__(self, number: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        layer = self._layers[number]
        layer.write(self._slots, kv)
        layer.publish(self._written)
        attended = torch.empty_like(queries)
        for group in self._groups:
            asking = queries if group.rows is None else queries[group.rows]
            found = _one_each(asking, layer.read(group.table, queries.dtype), group.mask)
            if group.rows is None:
                return found.reshape(queries.shape[0], -1)
            attended[group.rows] = found
        return attended.flatten(1)


def _one_each(queries: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(sequences, heads, dim) over (2, sequences, kv heads, tokens, dim): heads that share keys are asked as if tokens."""
    keys, values = kv.unbind(0)
    sequences, kv_heads, _, dim = keys.shape
    asking = queries.reshape(sequences, kv_heads, -1, dim)
    return functional.scaled_dot_product_attention(asking, keys, values, attn_mask=mask).reshape(queries.shape)


def _group(steps: Sequence[Step], rows: Sequence[int], size: int, device: torch.device) -> _Group:
    some = [steps[row] for row in rows]
    most = max(step.position for step in some) // size + 1
    table = _table([step.blocks[: step.position // size + 1] for step in some], device)
    positions = torch.tensor([step.position for step in some], device=device)[:, None, None, None]
    mask = torch.arange(most * size, device=device) <= positions
    return _Group(None if len(rows) == len(steps) else torch.tensor(rows, device=device), table, mask)


def _table(rows: Sequence[tuple[int, ...]], device: torch.device) -> torch.Tensor:
    """Blocks of sequences, short ones filled with their own last."""
    most = max(len(row) for row in rows)
    return torch.tensor([[*row, *(row[-1:] * (most - len(row)))] for row in rows], device=device)


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Indices grouped so that no length is below half of its group's longest, longest first.

    >>> alike([3, 9, 8, 4, 2])
    [[1, 2], [3, 0, 4]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if groups and 2 * lengths[index] >= lengths[groups[-1][0]]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return [sorted(group) for group in groups] if len(groups) == 1 else groups
