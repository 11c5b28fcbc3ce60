"""Laws of workloads: compression keeps means and ranges, time stretches keep counts, caches only get better with size."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.errors import InvalidInput
from diptych.workload.arrivals import rescale
from diptych.workload.compress import compress
from diptych.workload.distributions import TruncatedLogNormal
from diptych.workload.lengths import Lengths
from diptych.workload.load import load_workload
from diptych.workload.reuse import measure_reuse
from diptych.workload.summary import summarise

tokens = st.one_of(st.integers(1, 30), st.integers(1, 200_000))
computing = settings(deadline=None, max_examples=60)
points = st.lists(st.tuples(tokens, tokens, st.floats(0, 1), st.floats(0.01, 10)), min_size=1, max_size=120)


def lengths_of(rows: list[tuple[int, int, float, float]]) -> Lengths:
    isl, osl, share, weight = np.array(rows, float).T
    return Lengths(isl, osl, np.floor(isl * share), weight / weight.sum())


@computing
@given(points, st.integers(1, 40))
def test_compress_keeps_means_and_invents_no_length(rows, count: int) -> None:
    whole = lengths_of(rows)
    small = compress(whole, count)
    assert len(small) <= max(count, 1)
    assert small.weight.sum() == pytest.approx(1)
    for name in ("isl", "osl", "cached"):
        before, after = getattr(whole, name), getattr(small, name)
        assert small.mean(after) == pytest.approx(whole.mean(before), rel=1e-9, abs=1e-9)
        assert before.min() <= after.min()
        assert after.max() <= before.max()
        # Jensen: a cell's mean squared never exceeds its mean square.
        assert small.mean(after**2) <= whole.mean(before**2) * (1 + 1e-9)
    assert np.all(small.cached <= small.isl)
    if count > 1:
        assert small.max_context == pytest.approx(whole.max_context)


@computing
@given(points, st.integers(1, 40))
def test_compress_is_deterministic_and_blind_to_order(rows, count: int) -> None:
    whole = lengths_of(rows)
    back = Lengths(whole.isl[::-1], whole.osl[::-1], whole.cached[::-1], whole.weight[::-1])
    one, other = compress(whole, count), compress(back, count)
    for name in ("isl", "osl", "cached", "weight"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


@computing
@given(points)
def test_enough_points_lose_nothing(rows) -> None:
    whole = lengths_of(rows)
    small = compress(whole, len(whole))
    for q in (0.05, 0.5, 0.95, 0.99):
        assert small.quantile(small.isl, q) == whole.quantile(whole.isl, q)


reading = settings(max_examples=15, deadline=None)  # each example writes and reads files
traces = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 9000), st.integers(1, 900)), min_size=2, max_size=60)


def csv_of(rows: list[tuple[int, int, int]]) -> bytes:
    lines, now = ["arrival_s,input_tokens,output_tokens"], 0
    for gap, isl, osl in rows:
        now += gap
        lines.append(f"{now / 1000},{isl},{osl}")
    return ("\n".join(lines) + "\n").encode()


def load(content: bytes, **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_bytes(content)
        return load_workload(str(path), **options)


@reading
@given(traces)
def test_gzip_and_plain_read_alike(rows) -> None:
    plain, packed = load(csv_of(rows)), load(gzip.compress(csv_of(rows)))
    assert plain.arrivals == packed.arrivals
    assert plain.requests == packed.requests == len(rows)
    for name in ("isl", "osl", "weight"):
        assert np.array_equal(getattr(plain.lengths, name), getattr(packed.lengths, name))


@reading
@given(traces)
def test_reading_keeps_totals(rows) -> None:
    found = load(csv_of(rows))
    assert found.lengths.mean_isl * len(rows) == pytest.approx(sum(isl for _, isl, _ in rows))
    assert found.lengths.mean_osl * len(rows) == pytest.approx(sum(osl for _, _, osl in rows))


@reading
@given(traces, st.floats(0.01, 1000))
def test_stretching_time_keeps_counts(rows, rate: float) -> None:
    before = load(csv_of(rows)).arrivals
    after = rescale(before, rate)
    assert after.rate == rate
    assert (after.cv, after.peak_to_mean) == (before.cv, before.peak_to_mean)
    for (window, value), (stretched, kept) in zip(before.fano, after.fano, strict=True):
        assert kept == value
        if before.rate:
            assert stretched * after.rate == pytest.approx(window * before.rate)  # requests per window


chains = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True), min_size=1, max_size=40)


@computing
@given(chains)
def test_a_larger_cache_never_finds_less(ids: list[list[int]]) -> None:
    counts = np.array([len(row) for row in ids])
    reuse = measure_reuse(np.array([block for row in ids for block in row], np.uint64), counts, counts * 64.0)
    ratios = [reuse.hit_ratio(blocks * reuse.block) for blocks in range(25)]
    assert ratios == sorted(ratios)
    assert ratios[0] == 0
    assert ratios[-1] == pytest.approx(reuse.hit_ratio())
    assert 0 <= reuse.hit_ratio() < 1
    assert np.all(reuse.cached() <= counts * 64)


@computing
@given(st.floats(3, 11), st.floats(0.1, 2), st.floats(0.1, 4), st.floats(0.1, 4), st.integers(1, 300))
def test_truncated_lognormal_points_keep_the_mean(
    mu: float, sigma: float, below: float, above: float, count: int
) -> None:
    low, high = math.exp(mu - below * sigma), math.exp(mu + above * sigma)
    prompts = TruncatedLogNormal(mu, sigma, low, high)
    lengths = prompts.lengths(10, count)
    assert lengths.mean_isl == pytest.approx(prompts.mean, rel=1e-6)
    assert np.all(np.diff(lengths.isl) > -1e-9 * low)
    assert low * (1 - 1e-6) <= lengths.isl.min()
    assert lengths.isl.max() <= high * (1 + 1e-6)


cells = st.one_of(
    st.integers(-5, 10**10).map(str),
    st.floats().map(str),
    st.text(max_size=6),
    st.sampled_from(['"', "", "nan", "1e400"]),
)
rows_of_cells = st.lists(st.lists(cells, max_size=4).map(",".join), max_size=12).map("\n".join)
heads = st.sampled_from([
    "arrival_s,input_tokens,output_tokens", "TIMESTAMP,ContextTokens,GeneratedTokens", "model,field,cum_prob,tokens",
    "model,t_s,total_rate_rps", '{"timestamp": 0, "input_length": 9, "output_length": 9, "hash_ids": [1]}', "",
])  # fmt: skip
texts = st.tuples(heads, rows_of_cells).map(lambda parts: "\n".join(parts).encode(errors="surrogatepass"))


@settings(max_examples=60, deadline=None)
@given(st.one_of(texts, st.binary(max_size=300), texts.map(gzip.compress)), st.booleans(), st.booleans())
def test_any_file_is_a_workload_or_findings(content: bytes, sort: bool, drop_empty: bool) -> None:
    try:
        found = load(content, sort=sort, drop_empty=drop_empty)
    except InvalidInput as refusal:
        findings = refusal.findings
    else:
        assert np.all(found.lengths.isl >= 1)
        json.dumps(summarise(found), allow_nan=False)
        return
    assert findings
    assert all(finding.where and finding.problem for finding in findings)
