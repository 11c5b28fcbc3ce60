"""Since when vLLM does what, of the things that rules turn on: looked up in the released wheels of 0.11 to 0.33, one by one."""

from __future__ import annotations

from diptych.engines.engine import Version, Versions


def _since(minor: int) -> Versions:
    return Versions(first=Version((0, minor, 0)))


HASHED = _since(13)
"""NIXL's handshake compares a hash of both configurations."""
MANAGER_HASHED = _since(18)
"""The hash holds whether the hybrid KV cache manager is on."""
DRAFT_HASHED = _since(28)
"""The hash holds the speculative configuration and the direction of transfer."""
GATHERS = _since(14)
"""Decode reads from more ranks than it has ("Decode TP cannot be smaller than prefill TP" before)."""
POLICY = _since(13)
"""`kv_load_failure_policy` exists; its default is 'recompute' before 0.17, 'fail' since."""
POLICY_FAILS = _since(17)
LEASED = _since(22)
"""Decode renews a lease on prefill's blocks (`kv_lease_duration`); before, `VLLM_NIXL_ABORT_REQUEST_TIMEOUT` alone."""
HYBRID_BY_DEFAULT = _since(22)
"""The hybrid manager stays on beside a connector that supports it; before, any `--kv-transfer-config` turned it off."""
OWN_KV_DTYPE = _since(22)
"""A 16-bit `--kv-cache-dtype` must be the model's own."""
PUSHES = _since(24)
"""`NixlPushConnector` and `NixlPullConnector` exist."""
NAMED_LAYOUTS = _since(29)
"""Layouts are called LBHNC and so on; before, HND and NHD alone."""
FEW_FIELDS = _since(32)
"""`kv_rank`, `kv_parallel_size`, `kv_buffer_size` and `kv_ip` are gone from kv-transfer-config."""
BACKEND_BY_ENV = Versions(end=Version((0, 15, 0)))
"""`VLLM_ATTENTION_BACKEND` is read; since, `--attention-backend` alone."""
