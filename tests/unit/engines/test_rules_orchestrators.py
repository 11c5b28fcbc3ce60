"""Rules of routers and operators: each at a deployment that breaks it and at one that keeps it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_pairs import CATALOG, clashes, pair, role

from diptych.design.axes import Role
from diptych.engines.check import check
from diptych.engines.deployment import Router
from diptych.engines.engine import Engine, Launcher, Version
from diptych.engines.role import Connector
from diptych.engines.rule import Severity
from diptych.engines.rules.orchestrators import RULES

VLLM, SGLANG, TRT = Engine.VLLM, Engine.SGLANG, Engine.TRTLLM
NIXL = {"connector": Connector("NixlConnector")}
EVENTS = {**NIXL, "options": {"kv-events-config": {"enable_kv_cache_events": True}}}
OVER_NIXL = {"options": {"disaggregation-transfer-backend": "nixl"}, "version": Version((0, 5, 16))}
CONDITIONAL = Router("dynamo.frontend", {"router-conditional-disagg": True})


def second(**settings):
    return (role(Role.DECODE, VLLM, Launcher.LLM_D, name="second", **NIXL, **settings),)


def picker(**parameters):
    return Router("epp", {"plugins": [{"type": "prefix-based-pd-decider", "parameters": parameters}]})


EXAMPLES = {
    "OR1": (
        pair(VLLM, NIXL, NIXL, launcher=Launcher.LLM_D, others=second(kv_cache_dtype="fp8")),
        pair(VLLM, NIXL, NIXL, launcher=Launcher.LLM_D, others=second(tp=4)),
    ),
    "OR2": (
        pair(VLLM, NIXL, {}, launcher=Launcher.KSERVE),
        pair(VLLM, NIXL, NIXL, launcher=Launcher.KSERVE),
    ),
    "OR3": (
        pair(VLLM, NIXL, NIXL, router=picker(nonCachedTokens=0)),
        pair(VLLM, NIXL, NIXL, router=picker(nonCachedTokens=16), prompt_max=8000),
    ),
    "OR4": (
        pair(VLLM, NIXL, NIXL, router=CONDITIONAL, launcher=Launcher.DYNAMO),
        pair(VLLM, NIXL, EVENTS, router=CONDITIONAL, launcher=Launcher.DYNAMO),
    ),
    "OR5": (
        pair(SGLANG, OVER_NIXL, OVER_NIXL, launcher=Launcher.LLM_D),
        pair(SGLANG, OVER_NIXL, OVER_NIXL, launcher=Launcher.DYNAMO),
    ),
}


@pytest.mark.parametrize("id", EXAMPLES)
def test_each_rule_is_broken_by_one_deployment_and_kept_by_another(id):
    broken, kept = EXAMPLES[id]
    found = clashes(RULES, id, broken)
    assert found
    assert all(clash.change and clash.places and (clash.prefill or clash.decode) for clash in found)
    assert clashes(RULES, id, kept) == []


def test_every_rule_has_its_examples():
    assert list(EXAMPLES) == [rule.id for rule in RULES]


def test_two_classes_are_told_once_of_all_the_pairs_of_a_pool():
    broken, _ = EXAMPLES["OR1"]
    [clash] = clashes(RULES, "OR1", broken)
    assert clash.decode == "decode: kv cache dtype auto and second: kv cache dtype fp8"
    assert clashes(RULES, "OR1", replace(broken, decode=broken.deployment.of(Role.DECODE)[1])) == []


def test_plain_roles_are_paired_by_hand_and_may_differ():
    assert clashes(RULES, "OR1", pair(VLLM, NIXL, NIXL, others=second(kv_cache_dtype="fp8"))) == []


def test_dynamo_refuses_a_prefill_without_a_connector():
    [refused] = clashes(RULES, "OR2", pair(VLLM, {}, NIXL, launcher=Launcher.DYNAMO))
    [twice] = clashes(RULES, "OR2", pair(VLLM, NIXL, {}, launcher=Launcher.DYNAMO))
    assert (refused.severity, twice.severity) == (Severity.STARTUP, None)
    assert (twice.prefill, twice.decode) == ("NixlConnector", "no connector")


def test_a_threshold_above_every_prompt_never_disaggregates():
    assert clashes(RULES, "OR3", pair(VLLM, router=picker(nonCachedTokens=9000), prompt_max=8000))
    assert clashes(RULES, "OR3", pair(VLLM, router=picker(nonCachedTokens=16, promptTokens=9000), prompt_max=8000))
    assert clashes(RULES, "OR3", pair(VLLM, router=picker(nonCachedTokens=9000))) == []
    assert clashes(RULES, "OR3", pair(VLLM, router=Router("epp", {"plugins": [{"type": "queue-scorer"}]}))) == []


def test_sglang_answers_400_to_what_is_to_stay_on_decode():
    [clash] = clashes(RULES, "OR4", pair(SGLANG, router=CONDITIONAL))
    assert clash.severity is Severity.REQUEST
    assert clashes(RULES, "OR4", pair(TRT, router=CONDITIONAL))
    published = pair(TRT, {}, {"options": {"publish-kv-events": True}}, router=CONDITIONAL)
    assert clashes(RULES, "OR4", published) == []


def test_the_release_that_was_read_times_out_over_nixl_too():
    def found(release):
        settings = {**OVER_NIXL, "version": Version(release)}
        joint = pair(SGLANG, settings, settings, launcher=Launcher.LLM_D)
        return [broken.rule.id for broken in check(joint.deployment, CATALOG).broken]

    assert found((0, 5, 16)) == ["OR5"]
    assert found((0, 5, 23)) == []


def test_mooncake_times_out_by_itself():
    assert clashes(RULES, "OR5", pair(SGLANG, launcher=Launcher.LLM_D)) == []
