"""Rules of releases before the one that was read."""

from __future__ import annotations

from rule_pairs import CATALOG, clashes, pair

from diptych.engines.check import check
from diptych.engines.engine import Engine, Version
from diptych.engines.role import Connector
from diptych.engines.rules.vllm_history import RULES

NIXL = Connector("NixlConnector", "kv_both")


def at(release, prefill_tp, decode_tp):
    shared = {"connector": NIXL, "version": Version(release)}
    return pair(Engine.VLLM, {"tp": prefill_tp, **shared}, {"tp": decode_tp, **shared})


def test_early_releases_could_not_gather_from_more_ranks():
    [clash] = clashes(RULES, "VN31", at((0, 11, 0), 4, 1))
    assert (clash.prefill, clash.decode) == ("TP 4", "TP 1")
    assert clashes(RULES, "VN31", at((0, 11, 0), 1, 4)) == []


def test_a_rule_of_early_releases_is_not_applied_to_later_ones():
    def found(release):
        return [broken.rule.id for broken in check(at(release, 4, 1).deployment, CATALOG).broken]

    assert "VN31" in found((0, 11, 0))
    assert "VN31" not in found((0, 12, 0))
