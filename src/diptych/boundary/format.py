"""How one element of KV is stored and what scales it, and the names of tensor types that say so without doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.layers import Layers
from diptych.errors import Finding, InvalidInput, did_you_mean

NVFP4_GROUP = 16
NO_SCALES = Scaling()

ELEMENT_NAMES = {
    "float32": Element.FP32,
    "float": Element.FP32,
    "bfloat16": Element.BF16,
    "float16": Element.FP16,
    "half": Element.FP16,
    "float8_e4m3fn": Element.E4M3FN,
    "float8_e4m3fnuz": Element.E4M3FNUZ,
    "float8_e5m2": Element.E5M2,
}
"""Names of tensor types that mean one format wherever they are read. Flags such as `fp8` do not: what they store depends on the
engine and the accelerator."""


def element_named(name: str) -> Element:
    """The element of a tensor type's name ('torch.float8_e4m3fnuz', 'bfloat16') or of ours.

    Raises:
        InvalidInput: a name that does not say one format, such as 'fp8'.
    """
    key = name.strip().casefold().removeprefix("torch.")
    try:
        return ELEMENT_NAMES.get(key) or Element(key)
    except ValueError:
        hint = (
            "fp8 is e4m3fn, e4m3fnuz or e5m2" if key == "fp8" else did_you_mean(name[:60], [*Element, *ELEMENT_NAMES])
        )
        raise InvalidInput(Finding("element", f"unknown element format {name[:60]!r}", hint=hint)) from None


@dataclass(frozen=True, slots=True)
class Format:
    """How one element is stored and what scales it."""

    element: Element
    scaling: Scaling = NO_SCALES

    def __post_init__(self) -> None:
        findings = list(_scaling_findings(self.element, self.scaling))
        if findings:
            raise InvalidInput(findings)

    def __str__(self) -> str:
        scaling = self.scaling
        if scaling.source in (ScaleSource.NONE, ScaleSource.UNIT):
            return f"{self.element}" if scaling.source is ScaleSource.NONE else f"{self.element} (scale 1)"
        shared = f"{scaling.granularity} of {scaling.group}" if scaling.group else scaling.granularity
        return f"{self.element} ({scaling.source} scales {shared})"

    def scale_bytes(self, layers: Layers, tokens: float) -> float:
        """Bytes of the scales that travel with `tokens` kept tokens of one layer."""
        if self.scaling.source is not ScaleSource.INLINE:
            return 0.0
        match self.scaling.granularity:
            case ScaleGranularity.GROUP:
                groups = tokens * layers.elements_per_token / self.scaling.group
                if self.element is Element.NVFP4:
                    return groups + (layers.parts * SCALE_BYTES if tokens else 0.0)
                return groups * GROUP_SCALE_BYTES
            case ScaleGranularity.TOKEN:
                return tokens * layers.parts * layers.heads * SCALE_BYTES / layers.compress
            case ScaleGranularity.HEAD:
                return layers.parts * layers.heads * SCALE_BYTES if tokens else 0.0
            case _:
                return layers.parts * SCALE_BYTES if tokens else 0.0


SCALE_BYTES = 4.0
"""Bytes of a scale per tensor, head or token: float32."""
GROUP_SCALE_BYTES = 2.0
"""Bytes of a scale of a group: bfloat16. NVFP4 keeps an e4m3fn byte, behind one float32 per tensor."""


def _scaling_findings(element: Element, scaling: Scaling) -> Iterator[Finding]:
    has_scales = scaling.source is not ScaleSource.NONE
    if element.is_float and has_scales:
        yield Finding("scaling", f"{element} with {scaling.source} scales", "no scales: the element is the value")
    if not element.is_float and not has_scales:
        yield Finding(
            "scaling", f"{element} without scales", ", ".join(s for s in ScaleSource if s != ScaleSource.NONE)
        )
    if has_scales and scaling.source is not ScaleSource.UNIT and scaling.granularity is ScaleGranularity.NONE:
        yield Finding("scaling.granularity", "is none", "what shares one scale")
    if (scaling.granularity is ScaleGranularity.GROUP) != (scaling.group > 0):
        yield Finding(
            "scaling.group", f"is {scaling.group} with {scaling.granularity} scales", "a size for groups only"
        )
    if element is Element.NVFP4 and has_scales and scaling.group != NVFP4_GROUP:
        yield Finding("scaling.group", f"is {scaling.group}", f"{NVFP4_GROUP}, as nvfp4 is defined")
    if scaling.digest and scaling.source is not ScaleSource.CHECKPOINT:
        yield Finding("scaling.digest", f"is given for {scaling.source} scales", "a digest of a checkpoint's only")
