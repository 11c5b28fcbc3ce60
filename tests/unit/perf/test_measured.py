"""Splitwise's table: a held-out fifth is met within 3 %, and what the shipped model says of an engine of early 2024."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.perf.estimate import Basis
from diptych.perf.measured import MeasuredTable, Measurement
from diptych.perf.roofline import default_perf

DATA = Path(__file__).parents[2] / "data" / "measured" / "splitwise_perf_model.csv.gz"
CATALOG = Catalog.load()
WORKER = Worker(
    CATALOG.model("Llama-2-70B"),
    CATALOG.accelerator("A100-SXM4-80GB"),
    Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16),
    Parallelism(tp=8),
)


def runs(model: str, hardware: str, tp: str) -> list[Measurement]:
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        rows = [
            row
            for row in csv.DictReader(lines)
            if (row["model"], row["hardware"], row["tensor_parallel"]) == (model, hardware, tp)
        ]
    return [
        Measurement(
            float(row["prompt_size"]), float(row["batch_size"]), float(row["token_size"]),
            float(row["prompt_time"]) / 1e3, float(row["token_time"]) / 1e3,
        )
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "hardware", "tp"),
    [
        ("llama2-70b", "a100-80gb", "4"),
        ("llama2-70b", "a100-80gb", "8"),
        ("llama2-70b", "h100-80gb", "4"),
        ("llama2-70b", "h100-80gb", "8"),
        ("bloom-176b", "a100-80gb", "8"),
        ("bloom-176b", "h100-80gb", "8"),
    ],
)
def test_a_held_out_fifth_of_the_runs_is_met(model: str, hardware: str, tp: str) -> None:
    measured = runs(model, hardware, tp)
    order = np.random.default_rng(1).permutation(len(measured))
    held = [measured[i] for i in order[: len(measured) // 5]]
    table = MeasuredTable.fit(measured[i] for i in order[len(measured) // 5 :])
    prefill = [abs(float(table.prefill(WORKER, run.prompt, 0, run.batch).seconds) / run.prefill - 1) for run in held]
    decode = [
        abs(float(table.decode(WORKER, run.batch, run.prompt + run.output / 2).seconds) / run.step - 1) for run in held
    ]
    assert np.median(prefill) < 0.03  # H100's repeated prompt runs differ by 11 % among themselves, so its mean is 5 %
    assert np.mean(decode) < 0.025


def test_two_ranks_of_a100_are_not_affine_within_3_percent() -> None:
    """At TP 2 the A100 nearly runs out of memory and its steps bend: the honest error is 4 %."""
    measured = runs("llama2-70b", "a100-80gb", "2")
    table = MeasuredTable.fit(measured)
    decode = [
        abs(float(table.decode(WORKER, run.batch, run.prompt + run.output / 2).seconds) / run.step - 1)
        for run in measured
    ]
    assert 0.03 < np.mean(decode) < 0.05


def test_times_grow_with_every_argument_and_say_when_they_leave_the_table() -> None:
    table = MeasuredTable.fit(runs("llama2-70b", "h100-80gb", "8"))
    tokens = np.geomspace(16, 60_000, 60)
    assert np.all(np.diff(table.prefill(WORKER, tokens).seconds) >= 0)
    assert np.all(np.diff(table.decode(WORKER, np.arange(1, 300), 2048).seconds) >= 0)
    assert np.all(np.diff(table.decode(WORKER, 8, tokens).seconds) >= 0)
    assert np.all(
        table.mixed(WORKER, 512, 0, np.arange(1, 64), 512).seconds > table.decode(WORKER, np.arange(1, 64), 512).seconds
    )
    timing = table.decode(WORKER, np.array([1, 4096]), 1024)
    assert timing.basis is Basis.MEASURED
    assert list(timing.outside) == [False, True]


def test_an_engine_of_early_2024_is_two_to_four_times_slower_than_todays() -> None:
    """Not fitted to: Splitwise's vLLM left 0.55 to 0.83 of a decode step to the host. Its order of worlds and chips holds."""
    perf = default_perf()
    ours, theirs = [], []
    for hardware, name in (("a100-80gb", "A100-SXM4-80GB"), ("h100-80gb", "H100-SXM-80GB")):
        for tp in (4, 8):
            worker = Worker(WORKER.model, CATALOG.accelerator(name), WORKER.precision, Parallelism(tp=tp))
            ours.append(float(perf.decode(worker, 16, 512 + 64).seconds))
            at = [run.step for run in runs("llama2-70b", hardware, str(tp)) if run.batch == 16 and run.prompt == 512]
            theirs.append(float(np.median(at)))
    ratio = np.array(theirs) / np.array(ours)
    assert np.all(ratio > 1.2)
    assert np.all(ratio < 4.5)
