"""Step times: what they are made of, and what is said beside them."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest
from timed_workers import BF16, CATALOG, FP8, worker

from diptych.catalog.dtype import Dtype
from diptych.perf.calibrate import NEUTRAL, Calibration, family, shipped_calibration
from diptych.perf.estimate import Basis
from diptych.perf.roofline import Roofline, default_perf, peak_flops, spread

PERF = default_perf()


def test_the_floor_by_hand() -> None:
    """Llama-3.1-8B in 16 bit on H100 at batch 1: 15.0 GB of weights and 0.13 GB of KV over 3.35 TB/s."""
    timing = PERF.decode(worker("Llama-3.1-8B", "H100"), 1, 1024)
    by_hand = (CATALOG.model("Llama-3.1-8B").active_parameters * 2 + 131072 * 1024) / 3.35e12
    assert float(timing.floor) == pytest.approx(by_hand, rel=0.01)
    assert timing.basis is Basis.FITTED


def test_time_to_first_token_on_a100_is_near_what_nvidia_published() -> None:
    """A100-SXM4-80GB, FP16, batch 1, Llama-2-7B, 2,048 tokens: 120.5 ms by TensorRT-LLM 0.8, 132.4 by 0.9, 133 by 0.5 and 0.6."""
    old = worker("Llama-2-7B", "A100-SXM4-80GB", BF16, "trtllm-cpp")
    assert float(PERF.prefill(old, 2048).seconds) == pytest.approx(127e-3, rel=0.1)


def test_fp8_buys_less_than_twice_in_decode() -> None:
    wide, narrow = (
        float(PERF.decode(worker("Llama-3.1-70B", "H100", precision, tp=4), 16, 2048).seconds)
        for precision in (BF16, FP8)
    )
    assert 1.2 < wide / narrow < 2.0


def test_a_prompt_lands_on_one_dp_rank_and_many_spread() -> None:
    assert list(spread(np.array([0.0, 0.5, 1.0, 4.0, 16.0]), 8)) == [0.0, 0.5, 1.0, 1.0, 2.0]
    split = worker("DeepSeek-V3", "H200", FP8, dp=8, ep=8)
    one, eight = (float(PERF.prefill(split, 4096, 0, prompts).seconds) for prompts in (1, 8))
    assert one < eight < 3 * one


def test_pipeline_stages_work_on_their_own_part_of_the_batch() -> None:
    flat, staged = (worker("Llama-3.1-70B", "H100", tp=4, pp=pp) for pp in (1, 2))
    assert float(PERF.decode(staged, 128, 2048).seconds) == pytest.approx(
        float(PERF.decode(flat, 64, 2048).seconds), rel=0.02
    )


def test_points_beyond_the_measured_tables_are_marked() -> None:
    one = worker("Llama-3.1-8B", "H100")
    assert list(PERF.decode(one, 8, np.array([1024, 200_000])).outside) == [False, True]
    assert list(PERF.prefill(one, np.array([1024, 20_000])).outside) == [False, True]


def test_what_a_client_sees_beyond_the_engine() -> None:
    one = worker("Llama-3.1-8B", "H100")
    factors = PERF.compiled(one).factors
    plain = factors.delivery + 0.01 * factors.delivery_steps
    assert float(PERF.delivery(one, 0.01)) == pytest.approx(plain)
    assert float(PERF.delivery(one, 0.01, slow_client=True)) == pytest.approx(plain + factors.client)


def test_two_sheets_under_one_name_are_not_confused() -> None:
    from dataclasses import replace

    one = worker("Llama-3.1-8B", "H100")
    faster = replace(one, accelerator=replace(one.accelerator, peak_flops={Dtype.BF16: 4e15}))
    assert float(PERF.prefill(faster, 8192).seconds) < float(PERF.prefill(one, 8192).seconds)
    assert peak_flops(faster.accelerator, Dtype.FP8) == 4e15


def test_the_most_special_scope_wins() -> None:
    table = Calibration({"launch": {"*": 1.0, "vllm": 2.0, "vllm/hopper": 3.0}})
    assert table.factors(worker("Llama-3.1-8B", "H100")).launch == 3.0
    assert table.factors(worker("Llama-3.1-8B", "A100-SXM4-80GB")).launch == 2.0
    assert table.factors(worker("Llama-3.1-8B", "H100", engine="sglang")).launch == 1.0
    assert table.factors(worker("Llama-3.1-8B", "H100")).memory == NEUTRAL["memory"]


def test_architecture_lines() -> None:
    names = {
        "A100-SXM4-80GB": "ampere",
        "H20-96GB": "hopper",
        "L4": "ada",
        "GB300": "blackwell",
        "RTX-5090": "blackwell-gddr",
    }
    assert {name: family(CATALOG.accelerator(name)) for name in names} == names
    assert family(CATALOG.accelerator("MI300X")) == "amd"


def test_the_shipped_calibration_knows_engines_and_architectures_but_no_model() -> None:
    document = json.loads(files("diptych.perf").joinpath("data/calibration.json").read_text(encoding="utf-8"))
    allowed = {"*", *("vllm", "trtllm", "sglang", "trtllm-cpp")}
    for name, scopes in document["parameters"].items():
        assert name in NEUTRAL
        for scope, entry in scopes.items():
            assert scope.split("/")[0] in allowed
            assert "/" not in scope or scope.split("/")[1] in {"blackwell", "hopper", "ampere", "ada"}
            assert entry["value"] > 0
    assert document["sources"]
    assert set(document["quality"]) == {"in_sample", "held_out_groups"}
    assert shipped_calibration().values.keys() == document["parameters"].keys()


def test_a_neutral_calibration_works_without_a_file() -> None:
    perf = Roofline(calibration=Calibration({}))
    assert float(perf.decode(worker("Llama-3.1-8B", "H100"), 1, 128).seconds) > 4.5e-3
