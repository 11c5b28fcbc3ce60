"""From settings to what will be stored: the engine's own resolution, repeated on the model and the accelerator of each role."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diptych.boundary.describe import layers_of, usual_scaling
from diptych.boundary.descriptor import KVState, Layout, Shard, Storage
from diptych.boundary.format import Format
from diptych.boundary.identity import Identity
from diptych.engines import resolve_sglang, resolve_trtllm, resolve_vllm
from diptych.engines.deployment import Deployment
from diptych.engines.engine import Engine
from diptych.engines.resolve_stored import FROM_CHECKPOINT, UNIT, Stored
from diptych.engines.role import RoleConfig
from diptych.errors import InvalidInput

if TYPE_CHECKING:
    from diptych.catalog.accelerator import Accelerator
    from diptych.catalog.model import Model


@dataclass(frozen=True, slots=True)
class Joint:
    """Two roles that may meet, with what is known of their model and accelerators; the argument of every rule.

    `decode_model` is given where decode's own name is of another model. `stored` and `decode_stored` are what each role will
    store: resolved once, when the two are joined.
    """

    prefill: RoleConfig
    decode: RoleConfig
    deployment: Deployment
    model: Model | None = None
    prefill_gpu: Accelerator | None = None
    decode_gpu: Accelerator | None = None
    decode_model: Model | None = None
    prefill_stored: Stored = field(init=False, compare=False)
    decode_stored: Stored = field(init=False, compare=False)

    def __post_init__(self) -> None:
        theirs = self.decode_model or self.model
        object.__setattr__(self, "prefill_stored", stored(self.prefill, self.model, self.prefill_gpu))
        object.__setattr__(self, "decode_stored", stored(self.decode, theirs, self.decode_gpu))


def stored(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> Stored:
    """What `role` stores, by its own engine's resolution; the parts that are not known say so."""
    match role.engine:
        case Engine.VLLM:
            return resolve_vllm.resolve(role, model, gpu)
        case Engine.SGLANG:
            return _sglang(role, model, gpu)
        case Engine.TRTLLM:
            return _trtllm(role)


def kv_state(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> KVState | None:
    """The Runtime KV State of a role's worker.

    None while its model, element format, scales or block are not known, and where no worker can be so: ranks that cannot share
    the heads.
    """
    found = stored(role, model, gpu)
    if model is None or found.element is None or found.scaling is None or found.moved_tokens is None:
        return None
    try:
        return KVState(
            Identity(model.name, role.revision or None, tokenizer=role.tokenizer or None),
            layers_of(model),
            Format(found.element, found.scaling),
            Storage(found.moved_tokens, found.layout, packing=found.packing),
            Shard(_head_ranks(role), role.pp, role.dp, role.dcp),
        )
    except InvalidInput:
        return None


def _head_ranks(role: RoleConfig) -> int:
    """Ranks that heads are split over: SGLang's data-parallel attention shares them out."""
    return resolve_sglang.attention_tp(role) if role.engine is Engine.SGLANG else role.tp


def _sglang(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> Stored:
    element = resolve_sglang.stored_element(role, model, gpu)
    page = resolve_sglang.page_size(role, model, gpu)
    scaling = usual_scaling(element) if element else None
    unknown = () if model else (f"model {role.model!r} is not in the catalog: bfloat16 is assumed",)
    return Stored(
        resolve_sglang.compared_dtype(role, model, gpu),
        element,
        FROM_CHECKPOINT if scaling == UNIT and _has_kv_scales(role) else scaling,
        resolve_sglang.model_element(role, model, gpu),
        page,
        page,
        Layout.LBNHC,
        resolve_sglang.attention_backends(role, model, gpu),
        unknown=unknown if gpu else (*unknown, "no accelerator of the catalog was named"),
    )


def _has_kv_scales(role: RoleConfig) -> bool:
    named = str(role.options.get(resolve_sglang.KV_QUANT, "")).upper()
    return named == "FP8" or resolve_vllm.brings_kv_scales(role.model)


def _trtllm(role: RoleConfig) -> Stored:
    element, block = resolve_trtllm.stored_element(role), resolve_trtllm.tokens_per_block(role)
    scaling = usual_scaling(element) if element else None
    unknown = () if element else ("the KV format follows the checkpoint, which was not read",)
    return Stored(resolve_trtllm.kv_word(role), element, scaling, None, block, block, unknown=unknown)
