"""Compression on real traces: totals exact, tails near, and the streaming cells of a trace too varied to keep whole."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.workload import Lengths, compress, load_workload, trace


@pytest.fixture(scope="module")
def conversation() -> Lengths:
    return load_workload("azure2023_conv.csv.gz").lengths


@pytest.mark.parametrize("points", [16, 64, 256])
def test_means_second_moments_and_tails(conversation: Lengths, points: int) -> None:
    small = compress(conversation, points)
    assert len(small) == points
    assert small.mean_isl == pytest.approx(1154.7, abs=0.05)  # the published means
    assert small.mean_osl == pytest.approx(211.1, abs=0.05)
    for name in ("isl", "osl"):
        before, after = getattr(conversation, name), getattr(small, name)
        lost = 1 - small.mean(after**2) / conversation.mean(before**2)
        assert 0 <= lost < {16: 0.03, 64: 0.005, 256: 0.001}[points]
    if points >= 64:
        assert small.quantile(small.isl, 0.99) == pytest.approx(4142, rel=0.02)
        assert small.quantile(small.osl, 0.99) == pytest.approx(601, rel=0.02)


def test_the_largest_request_keeps_its_own_point(conversation: Lengths) -> None:
    assert compress(conversation, 2).max_context == conversation.max_context


def test_equal_requests_become_one_point() -> None:
    same = Lengths(np.full(9, 7.0), np.full(9, 3.0), np.zeros(9), np.full(9, 1 / 9))
    assert len(compress(same, 5)) == 1


def test_no_points_are_refused() -> None:
    with pytest.raises(ValueError, match="0 points"):
        compress(Lengths.fixed(10, 10), 0)


def test_cells_of_a_varied_trace_keep_totals_and_quantiles(
    conversation: Lengths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "EXACT_PAIRS", 100)
    cells = load_workload("azure2023_conv.csv.gz").lengths
    assert len(cells) < len(conversation)
    assert cells.mean_isl == pytest.approx(conversation.mean_isl, rel=1e-12)
    assert cells.mean_osl == pytest.approx(conversation.mean_osl, rel=1e-12)
    for name in ("isl", "osl"):
        for q in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0):
            exact = conversation.quantile(getattr(conversation, name), q)
            assert cells.quantile(getattr(cells, name), q) == pytest.approx(exact, rel=0.0111)


def test_a_staged_database_reads_the_same(conversation: Lengths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diptych.workload.stage._ON_DISK_ABOVE", 0)
    on_disk = load_workload("azure2023_conv.csv.gz").lengths
    assert np.array_equal(on_disk.isl, conversation.isl)
    assert np.array_equal(on_disk.weight, conversation.weight)
