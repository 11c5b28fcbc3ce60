"""What an engine sees of an accelerator: its platform and generation, and the accelerator that a node's label names."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diptych.catalog.accelerator import Accelerator


@dataclass(frozen=True, slots=True)
class Platform:
    """`device` is cuda, rocm, xpu, hpu, tpu, npu or neuron; `generation` a compute capability ('9.0') or AMD's ('gfx942')."""

    device: str
    generation: str = ""

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA compute capability; (0, 0) elsewhere."""
        if self.device != "cuda":
            return (0, 0)
        major, _, minor = self.generation.partition(".")
        return int(major), int(minor)

    @property
    def buffer_device(self) -> str:
        """What vLLM calls it in `kv_buffer_device`: ROCm is 'cuda' as well."""
        return "cuda" if self.device == "rocm" else self.device

    @property
    def stores_fnuz(self) -> bool:
        """Whether its FP8 is e4m3fnuz: CDNA 3 (gfx94x), in vLLM 0.33 platforms/rocm.py and SGLang 0.5.23 alike."""
        return self.generation.startswith("gfx94")

    @property
    def has_bf16(self) -> bool:
        """vLLM 0.33 platforms/cuda.py `supported_dtypes`: before compute capability 8.0 there is no bfloat16."""
        return self.device != "cuda" or self.capability >= (8, 0)


def platform(gpu: Accelerator | None) -> Platform | None:
    """The platform of an accelerator by the longest matching prefix of its name; None for an unknown or a user's own."""
    return None if gpu is None else _platform(gpu.name)


@cache
def _platform(name: str) -> Platform | None:
    matches = [prefix for prefix in _platforms() if name.startswith(prefix)]
    return _platforms()[max(matches, key=len)] if matches else None


_FORM_WORDS = re.compile(
    r"[-_ ](shared|mig[-_ ].*|mega|sxm\d?|oam|hbm\de?|virt\w*|\d+g\.\d+gb.*|vf|ac|\de)$", re.IGNORECASE
)

_OTHERWISE = {
    "nvidia-a100-80gb-pcie": "A100-PCIe-80GB",
    "nvidia-a100-pcie-40gb": "A100-PCIe-40GB",
    "amd_instinct_mi325_oam": "MI325X",
    "amd_instinct_mi325x_oam": "MI325X",
    "amd_instinct_mi350_oam": "MI350X",
    "amd_instinct_mi355_oam": "MI355X",
}
"""Labels in an order of words that the catalog does not fold."""


def labelled_accelerator(label: str, find: Callable[[str], Accelerator | None]) -> Accelerator | None:
    """The accelerator that a node's label names ('NVIDIA-H100-80GB-HBM3', 'nvidia-h100-mega-80gb', 'AMD_Instinct_MI300X_OAM').

    `find` looks a spelling up in a catalog. Form factors, MIG slices and time-sharing suffixes are dropped until something is
    found; None when nothing is.
    """
    text = label.strip()
    text = _OTHERWISE.get(text.casefold(), text)
    while True:
        found = find(text) or find(text.replace("-mega", "").replace("-tesla", ""))
        shorter = _FORM_WORDS.sub("", text)
        if found is not None or shorter == text:
            return found
        text = shorter


@cache
def _platforms() -> dict[str, Platform]:
    text = (files("diptych.engines") / "data" / "platforms.csv").read_text(encoding="utf-8")
    return {row["prefix"]: Platform(row["device"], row["capability"]) for row in csv.DictReader(text.splitlines())}
