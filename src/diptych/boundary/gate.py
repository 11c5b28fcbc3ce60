"""The identity gate: is the KV that was made the KV that is wanted? Representation does not enter here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diptych.boundary.descriptor import KVState
from diptych.boundary.difference import Difference, Weight, compared, pair, shown
from diptych.boundary.element import Element
from diptych.boundary.identity import Identity, Position, PositionKind
from diptych.boundary.layers import Layers, merged_layers


def identity_differences(produced: KVState, consumed: KVState) -> Iterator[Difference]:
    """Everything by which the two are not the same state, and everything that cannot be told."""
    mine, theirs = produced.identity, consumed.identity
    for name in ("model", "revision", "weights", "adapter", "tokenizer"):
        yield from compared(f"identity.{name}", getattr(mine, name), getattr(theirs, name))
    yield from _positions(mine.position, theirs.position)
    yield from _tokens(mine, theirs)
    yield from _blocks(produced, consumed)
    yield from _geometry(produced, consumed)


def _positions(mine: Position, theirs: Position) -> Iterator[Difference]:
    where = "identity.position"
    yield from compared(f"{where}.kind", mine.kind, theirs.kind, PositionKind.UNKNOWN)
    if PositionKind.ROPE in (mine.kind, theirs.kind):
        for name in ("theta", "scaling", "keys_rotated"):
            yield from compared(f"{where}.{name}", getattr(mine, name), getattr(theirs, name))


def _tokens(mine: Identity, theirs: Identity) -> Iterator[Difference]:
    """What was made must cover what is wanted. Two static forms say nothing of tokens."""
    made, wanted = mine.tokens, theirs.tokens
    if made is None or wanted is None:
        if made is not wanted:
            yield from compared("identity.tokens", made, wanted)
    elif made.start > wanted.start or made.stop < wanted.stop:
        ranges = pair(str, made, wanted)
        yield Difference("identity.tokens", *ranges, Weight.IDENTITY, "the tokens wanted are not all there")


def _blocks(produced: KVState, consumed: KVState) -> Iterator[Difference]:
    """Hashes of the blocks that both name. They can be laid side by side only at one block size and from one block boundary."""
    mine, theirs = produced.identity, consumed.identity
    if not (mine.blocks and theirs.blocks and mine.tokens and theirs.tokens):
        return
    size, offset = produced.storage.block_tokens, theirs.tokens.start - mine.tokens.start
    if size != consumed.storage.block_tokens or offset < 0 or offset % size:
        said = (f"blocks of {size}", f"blocks of {consumed.storage.block_tokens}")
        yield Difference("identity.blocks", *said, Weight.UNVERIFIED, "hashes of different runs of tokens")
        return
    for index, (made, wanted) in enumerate(zip(mine.blocks[offset // size :], theirs.blocks, strict=False)):
        if made != wanted:
            where = f"identity.blocks[{index}]"
            yield Difference(where, shown(made), shown(wanted), Weight.IDENTITY, "other tokens were prefilled")
            return


def _geometry(produced: KVState, consumed: KVState) -> Iterator[Difference]:
    """The layers, their shapes and their order: facts of the model, however many ranks hold them."""
    mine, theirs = (dict(_shapes(state)) for state in (produced, consumed))
    if {shape: entry.count for shape, entry in mine.items()} != {shape: entry.count for shape, entry in theirs.items()}:
        yield Difference("layers", _summary(mine), _summary(theirs), Weight.IDENTITY, "layers of other shapes")
        return
    if len(mine) == 1:
        return
    orders = (tuple(entry.index for entry in mine.values()), tuple(entry.index for entry in theirs.values()))
    said = pair(_order, *orders)
    stated = [all(order) for order in orders]
    if any(stated) and not all(stated):
        yield Difference("layers.index", *said, Weight.UNVERIFIED, "one side does not say")
    elif orders[0] != orders[1]:
        yield Difference("layers.index", *said, Weight.IDENTITY, "unlike layers in another order")


def _shapes(state: KVState) -> Iterator[tuple[Layers, Layers]]:
    """Each shape and the merged layers of it. What a linear-attention state is stored in is representation and left out."""
    plain = tuple(replace(entry, state_format=Element.FP32) for entry in state.layers)
    for entry in merged_layers(plain):
        yield replace(entry, count=1, index=()), entry


def _order(order: tuple[tuple[int, ...], ...]) -> str:
    return shown("; ".join(",".join(map(str, index)) or "unknown" for index in order))


def _summary(shapes: dict[Layers, Layers]) -> str:
    return "; ".join(map(str, shapes.values()))
