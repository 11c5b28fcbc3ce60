"""The endpoint picker of llm-d, which KServe runs as well: one prefill and one decode profile, and who decides to hand off."""

from __future__ import annotations

from diptych.deploy.generate.pods import Fields
from diptych.deploy.generate.request import Request
from diptych.design.boundary import Placement


def scheduler_config(request: Request) -> Fields:
    """An EndpointPickerConfig: prompts are handed off always, or from as many uncached tokens as the design says."""
    boundary = request.design.boundary
    assert boundary is not None, "a colocated fleet has one profile and needs no configuration"
    is_conditional = boundary.placement is Placement.CONDITIONAL
    decider: Fields = {"type": "always-disagg-pd-decider"}
    if is_conditional:
        decider = {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": boundary.local_below}}
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            {"type": "disagg-headers-handler"},
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
            {"type": "prefix-cache-scorer"},
            {"type": "queue-scorer"},
            {"type": "kv-cache-utilization-scorer"},
            {"type": "max-score-picker"},
            decider,
            {
                "type": "disagg-profile-handler",
                "parameters": {"deciders": {"prefill": decider["type"]}, "stageOrder": "decode-first"},
            },
        ],
        "schedulingProfiles": [
            _profile("prefill", "prefill-filter", {"prefix-cache-scorer": 2, "queue-scorer": 1}),
            _profile("decode", "decode-filter", {"prefix-cache-scorer": 1, "kv-cache-utilization-scorer": 2}),
        ],
    }


def _profile(name: str, kind: str, weights: dict[str, int]) -> Fields:
    scorers = [{"pluginRef": scorer, "weight": weight} for scorer, weight in weights.items()]
    return {"name": name, "plugins": [{"pluginRef": kind}, *scorers, {"pluginRef": "max-score-picker"}]}
