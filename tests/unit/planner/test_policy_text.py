"""Policies as words."""

from __future__ import annotations

import pytest

from diptych.catalog.catalog import Catalog
from diptych.errors import InvalidInput
from diptych.metrics.slo import SLO
from diptych.planner.policy_text import parse_policy
from diptych.serving.router import Routing
from diptych.simulator.policy import Policy

CATALOG = Catalog.load()


def test_nothing_said_is_engines_own_way() -> None:
    assert parse_policy((), CATALOG) == (Policy(), {})


def test_words_set_what_they_name() -> None:
    text = "routing=prefix-aware, decode_routing=round-robin, reserve=yes, tiers=dram+nvme, start-up=90s, retries=1, block=32"
    policy, given = parse_policy([text], CATALOG)
    assert (policy.prefill_routing, policy.decode_routing) == (Routing.PREFIX_AWARE, Routing.ROUND_ROBIN)
    assert policy.reserve
    assert [tier.name for tier in policy.tiers] == ["dram", "nvme"]
    assert (policy.start_up, policy.fallback.retries, policy.block) == (90.0, 1, 32)
    assert given["tiers"] == "dram+nvme"


def test_early_rejection_takes_the_slo() -> None:
    policy, _ = parse_policy(["early_rejection=yes"], CATALOG, SLO.parse("ttft_p90<2s, ttft_p50<1s, tpot_p90<50ms"))
    assert policy.admission is not None
    assert (policy.admission.ttft, policy.admission.tpot) == (1.0, 0.05)


def test_every_mistake_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_policy(["rooting=x, reserve=maybe, tiers=dran, lease=5, retries=1.5, block, hold=yes, hold=no"], CATALOG)
    told = str(refused.value)
    parts = (
        "did you mean routing",
        "neither yes nor no",
        "did you mean dram?",
        "lease: ",
        "retries: ",
        "cannot read 'block'",
    )
    for part in (*parts, "hold is given twice"):
        assert part in told
