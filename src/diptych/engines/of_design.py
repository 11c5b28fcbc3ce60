"""A design as the settings an engine would be started with: what the generators write and what the planner's rules judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.memory import TierKind
from diptych.design.axes import Role, Worker
from diptych.design.boundary import Boundary, Ownership, Placement
from diptych.design.design import Design, Member
from diptych.engines.backends import shared_backend
from diptych.engines.deployment import UNKNOWN, Deployment, Expected
from diptych.engines.engine import Engine, Launcher, Version
from diptych.engines.handling import DIPTYCH, STOCK, handling_of, wire_word
from diptych.engines.repositories import repository
from diptych.engines.role import Connector, EnvValue, RoleConfig

BLOCK = 64
"""Tokens of a block on both roles: what every attention backend of the table takes, and few descriptors for a transfer."""
_SERVER = 8
LEASE = 60
"""Seconds that prefill keeps a finished prompt for decode: twice vLLM's default, which a burst was seen to outlast."""
_ONLINE = {Dtype.FP8: "fp8", Dtype.FP8_FNUZ: "fp8"}
"""Weight formats that vLLM and SGLang make from a 16-bit checkpoint while they load it."""

_TRANSPORTS = {
    LinkKind.SCALEUP: "cuda_ipc,cuda_copy,sm,self",
    LinkKind.INFINIBAND: "rc,cuda_copy,cuda_ipc,self",
    LinkKind.ROCE: "rc,cuda_copy,cuda_ipc,self",
    LinkKind.TCP: "tcp,cuda_copy,self",
    LinkKind.PCIE: "cuda_ipc,cuda_copy,sm,self",
    LinkKind.HOST_STAGED: "tcp,cuda_copy,self",
}
"""UCX_TLS by what carries the bytes: one that is named and missing is an error at start, one that is not named is not tried."""


@dataclass(frozen=True, slots=True)
class How:
    """How a design is put on an engine. `checkpoints` names what a role loads where it is not the model's own repository.

    `offload_bytes` is the host memory of one worker for KV when its residency is DRAM or below; `spans` the nodes of one
    worker where they are not as few as servers of eight allow. `connector` is '' for the engine's own, or diptych.
    """

    engine: Engine
    version: Version | None = None
    launcher: Launcher = Launcher.PLAIN
    checkpoints: Mapping[Role, str] = field(default_factory=dict)
    block: int = BLOCK
    lease: int = LEASE
    offload_bytes: int = 64 * 2**30
    spans: Mapping[Role, int] = field(default_factory=dict)
    expected: Expected = UNKNOWN
    connector: str = STOCK


def deployment_of(design: Design, how: How) -> Deployment:
    """The roles of a design with the settings that `how.engine` needs for it. Nothing is checked here."""
    pairs = _pairs(design)
    roles = tuple(
        _config(member, pool.role, pairs, design.boundary, how, len(pool.members) > 1, index)
        for pool in design.pools
        for index, member in enumerate(pool.members)
    )
    return Deployment(roles, launcher=how.launcher, expected=how.expected)


def checkpoint(worker: Worker, role: Role, how: How) -> str:
    """What a role loads: the one named for it, else the model's repository, else the model's name."""
    return how.checkpoints.get(role) or repository(worker.model) or worker.model.name


def needs_checkpoint(worker: Worker) -> bool:
    """Whether no engine can make this role's weights from the model's own checkpoint while it loads."""
    wanted, native = worker.precision.weights, worker.model.native
    return not (wanted == native or (native.is_16bit and (wanted.is_16bit or wanted in _ONLINE)))


def _pairs(design: Design) -> tuple[tuple[Worker, Worker], ...]:
    sides = [design.pool(role) for role in (Role.PREFILL, Role.DECODE)]
    first, second = ([member.worker for member in side.members] if side else [] for side in sides)
    return tuple((prefill, decode) for prefill in first for decode in second)


def _config(
    member: Member,
    role: Role,
    pairs: tuple[tuple[Worker, Worker], ...],
    boundary: Boundary | None,
    how: How,
    is_mixed: bool,
    index: int,
) -> RoleConfig:
    worker = member.worker
    named = {how.checkpoints.get(role) for role in (Role.PREFILL, Role.DECODE)} - {None}
    mounted = f"/models/{worker.model.name}" if named else ""
    return RoleConfig(
        role=role,
        engine=how.engine,
        version=how.version,
        launcher=how.launcher,
        name=f"{role}-{index}" if is_mixed else str(role),
        replicas=member.count,
        model=mounted or checkpoint(worker, role, how),
        served_name=repository(worker.model) or worker.model.name,
        dtype=_dtype(worker),
        quantization=_quantization(worker, role, how),
        kv_cache_dtype=_kv_word(worker, how),
        block_size=how.block,
        tp=_tp(worker, how.engine),
        pp=worker.parallelism.pp,
        dp=worker.parallelism.dp,
        ep=worker.parallelism.ep > 1,
        attention_backend=_backend(worker, pairs, how),
        max_seqs=worker.max_batch or None,
        max_batched_tokens=worker.max_batched_tokens or None,
        connector=_connector(worker, role, boundary, pairs, how),
        gpu=worker.accelerator.name,
        gpus_per_worker=worker.accelerators,
        nodes_per_worker=how.spans.get(role) or -(-worker.accelerators // _SERVER),
        env={} if how.connector == DIPTYCH else _environment(worker, pairs, boundary, how.engine),
        options=dict(_options(worker, role, boundary, how.engine)),
    )


def _dtype(worker: Worker) -> str:
    """The model's own 16-bit format on this accelerator: what activations have, or the wide one beside 8-bit activations."""
    activations = worker.precision.activations
    has_bf16 = bool(worker.accelerator.peak_flops.get(Dtype.BF16))
    wide = activations if activations.is_16bit else Dtype.BF16 if has_bf16 else Dtype.FP16
    return "float16" if wide is Dtype.FP16 else "bfloat16"


def _quantization(worker: Worker, role: Role, how: How) -> str:
    """Empty where the checkpoint says it, else the engine's word for making the format while loading."""
    wanted, native = worker.precision.weights, worker.model.native
    if how.checkpoints.get(role) or wanted == native or not native.is_16bit:
        return ""
    return _ONLINE.get(wanted, "")


def _kv_word(worker: Worker, how: How) -> str:
    """One spelling for one format, so that the engine's comparison of spellings agrees when the formats do."""
    kv = worker.precision.kv
    if not kv.is_16bit:
        return handling_of(how.engine, how.connector).kv.get(kv, str(kv))
    word = "float16" if kv is Dtype.FP16 else "bfloat16"
    return "auto" if word == _dtype(worker) else word


def _backend(worker: Worker, pairs: tuple[tuple[Worker, Worker], ...], how: How) -> str:
    """The backend that every role of this fleet shares; pinned because each generation would choose its own.

    Our connector looks at what each backend does with a block, so that each role may have the one it would choose.
    """
    if how.engine is not Engine.VLLM or not pairs or how.connector == DIPTYCH:
        return ""
    sides = {(side.accelerator, side.precision.kv) for pair in pairs for side in pair}
    found = shared_backend(worker.model, *sorted(sides, key=lambda side: (side[0].name, side[1])))
    return found.name if found else ""


def _connector(
    worker: Worker, role: Role, boundary: Boundary | None, pairs: tuple[tuple[Worker, Worker], ...], how: How
) -> Connector | None:
    if how.engine is not Engine.VLLM:
        return None
    if how.connector == DIPTYCH and boundary is not None:
        return _converting(worker, role, boundary, pairs, how)
    offload = _offload(worker, how)
    if boundary is None:
        return offload
    name = "NixlPushConnector" if boundary.ownership is Ownership.PUSH else "NixlConnector"
    kv_role = "kv_producer" if role is Role.PREFILL else "kv_consumer"
    policy = "fail" if role is Role.PREFILL else "recompute"
    extra: dict[str, Any] = {"kv_lease_duration": how.lease}
    if _is_efa(boundary.link):
        extra["backends"] = ["LIBFABRIC"]
    fields: dict[str, Any] = {"kv_connector": name, "kv_role": kv_role, "kv_load_failure_policy": policy}
    nixl = Connector(name, kv_role, {**fields, "kv_connector_extra_config": extra}, extra)
    if offload is None:
        return nixl
    children = {"connectors": [nixl.fields, offload.fields]}
    several = {"kv_connector": "MultiConnector", "kv_role": kv_role, "kv_connector_extra_config": children}
    return Connector("MultiConnector", kv_role, several, children, (nixl, offload))


HOST_IP = "$HOST_IP"
"""What a script knows when it runs: the address of its host."""
RANK_PORT = 8400
"""Where the first rank of a host's first worker is asked, the next ranks and workers above it."""
TLS_FOLDER = "/etc/diptych"


def _converting(
    worker: Worker, role: Role, boundary: Boundary, pairs: tuple[tuple[Worker, Worker], ...], how: How
) -> Connector:
    """Our own connector. Prefill alone says what crosses, how long it is kept, and who moves it."""
    is_prefill = role is Role.PREFILL
    extra: dict[str, Any] = {}
    if is_prefill:
        extra = {"wire": wire_word(worker, boundary), "lease_s": how.lease}
        if boundary.ownership is Ownership.PUSH:
            extra |= {"ownership": "push", "port": RANK_PORT}
    if boundary.placement is not Placement.SAME_NODE:
        files = {"certificate": "worker.pem", "key": "worker.key", "authority": "authority.pem"}
        extra |= {"host": HOST_IP, **{name: f"{TLS_FOLDER}/{file}" for name, file in files.items()}}
    if how.checkpoints or len({each.precision.weights for pair in pairs for each in pair}) > 1:
        name = repository(worker.model) or worker.model.name
        extra |= {"model": name, "weights": name}
    fields: dict[str, Any] = {
        "kv_connector": "DiptychConnector",
        "kv_connector_module_path": "diptych.integrations.vllm",
        "kv_role": "kv_producer" if is_prefill else "kv_consumer",
        "kv_load_failure_policy": "fail" if is_prefill else "recompute",
        "kv_connector_extra_config": extra,
    }
    return Connector("DiptychConnector", fields["kv_role"], fields, extra)


def _offload(worker: Worker, how: How) -> Connector | None:
    """KV kept below HBM: host memory first, files below it."""
    if worker.residency is TierKind.HBM:
        return None
    extra: dict[str, Any] = {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": how.offload_bytes}
    if worker.residency is TierKind.NVME:
        extra["spec_name"] = "TieringOffloadingSpec"
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": "/var/kv"}]
    fields = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return Connector("OffloadingConnector", "kv_both", fields, extra)


def _tp(worker: Worker, engine: Engine) -> int:
    """SGLang counts the ranks of all attention groups as TP; vLLM those of one."""
    shape = worker.parallelism
    return shape.tp * shape.dp if engine is Engine.SGLANG else shape.tp


def _is_efa(link: Link) -> bool:
    """AWS's adapter speaks libfabric, not the verbs that UCX uses."""
    return link.name == "efa"


def _environment(
    worker: Worker, pairs: tuple[tuple[Worker, Worker], ...], boundary: Boundary | None, engine: Engine
) -> dict[str, EnvValue]:
    """Where a vLLM worker says that it can be reached, and the transports that UCX may take: never silently TCP.

    SGLang gathers heads into a buffer first where TP differs, else each request is tens of thousands of small writes.
    """
    if boundary is None:
        return {}
    transports = {} if _is_efa(boundary.link) else {"UCX_TLS": EnvValue(_TRANSPORTS[boundary.link.kind])}
    if engine is Engine.SGLANG:
        unlike = any(prefill.parallelism.tp != decode.parallelism.tp for prefill, decode in pairs)
        gathers = unlike and not any(attention.is_mla for _, attention in worker.model.attention_groups())
        return {**transports, **({"SGLANG_DISAGG_STAGING_BUFFER": EnvValue("1")} if gathers else {})}
    if engine is not Engine.VLLM:
        return transports
    own = EnvValue(source="status.podIP")
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": own, "VLLM_NIXL_SIDE_CHANNEL_PORT": EnvValue("5600"), **transports}


def _options(worker: Worker, role: Role, boundary: Boundary | None, engine: Engine) -> Iterator[tuple[str, Any]]:
    """SGLang's own words for DP attention and for a handoff."""
    if engine is not Engine.SGLANG:
        return
    if worker.parallelism.dp > 1:
        yield "enable-dp-attention", True
    if boundary is None:
        return
    yield "disaggregation-mode", str(role)
    yield "disaggregation-transfer-backend", "nixl"
    if role is Role.PREFILL:
        yield "disaggregation-bootstrap-port", 8998
