"""From one stored format to another: which operation it takes, where its scales are at hand, and what it loses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from diptych.boundary.element import Element, ScaleGranularity, ScaleSource
from diptych.boundary.format import Format
from diptych.design.boundary import Side


class Op(StrEnum):
    """One step of a plan. The first five change what a byte means, the next four where it lies."""

    CAST = "cast"
    QUANTISE = "quantise"
    DEQUANTISE = "dequantise"
    REQUANTISE = "requantise"
    RESCALE = "rescale"
    REGROUP = "regroup blocks"
    PERMUTE = "permute layout"
    RESHARD = "reshard heads and layers"
    REPAGE = "repage"
    TRANSFER = "transfer"

    @property
    def converts(self) -> bool:
        return self in (Op.CAST, Op.QUANTISE, Op.DEQUANTISE, Op.REQUANTISE, Op.RESCALE)

    @property
    def redistributes(self) -> bool:
        return self in (Op.REGROUP, Op.PERMUTE, Op.RESHARD, Op.REPAGE)


class Loss(StrEnum):
    """What a step loses, least first."""

    EXACT = "exact"
    BOUNDED = "bounded"  # every finite value is within a stated bound
    LOSSY = "lossy"  # values outside the target's range are clipped or vanish

    @property
    def order(self) -> int:
        return list(Loss).index(self)


@dataclass(frozen=True, slots=True)
class Conversion:
    """How `source` becomes `target`: the operation, the sides that have every scale it needs, the loss and its bound in words."""

    op: Op
    source: Format
    target: Format
    sides: tuple[Side, ...]
    loss: Loss
    bound: str
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """The values of a floating format: mantissa bits, largest finite value, smallest step."""

    mantissa: int
    largest: float
    smallest: float


GRIDS = {
    Element.FP32: Grid(23, (2 - 2.0**-23) * 2.0**127, 2.0**-149),
    Element.BF16: Grid(7, (2 - 2.0**-7) * 2.0**127, 2.0**-133),
    Element.FP16: Grid(10, 65504.0, 2.0**-24),
    Element.E4M3FN: Grid(3, 448.0, 2.0**-9),
    Element.E4M3FNUZ: Grid(3, 240.0, 2.0**-10),
    Element.E5M2: Grid(2, 57344.0, 2.0**-16),
}
"""IEEE 754 and bfloat16; e4m3fn and e5m2 of the OCP 8-bit specification (2023-06), e4m3fnuz of Graphcore, AMD and Qualcomm."""

LEVELS = {Element.INT8: 127, Element.INT4: 7}
_FINER = (ScaleGranularity.TENSOR, ScaleGranularity.HEAD, ScaleGranularity.TOKEN)
_TWINS = frozenset((Element.E4M3FN, Element.E4M3FNUZ))
_ANYWHERE = (ScaleSource.NONE, ScaleSource.UNIT, ScaleSource.INLINE)


def same_meaning(source: Format, target: Format) -> bool | None:
    """Whether a byte means the same in both; None when both scale by a checkpoint of which one digest is not known."""
    if source.element is not target.element:
        return False
    mine, theirs = source.scaling, target.scaling
    if mine.source is not theirs.source or mine.source is ScaleSource.DYNAMIC:
        return False
    if mine.source in (ScaleSource.NONE, ScaleSource.UNIT):
        return True
    if _shared(source) != _shared(target):
        return False
    return _same_scales(source, target)


def conversion(source: Format, target: Format, have: Collection[str] = ()) -> Conversion:
    """The step from `source`, as the prefill side stores it, to `target`, as the decode side does.

    Each side holds its own scales: what a checkpoint gives to a role, and what it computes while running. `have` are digests of
    checkpoint scales that either side was given besides. Without a side that can both read and write there is an `obstacle`.
    """
    loss, bound = _loss(source, target)
    sides = tuple(side for side in Side if _reads(source, target, side, have) and _writes(source, target, side, have))
    return Conversion(
        operation(source, target), source, target, sides, loss, bound, "" if sides else _obstacle(source, target)
    )


def operation(source: Format, target: Format) -> Op:
    """The operation's name. fn and fnuz differ by a factor of two in what each byte means, so passing from one to the other is a
    re-scale."""
    pair = {source.element, target.element}
    if source.element.is_float and target.element.is_float:
        return Op.CAST
    if source.element.is_float:
        return Op.QUANTISE
    if target.element.is_float:
        return Op.DEQUANTISE
    return Op.RESCALE if len(pair) == 1 or pair == _TWINS else Op.REQUANTISE


def keeps_bytes(source: Format, target: Format) -> bool:
    """Whether the bytes stay as they are and only their scales are written anew: the same for one element format, twice or half
    between e4m3fn and e4m3fnuz.

    Checkpoint scales are those of the checkpoint on both sides; the fnuz side applies them doubled, as vLLM does on gfx94x.
    """
    pair = {source.element, target.element}
    if Element.NVFP4 in pair or (len(pair) > 1 and pair != _TWINS):
        return False
    if target.scaling.source in (ScaleSource.INLINE, ScaleSource.DYNAMIC):
        return _covers(source, target)
    return _shares(source, target) and _shared(source) == _shared(target)


def _covers(source: Format, target: Format) -> bool:
    """Whether each scale of the target can take the value of the source's that it lies within. A group's has fewer bits."""
    if source.scaling.source is ScaleSource.UNIT or _shared(source) == _shared(target):
        return True
    have, want = source.scaling.granularity, target.scaling.granularity
    return have in _FINER and want in _FINER and _FINER.index(have) < _FINER.index(want)


def _shared(stored: Format) -> tuple[ScaleGranularity, int]:
    return stored.scaling.granularity, stored.scaling.group


def _same_scales(source: Format, target: Format) -> bool | None:
    mine, theirs = source.scaling, target.scaling
    if mine.source is ScaleSource.CHECKPOINT and not (mine.digest and theirs.digest):
        return None
    return mine.digest == theirs.digest


def _reads(source: Format, target: Format, side: Side, have: Collection[str]) -> bool:
    """Whether the scales of the source are at hand on a side."""
    kind = source.scaling.source
    if kind in _ANYWHERE or side is Side.PREFILL:
        return True
    if kind is ScaleSource.DYNAMIC:
        return False
    return source.scaling.digest in have or (side is Side.DECODE and _shares(source, target))


def _writes(source: Format, target: Format, side: Side, have: Collection[str]) -> bool:
    """Whether the scales of the target are at hand on a side."""
    kind = target.scaling.source
    if kind in _ANYWHERE or side is Side.DECODE:
        return True
    if kind is ScaleSource.DYNAMIC:
        return False
    return target.scaling.digest in have or (side is Side.PREFILL and _shares(source, target))


def _shares(source: Format, target: Format) -> bool:
    """Whether both sides loaded the same checkpoint scales; where a digest is missing that is unverified, and told elsewhere."""
    both = {source.scaling.source, target.scaling.source} == {ScaleSource.CHECKPOINT}
    return both and _same_scales(source, target) is not False


def _obstacle(source: Format, target: Format) -> str:
    kinds = (source.scaling.source, target.scaling.source)
    if kinds == (ScaleSource.CHECKPOINT, ScaleSource.CHECKPOINT):
        return "re-scaling needs both sets of scales, and no side has both"
    return f"{kinds[0]} scales stay with the producer and {kinds[1]} ones with the consumer: no side can both read and write"


def _loss(source: Format, target: Format) -> tuple[Loss, str]:
    if keeps_bytes(source, target):
        is_twin = source.element is not target.element
        return _twin_loss(target.element) if is_twin else (Loss.EXACT, "the same bytes")
    scaled = target.scaling.source
    if scaled in (ScaleSource.INLINE, ScaleSource.DYNAMIC):
        return Loss.BOUNDED, _quantised_bound(target.element)
    if scaled is ScaleSource.CHECKPOINT:
        return Loss.LOSSY, f"clips beyond the scale times {_largest(target.element):g}"
    if target.element in LEVELS:
        return Loss.LOSSY, f"rounds to whole numbers and clips beyond {LEVELS[target.element]}"
    return _grid_loss(source, target)


def _twin_loss(target: Element) -> tuple[Loss, str]:
    """The three codes on which the formats differ by more than a factor: 0x80, 0x7f and 0xff."""
    if target is Element.E4M3FNUZ:
        return Loss.EXACT, "every finite value; -0 becomes 0"
    return Loss.BOUNDED, "exact but for the two largest codes: ±240 becomes ±224 before the scale"


def _grid_loss(source: Format, target: Format) -> tuple[Loss, str]:
    """Into a float or an FP8 whose scale is one: what the grids of both say."""
    to = GRIDS[target.element]
    rounding = f"relative 2^-{to.mantissa + 1}, absolute {to.smallest / 2:g}"
    is_scaled = source.scaling.source not in (ScaleSource.NONE, ScaleSource.UNIT)
    if is_scaled or source.element not in GRIDS:
        within = to.largest >= GRIDS[Element.BF16].largest
        return (Loss.BOUNDED, rounding) if within else (Loss.LOSSY, f"clips beyond {to.largest:g}; else {rounding}")
    have = GRIDS[source.element]
    if to.mantissa >= have.mantissa:
        rounding = f"absolute {to.smallest / 2:g}"
    if to.largest < have.largest:
        return Loss.LOSSY, f"clips beyond {to.largest:g}; else {rounding}"
    is_exact = to.mantissa >= have.mantissa and to.smallest <= have.smallest
    return (Loss.EXACT, "every finite value") if is_exact else (Loss.BOUNDED, rounding)


def _quantised_bound(target: Element) -> str:
    if target in LEVELS:
        return f"absolute amax/{2 * LEVELS[target]} of what shares a scale"
    grid = GRIDS.get(target)
    return (
        f"relative 2^-{grid.mantissa + 1}, absolute scale × {grid.smallest / 2:g}"
        if grid
        else "relative 1/4, absolute scale / 4"
    )


def _largest(element: Element) -> float:
    return float(LEVELS[element]) if element in LEVELS else GRIDS[element].largest if element in GRIDS else 6.0
