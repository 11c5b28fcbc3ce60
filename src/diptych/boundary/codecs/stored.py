"""A KV tensor as it lies in memory or on the wire: the bytes of its elements, the bytes of its scales, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs.refusals import WrongLength
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource
from diptych.boundary.format import Format
from diptych.errors import Finding, InvalidInput

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

DTYPES: dict[Element, np.dtype[Any]] = {
    Element.FP32: np.dtype(np.float32),
    Element.BF16: np.dtype(ml_dtypes.bfloat16),
    Element.FP16: np.dtype(np.float16),
    Element.E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    Element.E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    Element.E5M2: np.dtype(ml_dtypes.float8_e5m2),
    Element.INT8: np.dtype(np.int8),
}
"""The array type of an element; INT4 and NVFP4 are two to a byte, the even index in the low half."""
_NO_BYTES: Bytes = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class KvShape:
    """A canonical KV tensor: (layers, parts, tokens, heads, dim), all contiguous, parts being keys and values or one latent.

    Where keys and values differ in width, each is a tensor of its own with one part. MLA's latent has one part and one head.
    """

    layers: int
    parts: int
    tokens: int
    heads: int
    dim: int

    def __post_init__(self) -> None:
        findings = [
            Finding(name, f"is {getattr(self, name)}", "1 or more")
            for name in self.__slots__
            if getattr(self, name) < 1
        ]
        if findings:
            raise InvalidInput(findings)

    @property
    def dims(self) -> tuple[int, int, int, int, int]:
        return self.layers, self.parts, self.tokens, self.heads, self.dim

    @property
    def elements(self) -> int:
        return prod(self.dims)


def code_bytes(shape: KvShape, form: Format) -> int:
    """Bytes of the elements alone.

    Raises:
        InvalidInput: a head of odd width stored two elements to a byte, or groups that do not fill it.
    """
    findings = []
    if form.element.bits == 4 and shape.dim % 2:
        findings.append(
            Finding("dim", f"is {shape.dim}", f"an even number: {form.element} stores two elements to a byte")
        )
    if form.scaling.group and shape.dim % form.scaling.group:
        findings.append(Finding("scaling.group", f"{form.scaling.group} does not divide dim {shape.dim}"))
    if findings:
        raise InvalidInput(findings)
    return shape.elements * form.element.bits // 8


def scale_dims(shape: KvShape, form: Format) -> tuple[int, int, int, int, int]:
    """How many scales, along each dimension of the tensor. A tensor's is one per layer and part, as checkpoints store it."""
    match form.scaling.granularity:
        case ScaleGranularity.GROUP:
            return *shape.dims[:4], shape.dim // form.scaling.group
        case ScaleGranularity.TOKEN:
            return *shape.dims[:4], 1
        case ScaleGranularity.HEAD:
            return shape.layers, shape.parts, 1, shape.heads, 1
        case _:
            return shape.layers, shape.parts, 1, 1, 1


def scale_bytes(shape: KvShape, form: Format) -> int:
    """Bytes of the scales, travelling or not; unit scales take none.

    float32 for a tensor, head or token; bfloat16 for a group, which has the range of what it scales; for nvfp4 one e4m3fn byte
    a group, behind one float32 per layer and part.
    """
    if form.scaling.source in (ScaleSource.NONE, ScaleSource.UNIT):
        return 0
    count = prod(scale_dims(shape, form))
    if form.element is Element.NVFP4:
        return 4 * shape.layers * shape.parts + count
    return count * (2 if form.scaling.granularity is ScaleGranularity.GROUP else 4)


def wire_bytes(shape: KvShape, form: Format) -> int:
    """Bytes that travel: the elements, and the scales where they are stored with the block."""
    return code_bytes(shape, form) + (scale_bytes(shape, form) if travels(form) else 0)


def travels(form: Format) -> bool:
    """Whether the scales are on the wire."""
    return form.scaling.source is ScaleSource.INLINE


@dataclass(frozen=True, slots=True, eq=False)
class StoredKV:
    """The bytes of one tensor and what they mean. Scales that do not travel are here too, so that the values are known.

    Raises:
        WrongLength: the bytes are not as many as shape and format say.
    """

    shape: KvShape
    form: Format
    codes: Bytes
    scales: Bytes = field(default_factory=lambda: _NO_BYTES)

    def __post_init__(self) -> None:
        wanted = (("codes", self.codes, code_bytes), ("scales", self.scales, scale_bytes))
        findings = [
            Finding(
                name, f"{have.nbytes} bytes of {self.form}", f"{count(self.shape, self.form)} for {self.shape.dims}"
            )
            for name, have, count in wanted
            if have.nbytes != count(self.shape, self.form)
        ]
        if findings:
            raise WrongLength(findings)

    @classmethod
    def of(cls, values: NDArray[Any]) -> StoredKV:
        """A tensor of floats (fp32, bf16 or fp16; five dimensions), without copying it where it is contiguous."""
        elements = [element for element in _FLOATS if DTYPES[element] == values.dtype]
        if not elements or values.ndim != 5:
            raise InvalidInput(
                Finding("values", f"{values.dtype} with {values.ndim} dimensions", "fp32, bf16 or fp16 with five")
            )
        shape = KvShape(*values.shape)
        return cls(shape, Format(elements[0]), np.ascontiguousarray(values).reshape(-1).view(np.uint8))

    @classmethod
    def empty(cls, shape: KvShape, form: Format) -> StoredKV:
        """Room for such a tensor, to be written."""
        return cls(
            shape, form, np.empty(code_bytes(shape, form), np.uint8), np.empty(scale_bytes(shape, form), np.uint8)
        )

    @property
    def array(self) -> NDArray[Any]:
        """The stored elements in the tensor's shape, not copied; two to a byte, the last dimension is half as long."""
        if self.form.element.bits == 4:
            return self.codes.reshape(*self.shape.dims[:4], -1)
        return self.codes.view(DTYPES[self.form.element]).reshape(self.shape.dims)

    @property
    def payload(self) -> tuple[Bytes, ...]:
        """What travels, in order, not copied."""
        return (self.codes, self.scales) if travels(self.form) else (self.codes,)

    @classmethod
    def received(
        cls, shape: KvShape, form: Format, payload: bytes | bytearray | memoryview | Bytes, scales: Bytes = _NO_BYTES
    ) -> StoredKV:
        """The tensor in one received payload, not copied. `scales`: those that do not travel.

        Raises:
            WrongLength: the payload is not exactly as long as shape and format say.
        """
        have = np.frombuffer(payload, np.uint8)
        wanted = wire_bytes(shape, form)
        if have.nbytes != wanted:
            raise WrongLength(Finding("payload", f"{have.nbytes} bytes of {form}", f"{wanted} for {shape.dims}"))
        codes = code_bytes(shape, form)
        return cls(shape, form, have[:codes], have[codes:] if travels(form) else scales)


_FLOATS = (Element.FP32, Element.BF16, Element.FP16)
