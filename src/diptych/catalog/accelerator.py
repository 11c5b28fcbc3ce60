"""Accelerators: the data sheet, never a derating. What is achieved of it lives in `perf`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diptych.catalog.dtype import Dtype
from diptych.catalog.provenance import Provenance


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """The link between accelerators of one server or domain (NVLink, xGMI, ICI, PCIe).

    `bandwidth` is bytes/s per accelerator and direction; `world` the most accelerators that share it.
    """

    technology: str
    bandwidth: float
    world: int


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator as its vendor describes it: dense FLOP/s, bytes, bytes/s, watts.

    `peak_flops` holds only the formats that the silicon multiplies; what an engine can *execute* is a rule in `design`.
    Where the 8-bit float is e4m3fnuz (CDNA 3) both FP8 keys are there, since engines re-scale e4m3fn when they load it;
    `fp8_format` says which one is multiplied. A number that no source gives is 0 and, if planning needs it, in `missing`.
    """

    name: str
    vendor: str
    memory_bytes: float
    memory_bandwidth: float
    peak_flops: Mapping[Dtype, float] = field(compare=False)
    scaleup: ScaleUp
    pcie_bandwidth: float
    nic_bandwidth: float
    tdp_w: float
    form_factor: str = ""
    provenance: Mapping[str, Provenance] = field(default_factory=dict, compare=False)
    notes: str = ""
    aliases: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether it can be planned with: memory, its bandwidth and one compute rate are known (`missing` names the gaps)."""
        return not self.missing

    @property
    def fp8_format(self) -> Dtype | None:
        """The 8-bit float that its matrix units multiply; None without one."""
        return next((dtype for dtype in (Dtype.FP8_FNUZ, Dtype.FP8) if dtype in self.peak_flops), None)

    @property
    def peak_16bit(self) -> float:
        """Dense FLOP/s in bf16, or fp16 where there is no bf16; 0 when neither is known."""
        return self.peak_flops.get(Dtype.BF16) or self.peak_flops.get(Dtype.FP16) or 0.0

    @property
    def ridge_point(self) -> float:
        """16-bit FLOP per byte of memory traffic at which compute and bandwidth balance; 0 when unknown."""
        return self.peak_16bit / self.memory_bandwidth if self.memory_bandwidth else 0.0


_EIGHT_OR_SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.INT8)


def missing_numbers(memory: float, bandwidth: float, peaks: Mapping[Dtype, float]) -> tuple[str, ...]:
    """The core numbers that an accelerator lacks: without them it is listed but cannot be planned with."""
    gaps = [name for name, value in (("memory", memory), ("memory bandwidth", bandwidth)) if value <= 0]
    if not any(peaks.get(dtype) for dtype in _EIGHT_OR_SIXTEEN_BIT):
        gaps.append("dense 8-bit or 16-bit compute")
    return tuple(gaps)
