"""Random Runtime KV States: every kind of layer, format, storage and shard that passes its own checks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from diptych.boundary.descriptor import Holding, KVState, Layout, Shard, Storage
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import NO_SCALES, NVFP4_GROUP, Format
from diptych.boundary.identity import Identity, Position, PositionKind, TokenRange
from diptych.boundary.layers import LayerKind, Layers
from diptych.catalog.memory import TierKind

names = st.sampled_from(("one", "two", "Qwen3-32B", "ключ", "a b"))
told = st.none() | st.just("") | names
sizes = st.sampled_from((1, 2, 4, 8))
dims = st.sampled_from((64, 128))

positions = st.builds(
    Position,
    st.sampled_from(PositionKind),
    st.none() | st.sampled_from((1e4, 5e5, 1e6, 1234.5)),
    told,
    st.none() | st.booleans(),
)


@st.composite
def identities(draw: st.DrawFn) -> Identity:
    start = draw(st.integers(0, 64))
    tokens = draw(st.none() | st.integers(1, 4096).map(lambda count: TokenRange(start, start + count)))
    blocks = draw(st.lists(names, max_size=4)) if tokens else ()
    return Identity(draw(names), *(draw(told) for _ in range(4)), draw(positions), tokens, tuple(blocks))


@st.composite
def layers(draw: st.DrawFn) -> Layers:
    kind, count = draw(st.sampled_from(LayerKind)), draw(st.integers(1, 8))
    if kind is LayerKind.STATE:
        stored = draw(st.sampled_from((Element.FP32, Element.BF16)))
        return Layers(kind, count, state_elements=draw(st.sampled_from((4096.0, 524288.0))), state_format=stored)
    window = draw(st.sampled_from((128, 4096))) if kind is LayerKind.SLIDING else 0
    if kind is LayerKind.LATENT:
        return Layers(kind, count, latent_rank=512, rope_dim=64, compress=draw(st.sampled_from((1, 4))))
    return Layers(kind, count, kv_heads=8, head_dim=draw(dims), v_head_dim=draw(st.just(0) | dims), window=window)


@st.composite
def models(draw: st.DrawFn) -> tuple[Layers, ...]:
    """Layers of one model, all of them named or none."""
    found = draw(st.lists(layers(), min_size=1, max_size=4))
    if not draw(st.booleans()):
        return tuple(found)
    order = draw(st.permutations(range(sum(entry.count for entry in found))))
    ends = [sum(entry.count for entry in found[: place + 1]) for place in range(len(found))]
    return tuple(
        replace(entry, index=tuple(sorted(order[end - entry.count : end])))
        for entry, end in zip(found, ends, strict=True)
    )


@st.composite
def scalings(draw: st.DrawFn) -> Scaling:
    source = draw(st.sampled_from([kind for kind in ScaleSource if kind is not ScaleSource.NONE]))
    if source is ScaleSource.UNIT:
        return Scaling(source, draw(st.sampled_from((ScaleGranularity.NONE, ScaleGranularity.TENSOR))))
    granularity = draw(st.sampled_from([kind for kind in ScaleGranularity if kind is not ScaleGranularity.NONE]))
    group = draw(st.sampled_from((16, 32, 64))) if granularity is ScaleGranularity.GROUP else 0
    digest = draw(st.sampled_from(("", "a", "b"))) if source is ScaleSource.CHECKPOINT else ""
    return Scaling(source, granularity, digest, group)


@st.composite
def formats(draw: st.DrawFn) -> Format:
    element = draw(st.sampled_from(Element))
    if element is Element.NVFP4:
        return Format(element, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=NVFP4_GROUP))
    return Format(element, NO_SCALES if element.is_float else draw(scalings()))


@st.composite
def shardings(draw: st.DrawFn) -> Shard:
    """Of a whole worker more often than of a rank."""
    tp, pp, dp = draw(sizes), draw(sizes), draw(sizes)
    ranks = [draw(st.none() | st.none() | st.integers(0, size - 1)) for size in (tp, pp, dp)]
    return Shard(tp, pp, dp, draw(st.sampled_from((*6 * (1,), 2))), *ranks)


storages = st.builds(
    Storage,
    st.sampled_from((1, 16, 32, 128)),
    st.sampled_from((Layout.LBHNC, Layout.LBHNC, Layout.LBHNC, *Layout)),
    st.sampled_from((0, 0, 65536)),
    st.sampled_from((*6 * ("",), "vllm-cpu")),
)
shards = shardings()
holdings = st.builds(Holding, st.sampled_from(TierKind), st.sampled_from(("", "p0", "d1")), st.integers(0, 2**40))
states = st.builds(KVState, identities(), models(), formats(), storages, shards, holdings)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[KVState, KVState]:
    """Two states of one identity and one model, each part of the other either the same or drawn anew."""
    first = draw(states)
    second = replace(
        first,
        format=draw(st.just(first.format) | formats()),
        storage=draw(st.just(first.storage) | storages),
        shard=draw(st.just(first.shard) | shards),
        holding=draw(holdings),
    )
    return first, second
