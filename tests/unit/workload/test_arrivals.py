"""Arrivals by hand: rate, CV, Fano factor and peak of a few requests, and time stretched."""

from __future__ import annotations

from pathlib import Path

import pytest

from diptych.errors import InvalidInput
from diptych.workload.arrivals import ArrivalStats, gap_step, rescale
from diptych.workload.load import load_workload
from diptych.workload.trace import Trace


def stats_of(folder: Path, times: list[float]) -> ArrivalStats | None:
    path = folder / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{time},9,9\n" for time in times))
    with Trace(path) as trace:
        return trace.arrivals()


def test_regular_arrivals(tmp_path: Path) -> None:
    stats = stats_of(tmp_path, [second / 4 for second in range(481)])  # four a second for two minutes
    assert stats is not None
    assert stats.duration == 120
    assert stats.cv_gaps == pytest.approx(0, abs=1e-9)
    assert stats.peak_to_mean == 1
    assert dict(stats.fano)[1.0] < 0.1
    assert not stats.quantised


def test_one_burst(tmp_path: Path) -> None:
    times = sorted([10.0 * ten for ten in range(30)] + [61.0] * 60)
    stats = stats_of(tmp_path, times)
    assert stats is not None
    # Four whole minutes hold 6, 66, 6 and 6 requests.
    assert stats.peak_to_mean == pytest.approx(66 / 21)
    counts = [6, 66, 6, 6, 6]
    mean = sum(counts) / 5
    assert dict(stats.fano)[60.0] == pytest.approx(sum((count - mean) ** 2 for count in counts) / 5 / mean)


def test_steps_are_seen(tmp_path: Path) -> None:
    stats = stats_of(tmp_path, [3.0 * step for step in range(40) for _ in range(7)])
    assert stats is not None
    assert stats.quantised
    assert stats.step == 3.0


@pytest.mark.parametrize("times", [[5.0], [5.0, 5.0]])
def test_no_time_no_rate(times: list[float], tmp_path: Path) -> None:
    assert stats_of(tmp_path, times) is None
    assert load_workload(str(tmp_path / "t.csv")).arrivals.rate == 0


def test_gap_step_of_nothing() -> None:
    assert gap_step([]) == 0


def test_rate_stretches_windows() -> None:
    before = load_workload("azure2023_conv.csv.gz").arrivals
    after = load_workload("azure2023_conv.csv.gz", rate=20).arrivals
    assert after.rate == 20
    assert after.cv == before.cv
    assert after.fano[2][0] == pytest.approx(60 * before.rate / 20)
    assert "stretched" in after.note


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_rates(rate: float) -> None:
    arrivals = load_workload("preset:chat").arrivals
    with pytest.raises(InvalidInput, match="is not a rate"):
        rescale(arrivals, rate)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_bad_prefix_hits(share: float) -> None:
    with pytest.raises(InvalidInput, match="not a share"):
        load_workload("preset:chat", prefix_hit=share)


def test_prefix_hit_sets_cached_tokens() -> None:
    assert load_workload("preset:chat", prefix_hit=0.3).lengths.hit_rate == pytest.approx(0.3)
    given = load_workload("mooncake_arxiv_first1000.jsonl.gz", prefix_hit=0.0)
    assert given.lengths.hit_rate == 0
    assert [note for note in given.notes if "prefix" in note] == ["prefix hit ratio of 0 % as given"]
