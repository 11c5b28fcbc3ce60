"""KV of one form rewritten as another between two paged memories: cast, quantised or back, and dealt into other blocks.

Used before sending (into a buffer of the wire's form) and after receiving (out of one). Where the boundary's contract finds
nothing to do, none of this runs and bytes go from block to block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.stored import KvShape, StoredKV
from diptych.boundary.contract import contract
from diptych.boundary.conversion import Op
from diptych.boundary.descriptor import KVState
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format, element_named
from diptych.design.boundary import Side
from diptych.errors import InvalidInput
from diptych.runtime.memory import KVMemory, LayerMemory, code_bytes

SLAB = 1024
"""Tokens rewritten at a time, so that what lies between stays small."""
_IN_PLACE = (Op.TRANSFER, Op.REPAGE)
_ABLE = (*_IN_PLACE, Op.CAST, Op.QUANTISE, Op.DEQUANTISE, Op.REQUANTISE, Op.RESCALE, Op.REGROUP)
_INLINE = (ScaleGranularity.TOKEN, ScaleGranularity.GROUP)


@dataclass(frozen=True, slots=True)
class Passage:
    """How KV of one state becomes another's here: byte for byte, or rewritten, which `said` names for people."""

    arriving: KVState
    wanted: KVState
    said: str = ""

    @property
    def is_copy(self) -> bool:
        return not self.said


def passage(arriving: KVState, wanted: KVState, side: Side) -> Passage | str:
    """What `side` has to do so that what arrives is what is wanted, or why it cannot: the contract's own reasons."""
    wire = arriving.format if side is Side.DECODE else wanted.format
    found = contract(arriving, wanted, wire=wire, at=side)
    if not found.is_usable:
        return "; ".join(str(each) for each in found.reasons)[:480]
    ops = [step.op for step in found.plan]
    unable = [op for op in ops if op not in _ABLE]
    if unable:
        return f"this worker cannot {unable[0]}"
    if all(op in _IN_PLACE for op in ops):
        return Passage(arriving, wanted)
    for state in (arriving, wanted):
        if not _is_readable(state.format):
            return f"this worker cannot read or write {state.format}"
    return Passage(arriving, wanted, ", ".join(str(op) for op in ops if op not in _IN_PLACE))


def wire_format(name: str) -> Format:
    """The form that crosses, by name: a float, 'int8' and 'int4' with their scales beside them, 'fp8' kinds under a scale of one.

    Raises:
        InvalidInput: no such element.
    """
    element = element_named(name)
    if element.is_float:
        return Format(element)
    if element is Element.INT4:
        return Format(element, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=16))
    if element is Element.INT8:
        return Format(element, Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN))
    return Format(element, Scaling(ScaleSource.UNIT))


def crossing(produced: KVState, wire: str) -> tuple[KVState, str]:
    """What goes over the wire when the gateway named a form for it, and why it cannot if so."""
    if not wire:
        return produced, ""
    try:
        state = replace(produced, format=wire_format(wire), storage=replace(produced.storage, page_stride=0))
    except InvalidInput as error:
        return produced, str(error)
    found = passage(produced, state, Side.PREFILL)
    if isinstance(found, str):
        return produced, found
    return (produced if found.is_copy else state), ""


def rewrite(
    source: KVMemory, read: Sequence[int], target: KVMemory, written: Sequence[int], begin: int, end: int
) -> None:
    """Tokens `begin` to `end` of a sequence, in the blocks `read` of one memory, into the blocks `written` of another."""
    for number in range(len(source.layers)):
        rewrite_layer(source.layers[number], read, target.layers[number], written, begin, end)


def rewrite_layer(
    source: LayerMemory, read: Sequence[int], target: LayerMemory, written: Sequence[int], begin: int, end: int
) -> None:
    """The same for one layer."""
    for at in range(begin, end, SLAB):
        stop = min(at + SLAB, end)
        _scatter(convert(_gathered(source, read, at, stop), target.form), target, written, at)


def _is_readable(form: Format) -> bool:
    """Whether a block says all that its elements need: no scales, unit ones, or its own per token or group."""
    if form.element is Element.NVFP4:
        return False
    scaling = form.scaling
    if scaling.source in (ScaleSource.NONE, ScaleSource.UNIT):
        return True
    return scaling.source is ScaleSource.INLINE and scaling.granularity in _INLINE


def _rows(layer: LayerMemory) -> tuple[NDArray[Any], NDArray[Any]]:
    """Elements and scales of a layer as bytes: (blocks, parts, heads, tokens, bytes of a head's row)."""
    whole = np.frombuffer(layer.bytes, np.uint8).reshape(-1, layer.stride)
    dims = (len(whole), layer.parts, layer.heads, layer.tokens)
    edge = code_bytes(layer.form, layer.parts, layer.heads, layer.tokens, layer.dim)
    scales = whole[:, edge : layer.block_bytes]
    return whole[:, :edge].reshape(*dims, -1), scales.reshape(*dims, scales.shape[1] // np.prod(dims[1:]))


def _gathered(layer: LayerMemory, blocks: Sequence[int], begin: int, end: int) -> StoredKV:
    """Tokens of a sequence as a canonical tensor: (1, parts, tokens, heads, dim)."""
    first = begin // layer.tokens
    some = list(blocks[first : -(-end // layer.tokens)])
    span = slice(begin - first * layer.tokens, end - first * layer.tokens)
    dims = (layer.parts, len(some) * layer.tokens, layer.heads)
    codes, scales = (
        np.ascontiguousarray(rows[some].transpose(1, 0, 3, 2, 4).reshape(*dims, rows.shape[4])[:, span])
        for rows in _rows(layer)
    )
    shape = KvShape(1, layer.parts, end - begin, layer.heads, layer.dim)
    return StoredKV(shape, layer.form, codes.reshape(-1), scales.reshape(-1))


def _scatter(kv: StoredKV, layer: LayerMemory, blocks: Sequence[int], begin: int) -> None:
    """A canonical tensor into a sequence's blocks, from token `begin` on; what lies beside is not touched."""
    positions = np.arange(begin, begin + kv.shape.tokens)
    block, slot = np.asarray(blocks)[positions // layer.tokens], positions % layer.tokens
    for rows, values in zip(_rows(layer), (kv.codes, kv.scales), strict=True):
        if values.size:
            by_token = values.reshape(layer.parts, kv.shape.tokens, layer.heads, -1)
            rows[block, :, :, slot] = by_token.transpose(1, 0, 2, 3)
