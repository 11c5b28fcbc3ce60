"""How one element of KV is stored, down to what a byte means, and where its scale comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from diptych.catalog.dtype import Dtype


class Element(StrEnum):
    """A stored element format. Two formats of one width are not the same format: 0x38 is 1.0 in e4m3fn and 0.5 in e4m3fnuz."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    E4M3FN = "e4m3fn"
    E4M3FNUZ = "e4m3fnuz"
    E5M2 = "e5m2"
    INT8 = "int8"
    INT4 = "int4"
    NVFP4 = "nvfp4"

    @property
    def bits(self) -> int:
        """Bits of one element, without scales."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """Whether an element means something without a scale."""
        return self.bits >= 16

    @property
    def dtype(self) -> Dtype:
        """The catalog's name for it, by which designs and prices know it."""
        return _DTYPES[self]


class ScaleSource(StrEnum):
    """Where the factor that turns a stored element into a value comes from."""

    NONE = "none"  # the element is the value
    UNIT = "unit"  # one, on both sides, by convention
    CHECKPOINT = "checkpoint"  # tensors of the checkpoint, loaded by each role
    INLINE = "inline"  # stored with the block, so it travels with it
    DYNAMIC = "dynamic"  # computed while running and kept where it was computed


class ScaleGranularity(StrEnum):
    """What shares one scale."""

    NONE = "none"
    TENSOR = "per-tensor"
    HEAD = "per-head"
    TOKEN = "per-token"  # noqa: S105  one per token and head
    GROUP = "per-group"


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scales of a stored format. `digest` is over their values where they do not travel; `group` elements share one."""

    source: ScaleSource = ScaleSource.NONE
    granularity: ScaleGranularity = ScaleGranularity.NONE
    digest: str = ""
    group: int = 0


_BITS = {
    Element.FP32: 32,
    Element.BF16: 16,
    Element.FP16: 16,
    Element.E4M3FN: 8,
    Element.E4M3FNUZ: 8,
    Element.E5M2: 8,
    Element.INT8: 8,
    Element.INT4: 4,
    Element.NVFP4: 4,
}
_DTYPES = {
    Element.FP32: Dtype.FP32,
    Element.BF16: Dtype.BF16,
    Element.FP16: Dtype.FP16,
    Element.E4M3FN: Dtype.FP8,
    Element.E4M3FNUZ: Dtype.FP8_FNUZ,
    Element.E5M2: Dtype.FP8_E5M2,
    Element.INT8: Dtype.INT8,
    Element.INT4: Dtype.INT4,
    Element.NVFP4: Dtype.FP4,
}
