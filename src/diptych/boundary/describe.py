"""From the nouns of a design (model, precision, parallelism) to the Runtime KV State that its worker produces or consumes."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.boundary.descriptor import Holding, KVState, Layout, Shard, Storage
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import NO_SCALES, NVFP4_GROUP, Format
from diptych.boundary.identity import Identity
from diptych.boundary.layers import LayerKind, Layers
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Attention, Model, StateSpace
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.errors import Finding, InvalidInput

BLOCK_TOKENS = 16
ELEMENT_OF = {element.dtype: element for element in Element}
"""The stored format of each of the catalog's names: FP8 is e4m3fn, FP4 is NVFP4."""


def describe(
    model: Model,
    precision: Precision,
    parallelism: Parallelism,
    *,
    identity: Identity | None = None,
    element: Element | None = None,
    scaling: Scaling | None = None,
    block_tokens: int = BLOCK_TOKENS,
    layout: Layout | str = Layout.LBHNC,
    packing: str = "",
    residency: TierKind = TierKind.HBM,
) -> KVState:
    """The static state of a worker: no tokens, no rank. What is not given is what a design without an engine assumes.

    That is vLLM's layout for disaggregation, blocks of 16 tokens, the scales engines keep with a format (`usual_scaling`), and an
    identity of which only the model's name is known.

    Raises:
        InvalidInput: a KV format that no cache is stored in (TF32), or heads that the ranks cannot share.
    """
    stored = element or element_of(precision.kv)
    return KVState(
        identity=identity or Identity(model.name),
        layers=layers_of(model),
        format=Format(stored, usual_scaling(stored) if scaling is None else scaling),
        storage=Storage(block_tokens, Layout.of(layout), packing=packing),
        shard=Shard(tp=parallelism.tp, pp=parallelism.pp, dp=parallelism.dp),
        holding=Holding(residency),
    )


def describe_worker(worker: Worker, **given: object) -> KVState:
    """The static state of a design's worker."""
    return KVState.of(worker.model, worker.precision, worker.parallelism, **{"residency": worker.residency, **given})


def element_of(kv: Dtype) -> Element:
    """The stored format of a catalog name. Raises InvalidInput."""
    if kv not in ELEMENT_OF:
        raise InvalidInput(Finding("kv", f"no cache is stored in {kv}", ", ".join(ELEMENT_OF)))
    return ELEMENT_OF[kv]


def usual_scaling(element: Element) -> Scaling:
    """The scales that engines keep with a format: none at 16 bit and more, one for FP8, per token for INT8, groups at 4 bit."""
    if element.is_float:
        return NO_SCALES
    if element is Element.INT8:
        return Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN)
    if element in (Element.INT4, Element.NVFP4):
        return Scaling(
            ScaleSource.INLINE, ScaleGranularity.GROUP, group=NVFP4_GROUP if element is Element.NVFP4 else 64
        )
    return Scaling(ScaleSource.UNIT)


def layers_of(model: Model) -> tuple[Layers, ...]:
    """The layers of a model that leave something for decode, in the catalog's order (which merges equal ones: no indices).

    Raises:
        InvalidInput: the model keeps nothing.
    """
    found = tuple(_layers(model))
    if not found:
        raise InvalidInput(Finding("model", f"{model.name} has no layer that keeps KV or state"))
    return found


def _layers(model: Model) -> Iterator[Layers]:
    for group in model.layers:
        if isinstance(group.mixer, Attention):
            yield _attention(group.count, group.mixer)
        elif isinstance(group.mixer, StateSpace):
            elements, stored = group.mixer.state_elements, element_of(group.mixer.state_dtype)
            yield Layers(LayerKind.STATE, group.count, state_elements=float(elements), state_format=stored)


def _attention(count: int, attention: Attention) -> Layers:
    window = attention.window or 0
    if attention.is_mla:
        rank, rope = attention.latent_rank, attention.rope_dim
        return Layers(
            LayerKind.LATENT, count, window=window, latent_rank=rank, rope_dim=rope, compress=attention.compress
        )
    return Layers(
        LayerKind.SLIDING if window else LayerKind.FULL,
        count,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        v_head_dim=0 if attention.key_is_value else attention.v_head_dim,
        window=window,
        compress=attention.compress,
    )


def wire_format(wire: Dtype, produced: Format, consumed: Format) -> Format:
    """The format that crosses when a design says `wire`: a side's own where it is that, else one whose scales travel."""
    for own in (produced, consumed):
        if own.element.dtype is wire:
            return own
    element = element_of(wire)
    scaling = usual_scaling(element)
    if scaling.source is ScaleSource.UNIT:
        scaling = Scaling(ScaleSource.INLINE, ScaleGranularity.TENSOR)
    return Format(element, scaling)
