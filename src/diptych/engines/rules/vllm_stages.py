"""Pipeline stages and shards over the context that NIXL can bring together (VN24)."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.engines.resolve import Joint
from diptych.engines.resolve_vllm import transfer_mode
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Clash, Severity
from diptych.engines.rules.vllm_pair import (
    both,
    extra,
    has_latent,
    has_state,
    is_nixl,
    is_true,
    kv_role,
    mode,
    one_sided,
    roles,
    uses_hybrid,
    vllm_rule,
)


def _stages(joint: Joint) -> Iterator[Clash]:
    """VN24: pipeline stages, and shards over the context."""
    for role in roles(joint):
        way = transfer_mode(role)
        if not way or not is_nixl(joint):
            continue
        for problem, change, setting, severity in _wrong_stages(role, joint, way):
            yield Clash(*one_sided(role, problem), change, (role.place(setting),), severity=severity)
    if mode(joint):
        yield from _shards_together(joint)


def _shards_together(joint: Joint) -> Iterator[Clash]:
    """Shards over the context that do not fit each other (`_validate_remote_parallel_config`), and stages that push."""
    prefill, decode = joint.prefill, joint.decode
    names = (f"PCP {prefill.pcp}, DCP {prefill.dcp}", f"PCP {decode.pcp}, DCP {decode.dcp}")
    if max(prefill.dcp, decode.dcp) % min(prefill.dcp, decode.dcp):
        change = "choose --decode-context-parallel-size of which one divides the other"
        yield Clash(*names, change, both(joint, "dcp"), severity=Severity.REQUEST)
    elif any(a.pcp > 1 and a.dcp == 1 and b.dcp > 1 for a, b in ((prefill, decode), (decode, prefill))):
        change = "set --decode-context-parallel-size 1, or shard both roles by it"
        yield Clash(*names, change, both(joint, "dcp"), "what PCP repeats is not dealt out", Severity.REQUEST)
    if mode(joint) != "push" or prefill.pp == 1 or not uses_hybrid(prefill, joint) or has_latent(joint):
        return
    if decode.tp > prefill.tp:
        change = f"set --tensor-parallel-size {prefill.tp} or less on decode"
        said = (f"PP {prefill.pp}, TP {prefill.tp}, layers of several kinds", f"TP {decode.tp}")
        yield Clash(*said, change, both(joint, "tp"), severity=Severity.REQUEST)


def _wrong_stages(role: RoleConfig, joint: Joint, way: str) -> Iterator[tuple[str, str, str, Severity]]:
    told = kv_role(role)
    if role.pp > 1 and told == "kv_consumer":
        yield f"PP {role.pp} on decode", "set --pipeline-parallel-size 1 on decode", "pp", Severity.STARTUP
    elif role.pp > 1 and way == "pull" and uses_hybrid(role, joint):
        change = "set --pipeline-parallel-size 1, or use NixlPushConnector"
        yield f"PP {role.pp} with layers of several kinds, in pull mode", change, "pp", Severity.STARTUP
    elif role.pp > 1 and has_state(joint):
        change = "set --pipeline-parallel-size 1"
        yield f"PP {role.pp} with layers that keep a state", change, "pp", Severity.STARTUP
    yield from _wrong_shards(role, joint, way, told)


def _wrong_shards(role: RoleConfig, joint: Joint, way: str, told: str) -> Iterator[tuple[str, str, str, Severity]]:
    """Shards over the context: config/vllm.py for pulling, connector.py for prefill's."""
    name = "--decode-context-parallel-size"
    if role.dcp > 1 and way == "pull":
        if role.dcp != max(role.tp, role.pcp):
            change = f"set {name} to 1 or {max(role.tp, role.pcp)}"
            yield f"DCP {role.dcp} over {max(role.tp, role.pcp)} ranks", change, "dcp", Severity.STARTUP
        elif joint.model is not None and not has_latent(joint):
            yield f"DCP {role.dcp} without MLA", f"set {name} 1", "dcp", Severity.STARTUP
    if role.dcp > 1 and way == "push":
        change = f"set {name} 1, or use NixlConnector"
        yield f"DCP {role.dcp} in push mode", change, "dcp", Severity.REQUEST
    if role.pcp > 1 and told in ("kv_consumer", "kv_both"):
        change = "set --prefill-context-parallel-size 1, or kv_role kv_producer"
        yield f"PCP {role.pcp} on {told}", change, "pcp", Severity.STARTUP
    if role.pcp > 1 and role.dcp > 1 and (role.tp != 1 or role.dcp != role.pcp):
        change = f"set --tensor-parallel-size 1 and {name} {role.pcp}"
        yield f"PCP {role.pcp} with DCP {role.dcp} and TP {role.tp}", change, "pcp", Severity.STARTUP
    if role.pcp > 1 and is_true(extra(role).get("bidirectional_kv_xfer", False)):
        change = "set --prefill-context-parallel-size 1, or drop bidirectional_kv_xfer"
        yield f"PCP {role.pcp} with bidirectional_kv_xfer", change, "pcp", Severity.STARTUP


RULES = (
    vllm_rule(
        "VN24",
        Severity.STARTUP,
        "Pipeline stages and context shards are such as this direction of transfer supports.",
        _stages,
        "vLLM 0.33 kv_connector/v1/nixl/connector.py, base_worker.py and push_worker.py",
        "NotImplementedError",
    ),
)
