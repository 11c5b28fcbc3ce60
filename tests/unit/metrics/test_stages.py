"""Stages add up; a queue that grows is told."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.metrics.measurements import Measurements, RequestColumns, Series
from diptych.metrics.record import Outcome
from diptych.metrics.saturation import falls_behind, too_short
from diptych.metrics.stages import STAGES, Conversions, stages

NAN = float("nan")


def columns(rows: list[tuple[float, ...]], outcome: Outcome = Outcome.FINISHED) -> RequestColumns:
    """Rows of (arrival, prefill_start, first_token, moved, decode_start, finish)."""
    times = np.array(rows, dtype=float).T
    whole = np.arange(len(rows))
    ones = np.full(len(rows), 10)
    return RequestColumns(whole, *times, ones, ones, ones * 0, ones * 0 + int(outcome), whole * 0, whole * 0)


def run(requests: RequestColumns) -> Measurements:
    series = Series(np.zeros(1), {})
    return Measurements("t", requests, series, (), (), float(np.nanmax(requests.finish)), len(requests), 0.0, 0.0, 0)


def test_stages_lie_between_the_timestamps() -> None:
    found = stages(columns([(0.0, 1.0, 3.0, 6.0, 10.0, 15.0)]), Conversions(*(np.array([x]) for x in (0.5, 0.25, 9.0))))
    assert tuple(found) == STAGES
    # 9 s of conversion on the decode side are cut to the 4 s that there were
    assert [float(part[0]) for part in found.values()] == [1.0, 1.5, 0.5 + 0.25 + 4.0, 2.75, 0.0, 5.0]


def test_without_a_handoff_there_is_neither_transfer_nor_wait() -> None:
    found = stages(columns([(0.0, 1.0, 3.0, NAN, 3.0, 15.0), (2.0, 2.0, 4.0, NAN, NAN, 4.0)]))
    assert [part.tolist() for part in found.values()] == [[1, 0], [2, 2], [0, 0], [0, 0], [0, 0], [12, 0]]


def test_stages_add_up_to_end_to_end() -> None:
    draw = np.random.default_rng(1)
    requests = columns(list(map(tuple, np.cumsum(draw.exponential(1.0, (50, 6)), axis=1))))
    total = sum(stages(requests).values())
    assert total == pytest.approx(requests.e2e)


def test_refused_requests_have_no_stages() -> None:
    assert len(stages(columns([(0, 1, 2, 3, 4, 5)], Outcome.REJECTED))["queue"]) == 0


def fifo(gap: float, service: float, count: int = 400) -> Measurements:
    """One server, regular arrivals."""
    rows, free = [], 0.0
    for number in range(count):
        arrival = number * gap
        free = max(free, arrival) + service
        rows.append((arrival, free - service, free, NAN, free, free))
    return run(columns(rows))


def test_a_queue_that_grows_is_told_and_one_that_does_not_is_not() -> None:
    assert "falls behind" in falls_behind(fifo(1.0, 1.5))
    assert falls_behind(fifo(1.0, 0.99)) == ""


def test_a_run_shorter_than_its_requests_is_told() -> None:
    assert "short run" in too_short(fifo(0.01, 5.0, 3))
    assert too_short(fifo(1.0, 0.5)) == ""
