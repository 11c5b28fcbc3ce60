"""What attends to what: chunks of prompts to their past and themselves, decoding sequences to all of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from diptych.runtime.engine import Chunk, Step
from diptych.runtime.engines.torch.paged import Blocks, Slots, Table


class PrefillAttention:
    """Chunks of prompts, their tokens one behind the other. `done` is told of every layer whose KV is in memory."""

    def __init__(
        self, layers: Sequence[Blocks], chunks: Sequence[Chunk], done: Callable[[int], None] | None = None
    ) -> None:
        self._layers, self._done = layers, done
        size, heads, device = layers[0].size, layers[0].heads, layers[0].codes.device
        runs = [(chunk.blocks, chunk.start, len(chunk.tokens)) for chunk in chunks]
        self._slots = Slots.of(runs, size, device)
        self._written = [
            block for blocks, start, count in runs for block in blocks[start // size : _over(start + count, size)]
        ]
        self._parts = [
            _Part(
                count,
                start,
                Table.of([blocks[: _over(start, size)]], heads, device) if start else None,
                _lower(count, start, device) if start else None,
            )
            for blocks, start, count in runs
        ]

    def __call__(self, number: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        layer = self._layers[number]
        layer.write(self._slots, kv)
        layer.publish(self._written)
        if self._done is not None:
            self._done(number)
        seen = layer.round_trip(kv)
        attended, begin = [], 0
        for part in self._parts:
            end = begin + part.count
            attended.append(part.attend(layer, queries[begin:end], seen[begin:end]))
            begin = end
        return attended[0] if len(attended) == 1 else torch.cat(attended)


@dataclass(frozen=True, slots=True)
class _Part:
    """One chunk: its tokens, and where its past lies. `mask`: which of start + count tokens each of the last `count` sees."""

    count: int
    start: int
    past: Table | None
    mask: torch.Tensor | None

    def attend(self, layer: Blocks, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        context = kv.permute(1, 2, 0, 3)[:, None]
        if self.past is not None:
            context = torch.cat((layer.read(self.past, kv.dtype)[..., : self.start, :], context), -2)
        keys, values = context.unbind(0)
        found = scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=self.mask,
            is_causal=self.mask is None,
            enable_gqa=queries.shape[1] != layer.heads,
        )
        return found[0].transpose(0, 1).flatten(1)


class DecodeAttention:
    """One token of each of many sequences. Padding has no weight, but what is not finite there shows in the result."""

    def __init__(
        self,
        layers: Sequence[Blocks],
        steps: Sequence[Step],
        dtype: torch.dtype,
        done: Callable[[int], None] | None = None,
    ) -> None:
        self._layers, self._done = layers, done
        size, device = layers[0].size, layers[0].codes.device
        self._slots = Slots.of([(step.blocks, step.position, 1) for step in steps], size, device)
        self._written = [step.blocks[step.position // size] for step in steps]
        lengths = [step.position // size + 1 for step in steps]
        self._groups = [_group(steps, rows, layers[0], dtype) for rows in alike(lengths)]

    def __call__(self, number: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        layer = self._layers[number]
        layer.write(self._slots, kv)
        layer.publish(self._written)
        if self._done is not None:
            self._done(number)
        if len(self._groups) == 1:
            return self._groups[0].attend(layer, queries).flatten(1)
        attended = torch.empty_like(queries)
        for group in self._groups:
            attended[group.rows] = group.attend(layer, queries[group.rows])
        return attended.flatten(1)


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences of like lengths, attended to together. `rows`: theirs in the batch."""

    rows: torch.Tensor
    table: Table
    mask: torch.Tensor

    def attend(self, layer: Blocks, queries: torch.Tensor) -> torch.Tensor:
        """(sequences, heads, dim): heads that share keys are asked as if they were tokens."""
        keys, values = layer.read(self.table, queries.dtype).unbind(0)
        asking = queries.reshape(len(queries), layer.heads, -1, layer.dim)
        return scaled_dot_product_attention(asking, keys, values, attn_mask=self.mask).reshape(queries.shape)


class DenseAttention:
    """The same on a CPU, each sequence alone over its own row: nothing is gathered and nothing padded."""

    def __init__(
        self,
        layers: Sequence[Blocks],
        steps: Sequence[Step],
        rows: Sequence[torch.Tensor],
        done: Callable[[int], None] | None = None,
    ) -> None:
        self._layers, self._done = layers, done
        size = layers[0].size
        self._places = [(step.blocks[step.position // size], step.position % size) for step in steps]
        ends = [(row, step.position) for row, step in zip(rows, steps, strict=True)]
        self._keys = [row[:, 0, None, :, : last + 1].unbind() for row, last in ends]
        self._values = [row[:, 1, None, :, : last + 1].unbind() for row, last in ends]
        self._own = [row[:, :, :, last].unbind() for row, last in ends]

    def __call__(self, number: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        layer = self._layers[number]
        layer.write_each(self._places, kv)
        if self._done is not None:
            self._done(number)
        asking = queries.reshape(len(queries), 1, layer.heads, -1, layer.dim).unbind()
        attended = []
        for index, own in enumerate(layer.round_trip(kv).unbind()):
            self._own[index][number].copy_(own)
            keys, values = self._keys[index][number], self._values[index][number]
            attended.append(scaled_dot_product_attention(asking[index], keys, values))
        return torch.cat(attended).view(len(queries), -1)


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Indices grouped so that no length is below half of its group's longest; all in order if they are one group.

    >>> alike([3, 9, 8, 4, 2])
    [[1, 2], [0, 3, 4]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if groups and 2 * lengths[index] >= lengths[groups[-1][0]]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return [sorted(group) for group in groups]


def _group(steps: Sequence[Step], rows: Sequence[int], layer: Blocks, dtype: torch.dtype) -> _Group:
    size, device = layer.size, layer.codes.device
    some = [steps[row] for row in rows]
    table = Table.of([step.blocks[: step.position // size + 1] for step in some], layer.heads, device)
    positions = torch.tensor([step.position for step in some], device=device)[:, None, None, None]
    beyond = torch.arange(table.blocks.shape[1] * size, device=device) > positions
    mask = torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, -torch.inf)
    return _Group(torch.tensor(rows, device=device), table, mask)


def _lower(count: int, start: int, device: torch.device) -> torch.Tensor:
    return torch.ones((count, start + count), dtype=torch.bool, device=device).tril_(start)


def _over(tokens: int, size: int) -> int:
    """Blocks of `size` that hold `tokens`."""
    return -(-tokens // size)
