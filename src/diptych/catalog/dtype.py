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
    def stored_bytes(self) -> float:
        """Bytes of one stored weight with its share of the block scales.

        FP4 as NVFP4: an 8-bit scale for 16 elements (MXFP4, one for 32, needs 6 % less). INT4 as AWQ and GPTQ: a 16-bit scale
        and a 4-bit zero for 128. FP8 and INT8 scale by channel or by 128 x 128 block, which does not show.
        """
        return self.bytes + _SCALES.get(self, 0.0)

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
_SCALES = {Dtype.FP4: 1.0 / 16, Dtype.INT4: (2.0 + 0.5) / 128}
