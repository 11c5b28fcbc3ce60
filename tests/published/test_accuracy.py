"""How far `diptych validate` is off on a sample of published rows: coarse bounds, set once and above what is reported.

benchmarks/accuracy.md has the figures of every row. A bound that fails here says that a change made predictions much worse.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diptych.catalog.catalog import Catalog
from diptych.perf.roofline import default_perf
from diptych.planner.accuracy import Accuracy, accuracy
from diptych.planner.benchmark_rows import read_table
from diptych.planner.validate import predict, unanswered

DATA = Path(__file__).parents[1] / "data/benchmarks"
EVERY = 12
BANDS = ("2-8", "9-32", "33-128", "129-512", ">512")


def _sample(name: str, every: int) -> Accuracy:
    table = read_table(DATA / name)
    unread = [item for item in table.unread if item.number % every == 0]
    answers = predict([row for row in table.rows if row.number % every == 0], Catalog.load(), default_perf())
    return accuracy(answers.predictions, unanswered(unread, answers))


@pytest.fixture(scope="module")
def unified() -> Accuracy:
    return _sample("benchmarks_unified.csv.gz", EVERY)


@pytest.fixture(scope="module")
def load_tests() -> Accuracy:
    return _sample("silicon_sample_aiconfigurator.csv.gz", 4)


def test_most_rows_are_answered_and_the_others_are_counted(unified: Accuracy) -> None:
    total = unified.answered + sum(unified.unanswered.values())
    assert total == pytest.approx(5549 / EVERY, abs=1)
    assert unified.answered > 0.85 * total
    assert all(unified.unanswered)


@pytest.mark.parametrize(("metric", "bound"), [("tpot", 0.15), ("ttft", 0.40), ("output", 0.15)])
def test_median_errors_on_all_kinds_of_rows(unified: Accuracy, metric: str, bound: float) -> None:
    assert unified.overall[metric].median < bound
    assert unified.overall[metric].within_band > 0.8


@pytest.mark.parametrize(("mode", "tpot", "ttft", "output"), [("agg", 0.12, 0.32, 0.12), ("disagg", 0.20, 0.55, 0.25)])
def test_median_errors_of_load_tests(load_tests: Accuracy, mode: str, tpot: float, ttft: float, output: float) -> None:
    errors = load_tests.groups["mode"][mode]
    assert errors["tpot"].median < tpot
    assert errors["ttft"].median < ttft
    assert errors["output"].median < output


@pytest.mark.parametrize("band", BANDS)
def test_a_disaggregated_first_token_is_not_off_by_its_queue(load_tests: Accuracy, band: str) -> None:
    """The peer's median ratio falls from 0.66 at few clients to 0.07 at many."""
    assert 0.6 < load_tests.groups["mode and concurrency"][f"disagg {band}"]["ttft"].ratio < 1.6
