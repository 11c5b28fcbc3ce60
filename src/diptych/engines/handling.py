"""What a stock engine does with a handoff at all, whatever the settings: the choices that no flag of it can express."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.design.axes import Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement
from diptych.engines.engine import Engine, Launcher


@dataclass(frozen=True, slots=True)
class Handling:
    """What one engine can be told of a handoff. `kv` gives its word for each KV format beside the model's own 16-bit one."""

    ownerships: tuple[Ownership, ...]
    overlaps: tuple[Overlap, ...]
    tiers: tuple[TierKind, ...]
    kv: dict[Dtype, str]
    source: str


HANDLING = {
    Engine.VLLM: Handling(
        (Ownership.PULL, Ownership.PUSH),
        (Overlap.SERIAL,),
        (TierKind.HBM, TierKind.DRAM, TierKind.NVME),
        {
            Dtype.FP8: "fp8_e4m3",
            Dtype.FP8_FNUZ: "fp8_e4m3",
            Dtype.FP8_E5M2: "fp8_e5m2",
            Dtype.INT8: "int8_per_token_head",
            Dtype.INT4: "int4_per_token_head",
            Dtype.FP4: "nvfp4",
        },
        "vLLM 0.33 config/cache.py and kv_connector/v1/nixl: whole requests, read by decode or written by prefill",
    ),
    Engine.SGLANG: Handling(
        (Ownership.PUSH,),
        (Overlap.SERIAL,),
        (TierKind.HBM,),
        {
            Dtype.FP8: "fp8_e4m3",
            Dtype.FP8_FNUZ: "fp8_e4m3",
            Dtype.FP8_E5M2: "fp8_e5m2",
            Dtype.FP4: "nvfp4",
        },
        "SGLang 0.5.23 disaggregation: prefill writes into pages that decode allocated, chunk by chunk",
    ),
    Engine.TRTLLM: Handling(
        (Ownership.PULL,),
        (Overlap.SERIAL,),
        (TierKind.HBM,),
        {Dtype.FP8: "fp8", Dtype.FP4: "nvfp4"},
        "TensorRT-LLM 1.3 cache transceiver: prefill sends when decode asks",
    ),
}
STOCK, DIPTYCH = "", "diptych"
"""Whose connector moves KV: the engine's own, or ours inside vLLM, which converts."""
CONVERTING = Handling(
    (Ownership.PULL, Ownership.PUSH),
    (Overlap.SERIAL, Overlap.LAYERWISE),
    (TierKind.HBM,),
    {Dtype.FP8: "fp8_e4m3", Dtype.FP8_FNUZ: "fp8_e4m3", Dtype.FP8_E5M2: "fp8_e5m2"},
    "diptych.integrations.vllm: any float or FP8 without scales on either side, cast, FP8 or int8 with scales between",
)
_CONDITIONAL = (Launcher.DYNAMO, Launcher.LLM_D, Launcher.KSERVE)
"""Launchers whose router can keep short prompts on the decode side."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A choice that an engine cannot express, why, and the nearest that it can."""

    choice: str
    sentence: str
    nearest: str


def handling_of(engine: Engine, connector: str = STOCK) -> Handling:
    """What can be told of a handoff on this engine over this connector."""
    return CONVERTING if connector == DIPTYCH else HANDLING[engine]


def wire_word(prefill: Worker, boundary: Boundary) -> str:
    """Our connector's word for what crosses: 'raw' as prefill keeps it, '' for what it has no word for."""
    form = boundary.representation
    if form.codec is Codec.RAW and form.wire == prefill.precision.kv:
        return "raw"
    if form.codec is Codec.QUANTISED:
        return {Dtype.INT8: "int8", Dtype.FP8: "fp8"}.get(form.wire, "")
    return _CASTS.get(form.wire, "") if form.codec in (Codec.CAST, Codec.RAW) else ""


_CASTS = {Dtype.FP32: "float32", Dtype.BF16: "bfloat16", Dtype.FP16: "float16", Dtype.FP8: "fp8"}


def refusals(
    engine: Engine, launcher: Launcher, prefill: Worker, decode: Worker, boundary: Boundary, connector: str = STOCK
) -> Iterator[Refusal]:
    """Every choice of this pair that `engine` under `launcher` cannot express over `connector`."""
    handling = handling_of(engine, connector)
    if connector == DIPTYCH:
        yield from _converted(prefill, boundary)
    else:
        yield from _representation(engine, prefill, decode, boundary)
    if boundary.ownership not in handling.ownerships:
        able = handling.ownerships[0]
        yield Refusal(f"ownership {boundary.ownership}", f"{engine} only moves KV by {able}", f"ownership {able}")
    if boundary.overlap not in handling.overlaps:
        yield Refusal(
            f"overlap {boundary.overlap}",
            f"{engine} moves KV after the prefill that made it",
            f"overlap {Overlap.SERIAL}",
        )
    elif boundary.overlap is Overlap.LAYERWISE and boundary.ownership is Ownership.PULL:
        yield Refusal("overlap layerwise, pull", "layers are sent while prefill computes under push", "push")
    if boundary.placement is Placement.CONDITIONAL and not (launcher in _CONDITIONAL and engine is Engine.VLLM):
        yield Refusal(
            f"prompts under {boundary.local_below} tokens stay local",
            f"no router of {launcher} for {engine} decides by prompt length",
            "hand off every prompt, or deploy vLLM on Dynamo, KServe or llm-d",
        )
    for worker in (prefill, decode):
        yield from _worker(engine, handling, worker)


def _converted(prefill: Worker, boundary: Boundary) -> Iterator[Refusal]:
    if not wire_word(prefill, boundary):
        form = boundary.representation
        sentence = "diptych's connector sends KV raw, cast to a float, as FP8, or as int8 with scales"
        yield Refusal(f"KV on the wire: {form}", sentence, f"{Codec.RAW} {prefill.precision.kv}")


def _representation(engine: Engine, prefill: Worker, decode: Worker, boundary: Boundary) -> Iterator[Refusal]:
    made, wire, used = prefill.precision.kv, boundary.representation.wire, decode.precision.kv
    if made == wire == used and boundary.representation.codec is Codec.RAW:
        return
    nearest = made if made == used else min((made, used), key=lambda kv: kv.bytes)
    path = f"{made} → {wire} → {used}" if made != used or wire != made else f"{boundary.representation}"
    yield Refusal(
        f"KV {path}",
        f"stock {engine} sends KV as it is stored and converts nothing, so both roles must store one format",
        f"KV {nearest} on both roles and on the wire",
    )


def _worker(engine: Engine, handling: Handling, worker: Worker) -> Iterator[Refusal]:
    kv = worker.precision.kv
    if not kv.is_16bit and kv not in handling.kv:
        known = ", ".join(str(dtype) for dtype in handling.kv)
        lacks = f"{engine} has no KV cache in {kv}; beside 16 bit it has {known}"
        if handling is CONVERTING:
            lacks = f"diptych's connector hands over no KV that is kept in {kv}; beside 16 bit it takes {known}"
        yield Refusal(f"KV {kv}", lacks, "KV fp8")
    if worker.residency not in handling.tiers:
        able = ", ".join(str(tier) for tier in handling.tiers)
        yield Refusal(
            f"KV residency {worker.residency}", f"{engine} alone keeps KV in {able}", f"residency {TierKind.HBM}"
        )
