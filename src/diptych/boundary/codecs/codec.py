"""A pair of formats as a codec: what prefill stores, what crosses, what it costs in bytes and in accuracy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs import compress
from diptych.boundary.codecs.bounds import Bound, rounding
from diptych.boundary.codecs.convert import Method, convert, method
from diptych.boundary.codecs.stored import Bytes, Floats, KvShape, StoredKV, wire_bytes
from diptych.boundary.format import Format
from diptych.errors import Finding, InvalidInput

_NO_BYTES: Bytes = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Codec:
    """KV stored as `source` crosses as `wire`, compressed without loss or not.

    >>> from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
    >>> int4 = Format(Element.INT4, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=128))
    >>> codec = Codec(Format(Element.BF16), int4)
    >>> codec.method, codec.wire_bytes(KvShape(layers=1, parts=2, tokens=16, heads=8, dim=128))
    (<Method.QUANTISE: 'quantise'>, 16896)
    """

    source: Format
    wire: Format
    compressed: bool = False

    @property
    def method(self) -> Method:
        """How the wire format is made."""
        return method(self.source, self.wire)

    @property
    def bound(self) -> Bound:
        """What a value loses on the way to the wire, and back where the source is a float; steps are in the wire's scales."""
        there = rounding(self.source, self.wire)
        if there.is_exact or not self.source.element.is_float:
            return there
        back = replace(rounding(self.wire, self.source), limit=np.inf)  # what came from there fits there
        return there.then(back)

    def wire_bytes(self, shape: KvShape) -> int:
        """Bytes on the wire, travelling scales counted; compressed, the most they can be."""
        return compress.compressed_bytes(shape, self.wire) if self.compressed else wire_bytes(shape, self.wire)

    def encode(
        self, kv: StoredKV | NDArray[Any], scales: Floats | None = None, out: StoredKV | None = None
    ) -> StoredKV:
        """Values, or a tensor stored as `source`, in the wire's format. See `convert` for scales, room and refusals."""
        return convert(_stored(kv, self.source), self.wire, scales, out)

    def decode(self, kv: StoredKV, scales: Floats | None = None, out: StoredKV | None = None) -> StoredKV:
        """A tensor in the wire's format stored as `source` again."""
        return convert(_stored(kv, self.wire), self.source, scales, out)

    def payload(self, kv: StoredKV) -> tuple[bytes | Bytes, ...]:
        """The buffers that travel, in order: views of the encoded tensor, or its compressed bytes."""
        return (compress.compress(kv),) if self.compressed else _stored(kv, self.wire).payload

    def received(self, shape: KvShape, payload: bytes | memoryview, scales: Bytes = _NO_BYTES) -> StoredKV:
        """The encoded tensor of one received payload. `scales`: those that do not travel.

        Raises:
            WrongLength: the payload is not as long as the description says; nothing is read past it.
        """
        if self.compressed:
            return compress.decompress(shape, self.wire, payload, scales)
        return StoredKV.received(shape, self.wire, payload, scales)


def _stored(kv: StoredKV | NDArray[Any], form: Format) -> StoredKV:
    found = kv if isinstance(kv, StoredKV) else StoredKV.of(kv)
    if found.form != form:
        raise InvalidInput(Finding("kv", f"is stored as {found.form}", f"{form}"))
    return found
