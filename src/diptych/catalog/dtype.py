"""Number formats: what is stored, and what is multiplied."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """A storage or compute format. FP8 is e4m3fn unless the name says otherwise; e4m3fnuz differs by a factor of two."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_FNUZ = "fp8_fnuz"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    FP4 = "fp4"
    INT4 = "int4"

    @property
    def bytes(self) -> float:
        """Bytes of one element, without scales."""
        return _BYTES[self]

    @property
    def is_16bit(self) -> bool:
        return self in (Dtype.BF16, Dtype.FP16)

    @property
    def is_fp8(self) -> bool:
        return self in (Dtype.FP8, Dtype.FP8_FNUZ, Dtype.FP8_E5M2)


_BYTES = {
    Dtype.FP32: 4.0,
    Dtype.TF32: 4.0,
    Dtype.BF16: 2.0,
    Dtype.FP16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.FP8_FNUZ: 1.0,
    Dtype.FP8_E5M2: 1.0,
    Dtype.INT8: 1.0,
    Dtype.FP4: 0.5,
    Dtype.INT4: 0.5,
}
