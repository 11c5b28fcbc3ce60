"""Blocks of a tensor in the canonical order: every element once, of the heads asked for, and nothing else touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from joints import FACTS

from diptych.boundary.descriptor import Shard
from diptych.errors import InvalidInput
from diptych.integrations.vllm.cache import TorchBlocks, in_memory_order
from diptych.integrations.vllm.host import shares

COUNT = 7


def made(heads: int, tokens: int, dim: int, kind: str) -> tuple[TorchBlocks, np.ndarray]:
    """Random blocks, and what they hold: (blocks, parts, heads, tokens, dim)."""
    size = 2 * heads * tokens * dim
    if kind == "packed":  # as vLLM's CPU attention packs them
        whole = np.arange(size).reshape(heads, 2, tokens * dim)
        keys = whole[:, 0].reshape(heads, dim, tokens).transpose(0, 2, 1)
        places = np.stack([keys, whole[:, 1].reshape(heads, tokens, dim)])
    else:
        order = np.arange(size) if kind == "plain" else np.random.default_rng(1).permutation(size)
        places = order.reshape(2, heads, tokens, dim)
    state = replace(FACTS, block_tokens=tokens, kv_heads=heads, head_dim=dim, layers=1).state()
    told = np.random.default_rng(2).normal(size=(COUNT, 2, heads, tokens, dim)).astype(np.float32)
    flat = np.empty((COUNT, size), np.float32)
    flat[:, places] = told
    return TorchBlocks.of([torch.from_numpy(flat)], places, state), told


def bytes_of(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@given(
    heads=st.integers(1, 4), tokens=st.sampled_from([1, 3, 16]), dim=st.sampled_from([1, 8]),
    kind=st.sampled_from(["packed", "plain", "shuffled"]), data=st.data(),
)  # fmt: skip
def test_what_is_read_of_some_heads_is_what_they_hold_and_can_be_written_back(heads, tokens, dim, kind, data) -> None:
    blocks, told = made(heads, tokens, dim, kind)
    at = data.draw(st.integers(0, heads - 1))
    some = data.draw(st.integers(1, heads - at))
    ids = data.draw(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=COUNT, unique=True))
    part = blocks.narrowed(at, some)
    read = part.read(0, ids)
    assert bytes(read.bytes) == bytes_of(told[ids, :, at : at + some])
    other, before = made(heads, tokens, dim, kind)
    new = np.random.default_rng(3).normal(size=(len(ids), 2, some, tokens, dim)).astype(np.float32)
    other.narrowed(at, some).write(0, ids, replace(read, bytes=memoryview(bytearray(bytes_of(new)))))
    before[ids, :, at : at + some] = new
    assert bytes(other.read(0, range(COUNT)).bytes) == bytes_of(before)


@given(prefill=st.integers(1, 8), decode=st.integers(1, 8), heads=st.integers(1, 8))
def test_the_shares_of_all_ranks_put_every_head_in_its_place_once(prefill, decode, heads) -> None:
    if any(heads % ranks and ranks % heads for ranks in (prefill, decode)):
        return
    held = np.arange(heads)
    for rank in range(decode):
        mine = list(Shard(tp=decode).heads(rank, heads))
        got: list[int] = []
        for piece in sorted(shares(prefill, decode, heads), key=lambda piece: piece.target_at):
            if piece.target == rank:
                theirs = held[list(Shard(tp=prefill).heads(piece.source, heads))]
                assert piece.target_at == len(got)
                got += list(theirs[piece.source_at : piece.source_at + len(piece.heads)])
        assert got == mine


def test_two_orders_have_two_names_and_one_order_one() -> None:
    names = [made(2, 16, 8, kind)[0].kept().state.storage.packing for kind in ("packed", "plain", "shuffled")]
    assert len(set(names)) == 3
    assert made(2, 16, 8, "packed")[0].kept().state.storage.packing == names[0]


def test_a_view_that_is_not_whole_is_read_all_the_same() -> None:
    """Layers that share one tensor, block by block, as some of vLLM's layouts have them."""
    blocks, told = made(2, 16, 8, "packed")
    wide = torch.zeros(COUNT, 3, blocks.tensors[0].shape[1], dtype=torch.int32)
    wide[:, 1] = blocks.tensors[0]
    assert blocks.places is not None
    view = TorchBlocks.of([wide[:, 1].view(torch.float32)], blocks.places, blocks.state)
    assert view.kept().own() is None
    assert bytes(view.read(0, [5, 2]).bytes) == bytes_of(told[[5, 2]])
    view.write(0, [0], view.read(0, [6]))
    assert bytes(view.read(0, [0]).bytes) == bytes_of(told[6])
    assert float(wide[:, [0, 2]].abs().max()) == 0


@pytest.mark.parametrize("blocks", [[3], [3, 4, 5], [5, 3, 4, 0]])
def test_what_lies_in_vllms_memory_is_its_own(blocks) -> None:
    kept = made(2, 16, 8, "packed")[0].kept()
    own = kept.own()
    assert own is not None
    taken = b"".join(bytes(own[0].block(each)) for each in blocks)
    assert taken == bytes(kept.read(0, blocks).bytes)
    own[0].block(blocks[0])[:] = bytes(len(own[0].block(blocks[0])))
    assert float(kept.tensors[0][blocks[0]].abs().max()) == 0


def test_dimensions_are_taken_as_they_lie_whatever_they_are_called() -> None:
    lies = torch.arange(COUNT * 2 * 3 * 4, dtype=torch.float32).view(COUNT, 2, 3, 4)
    assert in_memory_order(lies.permute(0, 2, 3, 1)).equal(lies)
    state = replace(FACTS, block_tokens=3, kv_heads=1, head_dim=4, layers=1).state()
    places = np.arange(24).reshape(2, 1, 3, 4)
    with pytest.raises(InvalidInput, match="in pieces"):
        TorchBlocks.of([lies.permute(0, 2, 3, 1)], places, state)
