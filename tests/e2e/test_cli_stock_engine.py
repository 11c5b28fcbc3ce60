"""`diptych plan --engine ENGINE@RELEASE`: what is planned for a stock engine is what `diptych deploy` writes for it."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(("engine", "target"), [("vllm@0.33", "vllm"), ("sglang@0.5", "sglang")])
def test_a_plan_for_a_stock_engine_is_deployed_on_it(engine, target, told, tmp_path) -> None:
    asked = ("--model", "Llama-3.1-8B", "--workload", "preset:chat", "--rate", 5, "--slo", "ttft_p90<2s, tpot_p90<50ms")
    pins = ("--prices", "aws", "--prefill", "L40S", "--decode", "A100-SXM4-40GB", "--engine", engine)
    code, _, err = told("plan", *asked, *pins, "--out", tmp_path / "run")
    assert code == 0, err
    planned = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert planned["question"]["pins"]["engine"] == engine
    assert planned["best"]["boundary"]["engine_support"].startswith(f"stock {target}")
    code, _, err = told("deploy", tmp_path / "run", "--target", target, "--out", tmp_path / "deployed")
    assert code == 0, err


@pytest.mark.parametrize("engine", ["vlm@0.33", "vllm@new"])
def test_an_engine_that_is_unknown_is_refused(engine, told) -> None:
    asked = ("--model", "Llama-3.1-8B", "--workload", "preset:chat", "--rate", 5, "--slo", "ttft_p90<2s")
    code, _, err = told("plan", *asked, "--prices", "aws", "--engine", engine)
    assert code == 2
    assert "--engine" in err
    assert "Traceback" not in err
