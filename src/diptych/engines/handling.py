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
_CONDITIONAL = (Launcher.DYNAMO, Launcher.LLM_D, Launcher.KSERVE)
"""Launchers whose router can keep short prompts on the decode side."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A choice that an engine cannot express, why, and the nearest that it can."""

    choice: str
    sentence: str
    nearest: str


def refusals(
    engine: Engine, launcher: Launcher, prefill: Worker, decode: Worker, boundary: Boundary
) -> Iterator[Refusal]:
    """Every choice of this pair that `engine` under `launcher` cannot express."""
    handling = HANDLING[engine]
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
    if boundary.placement is Placement.CONDITIONAL and not (launcher in _CONDITIONAL and engine is Engine.VLLM):
        yield Refusal(
            f"prompts under {boundary.local_below} tokens stay local",
            f"no router of {launcher} for {engine} decides by prompt length",
            "hand off every prompt, or deploy vLLM on Dynamo, KServe or llm-d",
        )
    for worker in (prefill, decode):
        yield from _worker(engine, handling, worker)


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
        yield Refusal(f"KV {kv}", f"{engine} has no KV cache in {kv}; beside 16 bit it has {known}", "KV fp8")
    if worker.residency not in handling.tiers:
        able = ", ".join(str(tier) for tier in handling.tiers)
        yield Refusal(
            f"KV residency {worker.residency}", f"{engine} alone keeps KV in {able}", f"residency {TierKind.HBM}"
        )
