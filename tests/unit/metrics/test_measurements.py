"""Measurements by hand: the two TTFTs, TPOT, identities, goodput, and text without NaN."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

from diptych.metrics.measurements import Measurements, RequestColumns, Series
from diptych.metrics.record import Outcome
from diptych.metrics.slo import SLO
from diptych.metrics.summary import Spread, summarise

NAN = math.nan


def measured() -> Measurements:
    """One handed over, one of a single token, one refused."""
    ints = lambda *values: np.array(values, dtype=np.int64)  # noqa: E731
    floats = lambda *values: np.array(values, dtype=float)  # noqa: E731
    requests = RequestColumns(
        id=ints(0, 1, 2),
        arrival=floats(0.0, 1.0, 2.0),
        prefill_start=floats(0.1, 1.0, NAN),
        first_token=floats(0.5, 1.2, NAN),
        moved=floats(0.6, NAN, NAN),
        decode_start=floats(0.7, NAN, NAN),
        finish=floats(1.7, 1.2, 2.0),
        isl=ints(100, 100, 100),
        osl=ints(11, 1, 10),
        retries=ints(0, 0, 0),
        outcome=ints(Outcome.FINISHED, Outcome.FINISHED, Outcome.REJECTED),
        prefill_worker=ints(0, 0, -1),
        decode_worker=ints(1, -1, -1),
    )
    return Measurements("hand", requests, Series(np.zeros(1), {"live": np.zeros(1)}), (), (), 2.0, 3, 0.24, 50.0, 7)


def test_ttft_is_what_the_decode_side_can_deliver() -> None:
    first, single, _ = measured()
    assert (first.ttft_prefill, first.ttft) == (0.5, 0.7)
    assert first.tpot == pytest.approx(0.1)
    assert first.e2e == pytest.approx(first.ttft + 10 * first.tpot)
    assert single.ttft == single.ttft_prefill == pytest.approx(0.2)
    assert math.isnan(single.tpot)


def test_columns_say_what_records_say() -> None:
    run = measured()
    for name in ("ttft", "ttft_prefill", "tpot", "e2e"):
        column = getattr(run.requests, name)
        assert np.allclose(column, [getattr(record, name) for record in run], equal_nan=True), name


def test_goodput_counts_requests_that_kept_every_limit() -> None:
    summary = summarise(measured(), SLO.parse("ttft_p90<0.6s, tpot_p90<0.2s"))
    assert (summary.arrived, summary.finished, summary.refused) == (3, 2, 1)
    assert summary.goodput == pytest.approx(0.5), "only the single token came within 0.6 s"
    assert summary.attainment == pytest.approx(1 / 3)
    ttft, tpot = summary.kept
    assert (ttft.share, ttft.holds) == (pytest.approx(1 / 3), False)
    assert tpot.share == pytest.approx(0.5), "the refused one missed it"
    assert summary.usd_per_million_output == pytest.approx(0.24 / 12 * 1e6)
    assert summary.joule_per_output == pytest.approx(50 / 12)


def test_an_empty_spread_is_nan_and_not_an_error() -> None:
    assert math.isnan(Spread.of(np.array([NAN])).p99)


def test_text_has_null_where_nothing_happened() -> None:
    run = measured()
    rows = [json.loads(line) for line in run.jsonl()]
    assert rows[2]["first_token"] is None
    assert rows[2]["outcome"] == "rejected"
    assert rows[0]["ttft"] == 0.7
    table = list(csv.DictReader(io.StringIO(run.csv())))
    assert [row["id"] for row in table] == ["0", "1", "2"]
    assert table[1]["moved"] == ""
    assert json.dumps(run.to_json(), allow_nan=False)
