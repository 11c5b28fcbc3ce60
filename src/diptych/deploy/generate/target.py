"""What can be written for, and which engine and launcher each target means."""

from __future__ import annotations

from enum import StrEnum

from diptych.design.axes import Role
from diptych.engines.engine import READ, Engine, Launcher, Version


class Target(StrEnum):
    """A way to deploy."""

    VLLM = "vllm"
    SGLANG = "sglang"
    COMPOSE = "compose"
    DYNAMO_VLLM = "dynamo-vllm"
    DYNAMO_SGLANG = "dynamo-sglang"
    KSERVE = "kserve"
    LLM_D = "llm-d"

    @property
    def engine(self) -> Engine:
        return Engine.SGLANG if "sglang" in self.value else Engine.VLLM

    @property
    def launcher(self) -> Launcher:
        return _LAUNCHERS.get(self, Launcher.PLAIN)

    @property
    def is_kubernetes(self) -> bool:
        return self in _LAUNCHERS

    def metrics_port(self, role: Role) -> int:
        """Where a pod of this target serves /metrics: Dynamo on its system port, llm-d's decode behind its sidecar."""
        if self.launcher is Launcher.DYNAMO:
            return 9090
        return 8200 if self is Target.LLM_D and role is Role.DECODE else 8000

    def pod_labels(self, name: str, role: str) -> dict[str, str]:
        """The labels by which this target's pods of one role are found."""
        if self.launcher is Launcher.DYNAMO:
            return {"nvidia.com/dynamo-graph-deployment-name": name, "nvidia.com/dynamo-component": role}
        if self is Target.KSERVE:
            return {"app.kubernetes.io/name": name, "llm-d.ai/role": role}
        return {"llm-d.ai/inference-serving": "true", "llm-d.ai/role": role}

    @property
    def engine_version(self) -> Version:
        """The engine's release that comes with the target: Dynamo's images carry their own, else the one that was read."""
        return _CARRIED.get(self) or READ[self.engine]


_CARRIED = {Target.DYNAMO_VLLM: Version((0, 31, 0)), Target.DYNAMO_SGLANG: Version((0, 5, 21))}
"""What Dynamo 1.6.1 pins in its extras."""
_LAUNCHERS = {
    Target.DYNAMO_VLLM: Launcher.DYNAMO,
    Target.DYNAMO_SGLANG: Launcher.DYNAMO,
    Target.KSERVE: Launcher.KSERVE,
    Target.LLM_D: Launcher.LLM_D,
}
