"""What SGLang's rules ask of a role again and again: how KV is moved, reserved and met, by its flags."""

from __future__ import annotations

from diptych.engines.role import RoleConfig, whole

BOOTSTRAP_PORT = 8998
ROUTERS = ("sglang-router", "sglang_router", "smg")
CONN = "SGLang 0.5.23 disaggregation/common/conn.py"
HOOK = "SGLang 0.5.23 arg_groups/pd_disaggregation_hook.py"
STAGING = "SGLANG_DISAGG_STAGING_BUFFER"


def transfer_backend(role: RoleConfig) -> str:
    """`--disaggregation-transfer-backend` as it runs: mooncake_tcp is Mooncake over TCP."""
    named = str(role.options.get("disaggregation-transfer-backend") or "mooncake")
    return "mooncake" if named == "mooncake_tcp" else named


def allocation_policy(role: RoleConfig) -> str:
    return str(role.options.get("disaggregation-decode-allocation-policy") or "early")


def bootstrap_port(role: RoleConfig) -> int:
    return whole(role.options.get("disaggregation-bootstrap-port"), BOOTSTRAP_PORT)


def uses_staging(role: RoleConfig) -> bool:
    return role.env_text(STAGING).casefold() in ("1", "true", "yes", "y")
