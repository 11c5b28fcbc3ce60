"""What NIXL's handshake hashes and what it cannot see: model, formats, backend, versions (VN2 to VN6, VN23, VN25, VN26)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diptych.boundary.element import Element, ScaleSource
from diptych.catalog.model import Model
from diptych.engines.backends import shared_backend
from diptych.engines.resolve import Joint
from diptych.engines.resolve_stored import same_bytes
from diptych.engines.resolve_vllm import brings_kv_scales, handoff, transfer_mode
from diptych.engines.resolve_vllm_releases import DRAFT_HASHED, HASHED, MANAGER_HASHED
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Clash, Severity
from diptych.engines.rules.names import base_name
from diptych.engines.rules.vllm_pair import (
    HASH_MESSAGE,
    METADATA,
    WORKER,
    both,
    is_hashed,
    is_mooncake,
    is_nixl,
    is_unchecked,
    vllm_rule,
)

FP8 = (Element.E4M3FN, Element.E4M3FNUZ, Element.E5M2)
_CONNECTOR_CHANGES = "a connector hands KV over only to its like"


def _one_protocol(joint: Joint) -> Iterator[Clash]:
    """VN2: the same release, connector and mode."""
    prefill, decode = joint.prefill, joint.decode
    mine, theirs = handoff(prefill), handoff(decode)
    if mine is None or theirs is None:
        return
    if _protocol(prefill) != _protocol(decode):
        change = f"use {mine.name} on both roles, or {theirs.name}"
        yield Clash(mine.name, theirs.name, change, both(joint, "connector"), _CONNECTOR_CHANGES)
    elif is_hashed(joint) and prefill.version and decode.version and prefill.version != decode.version:
        change = f"run vLLM {max(prefill.version, decode.version)} on both roles"
        yield Clash(f"vLLM {prefill.version}", f"vLLM {decode.version}", change, both(joint, "version"))


def _protocol(role: RoleConfig) -> str:
    connector = handoff(role)
    return transfer_mode(role) or (connector.name if connector else "")


def _one_model(joint: Joint) -> Iterator[Clash]:
    """VN3: the model's string, dtype and shape. A string alone is refused where it is compared, and trusted where it is not."""
    if not is_nixl(joint):
        return
    ours, theirs = joint.model, joint.decode_model or joint.model
    if joint.prefill.model != joint.decode.model and joint.prefill.model and joint.decode.model:
        if ours is not None and theirs is not None and _shape(ours) != _shape(theirs):
            yield from _other_shape(joint, ours, theirs)
        elif is_hashed(joint):
            yield _other_name(joint, base_name(joint.prefill.model) == base_name(joint.decode.model))
    yield from _model_dtypes(joint)


def _other_name(joint: Joint, is_one_model: bool) -> Clash:
    return Clash(
        joint.prefill.model,
        joint.decode.model,
        "give both roles one --model string: the same mounted path, or one repository with --quantization on one role",
        both(joint, "model"),
        "one model, but the handshake compares the string" if is_one_model else "the handshake compares the string",
        is_spurious=is_one_model,
    )


def _other_shape(joint: Joint, ours: Model, theirs: Model) -> Iterator[Clash]:
    names = (f"{ours.name}: {_said(ours)}", f"{theirs.name}: {_said(theirs)}")
    yield Clash(
        *names, "serve one model on both roles", both(joint, "model"), "KV of one model means nothing to another"
    )


def _model_dtypes(joint: Joint) -> Iterator[Clash]:
    ours, theirs = joint.prefill_stored.model_element, joint.decode_stored.model_element
    if ours is None or theirs is None or ours is theirs:
        return
    same = same_bytes(joint.prefill_stored, joint.decode_stored)
    if not is_hashed(joint) and same is not False:
        return
    is_unset = "auto" in (joint.prefill.dtype, joint.decode.dtype)
    yield Clash(
        f"model in {ours}",
        f"model in {theirs}",
        f"set --dtype {_common_dtype(ours, theirs)} on both roles",
        both(joint, "dtype"),
        "an accelerator without bfloat16 runs an unset --dtype in float16" if is_unset else "",
        None if is_hashed(joint) else _unseen(joint),
        is_spurious=same is True,
    )


def _common_dtype(ours: Element, theirs: Element) -> str:
    return "float16" if Element.FP16 in (ours, theirs) else "bfloat16"


def _unseen(joint: Joint) -> Severity:
    """What comes of unlike formats that no hash stops: a length that differs is noticed, bytes of one length are not."""
    ours, theirs = joint.prefill_stored.element, joint.decode_stored.element
    return Severity.REQUEST if ours and theirs and ours.bits != theirs.bits else Severity.SILENT


def _one_kv_format(joint: Joint) -> Iterator[Clash]:
    """VN4: the handshake hashes the word of the KV format, not the format."""
    ours, theirs = joint.prefill_stored, joint.decode_stored
    if not is_nixl(joint) or ours.word == theirs.word:
        return
    same = same_bytes(ours, theirs)
    if not is_hashed(joint) and same is not False:
        return
    is_spurious = same is True
    yield Clash(
        ours.says,
        theirs.says,
        _kv_change(joint),
        both(joint, "kv_cache_dtype"),
        "the bytes are the same, only the spelling differs"
        if is_spurious
        else "vLLM does not convert KV between roles",
        None if is_hashed(joint) else _unseen(joint),
        is_spurious=is_spurious,
    )


def _kv_change(joint: Joint) -> str:
    """One spelling for both: the more explicit where both mean the same, decode's where it means the same on prefill too.

    What one word stores differently on either accelerator must not be spelled alike: nothing would stop it then.
    """
    ours, theirs = joint.prefill_stored, joint.decode_stored
    if same_bytes(ours, theirs):
        word = max((ours.word, theirs.word), key=lambda word: (word not in ("auto", "fp8"), word))
        return f"write --kv-cache-dtype {word} on both roles"
    if _are_fp8(joint):
        return "store 16-bit KV on both roles: under one word each accelerator would store another format, unseen"
    return f"write --kv-cache-dtype {theirs.word} on both roles, or {ours.word}"


def _one_backend(joint: Joint) -> Iterator[Clash]:
    """VN5: the hash holds the backend's name, which each accelerator chooses for itself."""
    ours, theirs = joint.prefill_stored.backends, joint.decode_stored.backends
    if not is_hashed(joint) or not ours or not theirs or set(ours) & set(theirs):
        return
    yield Clash(
        " or ".join(ours),
        " or ".join(theirs),
        _shared(joint),
        both(joint, "attention_backend"),
        ""
        if joint.prefill.attention_backend and joint.decode.attention_backend
        else "not pinned: each role takes its default",
    )


def _shared(joint: Joint) -> str:
    """The backend that both accelerators run with what they store, in vLLM's order of preference."""
    sides = (
        (joint.prefill_gpu, joint.prefill_stored.element),
        (joint.decode_gpu, joint.decode_stored.element),
    )
    known = [(gpu, element.dtype) for gpu, element in sides if gpu is not None and element is not None]
    if joint.model is None or len(known) < 2:
        return "set one --attention-backend that both accelerators run"
    found = shared_backend(joint.model, *known)
    if found is None:
        return (
            "no attention backend runs on both accelerators with these KV formats: choose another format or accelerator"
        )
    return f"set --attention-backend {found.name} on both roles"


def _one_manager(joint: Joint) -> Iterator[Clash]:
    """VN6: the hybrid KV cache manager and the speculative decoding that leaves KV."""
    if not is_hashed(joint):
        return
    ours, theirs = joint.prefill_stored.hybrid, joint.decode_stored.hybrid
    release = joint.decode.release
    if release in MANAGER_HASHED and ours is not None and theirs is not None and ours is not theirs:
        yield Clash(
            f"hybrid KV cache manager {'on' if ours else 'off'}",
            f"hybrid KV cache manager {'on' if theirs else 'off'}",
            "set --disable-hybrid-kv-cache-manager on both roles or on neither",
            both(joint, "hybrid_kv_manager"),
            "a connector without support for it turns it off" if joint.prefill.hybrid_kv_manager is None else "",
        )
    drafts = _draft(joint.prefill, joint), _draft(joint.decode, joint)
    if release in DRAFT_HASHED and drafts[0] != drafts[1]:
        change = "give both roles the same --speculative-config"
        yield Clash(_drafted(drafts[0]), _drafted(drafts[1]), change, both(joint, "speculative"))


_WITH_HIDDEN_STATES = ("eagle", "eagle3", "mtp", "dflash", "dspark")


def _draft(role: RoleConfig, joint: Joint) -> Mapping[str, Any]:
    """What of a speculative configuration is hashed (config/speculative.py `use_eagle`); empty for drafts that leave no KV.

    The draft's KV format is compared where one side names it; where both inherit the target's, that is VN4's business.
    """
    method = str(role.speculative.get("method") or "").casefold()
    method = "mtp" if method.endswith("_mtp") else method
    if method not in _WITH_HIDDEN_STATES:
        return {}
    hashed = ("model", "revision", "code_revision", "parallel_drafting")
    found = {"method": method, **{name: role.speculative.get(name) for name in hashed}}
    if any(each.speculative.get("kv_cache_dtype") for each in (joint.prefill, joint.decode)):
        found["kv_cache_dtype"] = role.speculative.get("kv_cache_dtype") or role.kv_cache_dtype
    return found


def _drafted(draft: Mapping[str, Any]) -> str:
    if not draft:
        return "no draft with KV of its own"
    return " ".join(str(value) for value in draft.values() if value)


def _checked_by_meaning(joint: Joint) -> Iterator[Clash]:
    """VN23: with the comparison off, what is stored must be known to mean the same."""
    ours, theirs = joint.prefill_stored, joint.decode_stored
    same = same_bytes(ours, theirs)
    if not is_unchecked(joint) or same is True:
        return
    if same is None:
        detail = "; ".join(dict.fromkeys((*ours.unknown, *theirs.unknown)))
        change = "remove enforce_handshake_compat, or name the models and accelerators so that the formats are known"
    else:
        detail = f"{ours.element} is read as {theirs.element}"
        change = "store one format on both roles, or remove enforce_handshake_compat"
    severity = None if same is None else _unseen(joint)
    yield Clash(ours.says, theirs.says, change, both(joint, "connector"), detail, severity)


def _one_set_of_scales(joint: Joint) -> Iterator[Clash]:
    """VN25: FP8 scales do not travel; each role reads with those of its own checkpoint."""
    if not (is_nixl(joint) or is_mooncake(joint)) or not _are_fp8(joint):
        return
    prefill, decode = joint.prefill, joint.decode
    sources = {joint.prefill_stored.scaling, joint.decode_stored.scaling}
    kinds = {scaling.source for scaling in sources if scaling is not None}
    if ScaleSource.DYNAMIC in kinds:
        places = both(joint, "calculate-kv-scales")
        yield Clash(
            "scales computed while running", "", "drop --calculate-kv-scales: they stay where they are made", places
        )
    elif len(kinds) > 1 or (ScaleSource.CHECKPOINT in kinds and prefill.model != decode.model):
        yield Clash(
            _scales(prefill),
            _scales(decode),
            "load one checkpoint on both roles",
            both(joint, "model"),
            "decode reads prefill's bytes with its own scales",
        )
    elif prefill.revision and decode.revision and prefill.revision != decode.revision:
        change = "pin one --revision on both roles"
        names = (f"scales of revision {prefill.revision}", f"scales of revision {decode.revision}")
        yield Clash(*names, change, both(joint, "revision"), "the revision is not part of the hash")


def _scales(role: RoleConfig) -> str:
    return (
        f"scales of {role.model}" if brings_kv_scales(role.model) else f"scale 1 ({role.model} is taken to bring none)"
    )


def _are_fp8(joint: Joint) -> bool:
    return joint.prefill_stored.element in FP8 and joint.decode_stored.element in FP8


def _one_fp8(joint: Joint) -> Iterator[Clash]:
    """VN26: gfx94x stores e4m3fnuz under the same word, in which each byte means half."""
    ours, theirs = joint.prefill_stored, joint.decode_stored
    if not (is_nixl(joint) or is_mooncake(joint)) or not _are_fp8(joint) or ours.element is theirs.element:
        return
    if Element.E4M3FNUZ not in (ours.element, theirs.element) or None in (joint.prefill_gpu, joint.decode_gpu):
        return
    yield Clash(
        ours.says,
        theirs.says,
        "store bfloat16 KV on both roles, or convert between the two: vLLM does not",
        both(joint, "kv_cache_dtype"),
        _halved(joint),
    )


def _halved(joint: Joint) -> str:
    scaling = joint.prefill_stored.scaling
    if scaling and scaling.source is ScaleSource.CHECKPOINT:
        return "the checkpoint's scales are doubled on gfx94x, so values agree but for the codes 0x7f, 0x80 and 0xff"
    return "0x38 is 0.5 in e4m3fnuz and 1 in e4m3fn, and 0x80 is NaN in one and -0 in the other"


def _shape(model: Model) -> tuple[Any, ...]:
    return tuple((count, attention) for count, attention in model.attention_groups())


def _said(model: Model) -> str:
    return f"{model.num_layers} layers, {model.kv_heads} KV heads"


_ISSUES = "https://github.com/vllm-project/vllm/issues"
RULES = (
    vllm_rule(
        "VN2",
        Severity.REQUEST,
        "Both roles run one release, one connector and one direction of transfer.",
        _one_protocol,
        f"{METADATA} (vllm_version, nixl_connector_version, transfer_mode)",
        HASH_MESSAGE,
    ),
    vllm_rule(
        "VN3",
        Severity.REQUEST,
        "Both roles serve one model under one name, in one dtype.",
        _one_model,
        f"{METADATA} (model, dtype, num_kv_heads, head_size, num_hidden_layers)",
        HASH_MESSAGE,
    ),
    vllm_rule(
        "VN4",
        Severity.REQUEST,
        "Both roles spell one KV format alike.",
        _one_kv_format,
        f"{METADATA} (cache_dtype as a string)",
        HASH_MESSAGE,
    ),
    vllm_rule(
        "VN5",
        Severity.REQUEST,
        "Both roles run one attention backend.",
        _one_backend,
        f"{METADATA} (attn_backend_name); {_ISSUES}/23587",
        HASH_MESSAGE,
        versions=HASHED,
    ),
    vllm_rule(
        "VN6",
        Severity.REQUEST,
        "The hybrid KV cache manager and speculative decoding are alike on both roles.",
        _one_manager,
        f"{METADATA} (is_hma_enabled, speculative_config); https://github.com/ai-dynamo/dynamo/pull/12821",
        HASH_MESSAGE,
        versions=MANAGER_HASHED,
    ),
    vllm_rule(
        "VN23",
        Severity.SILENT,
        "The handshake's comparison is switched off only where the stored bytes mean the same.",
        _checked_by_meaning,
        f"{WORKER} (enforce_handshake_compat)",
        versions=HASHED,
    ),
    vllm_rule(
        "VN25",
        Severity.SILENT,
        "FP8 KV is written and read with the same scales.",
        _one_set_of_scales,
        "vLLM 0.33 model_executor/layers/quantization/kv_cache.py: scales are loaded by each role and not sent",
    ),
    vllm_rule(
        "VN26",
        Severity.SILENT,
        "FP8 KV does not cross between gfx94x and another accelerator.",
        _one_fp8,
        "vLLM 0.33 platforms/rocm.py (is_fp8_fnuz)",
    ),
)
