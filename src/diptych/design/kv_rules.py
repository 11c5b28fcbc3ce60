"""Rules on what is handed over: one meaning of KV on both sides, the conversion between them, who moves it, which engines can."""

from __future__ import annotations

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Worker
from diptych.design.boundary import Codec, Overlap, Ownership, Side
from diptych.design.capability import capabilities
from diptych.design.ruling import Pair, Setting


def raw_needs_one_format(pair: Pair, setting: Setting) -> str | None:
    """Raw KV needs the same format on both sides: engines move bytes and would read them with another meaning."""
    form = pair.boundary.representation
    produced, consumed = pair.prefill.precision.kv, pair.decode.precision.kv
    if form.codec is Codec.RAW and not produced is form.wire is consumed:
        return f"{produced} → {form.wire} on the wire → {consumed}" + _fnuz_note(produced, consumed)
    return None


def raw_needs_no_converter(pair: Pair, setting: Setting) -> str | None:
    """A raw handoff converts nowhere, any other converts somewhere."""
    form = pair.boundary.representation
    return f"{form}" if (form.codec is Codec.RAW) != (form.converts_at is None) else None


def converting_something(pair: Pair, setting: Setting) -> str | None:
    """A conversion that changes nothing only costs."""
    form = pair.boundary.representation
    produced, consumed = pair.prefill.precision.kv, pair.decode.precision.kv
    same = produced is consumed is form.wire and form.codec is not Codec.RAW
    return f"{produced} stays {produced}" if same else None


def quantised_is_narrower(pair: Pair, setting: Setting) -> str | None:
    """Quantising makes the wire narrower than what prefill produced; a cast keeps or widens it."""
    form, produced = pair.boundary.representation, pair.prefill.precision.kv
    if form.codec is Codec.QUANTISED and form.wire.bytes >= produced.bytes:
        return f"{produced} → {form.wire}"
    if form.codec is Codec.CAST and form.wire.bytes < produced.bytes:
        return f"{produced} → {form.wire} is narrower"
    return None


def converter_is_where_formats_meet(pair: Pair, setting: Setting) -> str | None:
    """Converting at prefill puts the wire's format on the wire; converting at decode leaves prefill's there."""
    form, produced, consumed = (
        pair.boundary.representation,
        pair.prefill.precision.kv,
        pair.decode.precision.kv,
    )
    if form.converts_at is Side.DECODE and form.wire is not produced:
        return f"{form.wire} on the wire from {produced}"
    if form.converts_at in (Side.PREFILL, Side.TRANSFER) and form.wire is produced:
        return f"{produced} leaves as it is"
    if form.converts_at is Side.TRANSFER and form.wire is not consumed:
        return f"{form.wire} must be converted again to {consumed}"
    return None


def nobody_compresses_kv(pair: Pair, setting: Setting) -> str | None:
    """No connector compresses KV on the wire: CacheGen, KIVI and nvCOMP codecs are for storage."""
    return "compressed" if pair.boundary.representation.codec is Codec.COMPRESSED else None


def wire_keeps_eight_bits(pair: Pair, setting: Setting) -> str | None:
    """KV narrower than 8 bits on the wire changes the answers more than any engine vouches for."""
    wire = pair.boundary.representation.wire
    return f"{wire} on the wire" if wire.bytes < 1 else None


def wire_format_is_known(pair: Pair, setting: Setting) -> str | None:
    """The wire carries a format that one of the sides executes, or FP8: a third format serves nobody."""
    wire = pair.boundary.representation.wire
    known = (pair.prefill.precision.kv, pair.decode.precision.kv, Dtype.FP8)
    return f"{wire} between {known[0]} and {known[1]}" if wire not in known else None


def stock_engines_do_not_convert(pair: Pair, setting: Setting) -> str | None:
    """No stock engine converts KV: a representation other than raw needs diptych's connector."""
    raw = pair.boundary.representation.codec is Codec.RAW
    return f"{pair.boundary.representation}" if setting.stock_only and not raw else None


def same_model_and_tokenizer(pair: Pair, setting: Setting) -> str | None:
    """The pair must share model and tokenizer: KV of another model is noise."""
    mine, theirs = pair.prefill.model, pair.decode.model
    if mine.name != theirs.name or mine.tokenizer != theirs.tokenizer:
        return f"{mine.name} and {theirs.name}"
    return None


def tp_sizes_divide(pair: Pair, setting: Setting) -> str | None:
    """Heads are re-sharded by whole ranks: one side's TP must divide the other's."""
    mine, theirs = pair.prefill.parallelism.tp, pair.decode.parallelism.tp
    return f"tp{mine} and tp{theirs}" if max(mine, theirs) % min(mine, theirs) else None


def pull_needs_unreplicated_source(pair: Pair, setting: Setting) -> str | None:
    """A pull cannot gather from a wider prefill whose KV heads are replicated (TP above the KV heads)."""
    wide, tp = pair.prefill.parallelism.tp, pair.decode.parallelism.tp
    pulls = pair.boundary.ownership is Ownership.PULL
    if pulls and wide > tp and wide > _kv_heads(pair.prefill):
        return f"prefill tp{wide}, decode tp{tp}, {_kv_heads(pair.prefill)} KV heads"
    return None


def push_needs_unreplicated_target(pair: Pair, setting: Setting) -> str | None:
    """A push cannot scatter to a wider decode whose KV heads are replicated (TP above the KV heads)."""
    tp, wide = pair.prefill.parallelism.tp, pair.decode.parallelism.tp
    pushes = pair.boundary.ownership is Ownership.PUSH
    if pushes and wide > tp and wide > _kv_heads(pair.decode):
        return f"prefill tp{tp}, decode tp{wide}, {_kv_heads(pair.decode)} KV heads"
    return None


def pull_starts_after_prefill(pair: Pair, setting: Setting) -> str | None:
    """A pull starts when prefill has returned its blocks, so it cannot overlap layer by layer."""
    boundary = pair.boundary
    overlaps = boundary.overlap is Overlap.LAYERWISE and boundary.ownership is Ownership.PULL
    return "layer-wise pull" if overlaps else None


def stock_pairs_share_an_engine(pair: Pair, setting: Setting) -> str | None:
    """Stock connectors join an engine with itself; two engines meet only in diptych's connector."""
    if not setting.stock_only or shared_engines(pair.prefill.accelerator, pair.decode.accelerator):
        return None
    return f"{pair.prefill.accelerator.name} and {pair.decode.accelerator.name} have no engine in common"


def stock_engine_serves_the_pair(pair: Pair, setting: Setting) -> str | None:
    """The stock engine that was asked for can be told everything of the pair, and none of its own rules is broken."""
    return setting.engine.pair(pair) if setting.engine else None


def _kv_heads(worker: Worker) -> int:
    return worker.model.kv_heads


def _fnuz_note(produced: Dtype, consumed: Dtype) -> str:
    formats = {produced, consumed}
    return "; the same bits mean twice the value in e4m3fn" if formats == {Dtype.FP8, Dtype.FP8_FNUZ} else ""


def shared_engines(*accelerators: Accelerator) -> tuple[str, ...]:
    """Engines that serve all of them; plugins of vLLM count as vLLM."""
    sides = [
        {engine.partition("-")[0] for row in capabilities(accelerator) for engine in row.engines}
        for accelerator in accelerators
    ]
    return tuple(sorted(set.intersection(*sides)))
