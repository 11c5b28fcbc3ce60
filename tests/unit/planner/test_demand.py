"""Workloads turned into requests: rates, ends, draws, and what is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diptych.errors import InvalidInput
from diptych.planner.demand import Asked, LongDemand, Rate, demand, long_demand
from diptych.simulator.demand import Requests, together

TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{10 + n * 0.5},{100 + n},{n + 1}\n" for n in range(41))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    (tmp_path / "t.csv").write_text(TRACE)
    return str(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("text", "value", "relative"),
    [
        ("30", 30, False),
        ("1.2k/min", 20, False),
        ("×1.5", 1.5, True),
        ("x1.5", 1.5, True),
        ("1.5x", 1.5, True),
        ("0.5/s", 0.5, False),
    ],
)
def test_rates_are_read(text: str, value: float, relative: bool) -> None:
    assert Rate.parse(text) == Rate(value, relative)


@pytest.mark.parametrize("text", ["fast", "0", "-1", "x0", "3/fortnight", "x", "nan"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Rate.parse(text)


def test_a_trace_is_replayed_as_it_was(trace: str) -> None:
    found = demand(trace, Asked()).requests
    assert found.arrival.tolist() == [n * 0.5 for n in range(41)]
    assert found.isl.tolist() == [100 + n for n in range(41)]
    assert found.rate == pytest.approx(2.0)


def test_faster_by_a_factor_or_to_a_rate(trace: str) -> None:
    assert demand(trace, Asked(rate=Rate(2.0, True))).rate == pytest.approx(4.0)
    assert demand(trace, Asked(rate=Rate(8.0))).rate == pytest.approx(8.0)
    assert demand(trace, Asked(base=3.0)).rate == pytest.approx(3.0)
    assert demand(trace, Asked(rate=Rate(1.5, True), base=4.0)).rate == pytest.approx(6.0)


def test_ends_hold_after_the_stretch_and_a_trace_that_ends_early_says_so(trace: str) -> None:
    assert len(demand(trace, Asked(rate=Rate(4.0), duration=5.0)).requests) == 21
    assert len(demand(trace, Asked(requests=7)).requests) == 7
    short = demand(trace, Asked(duration=100.0))
    assert len(short.requests) == 41
    assert any("ends after 20 s" in note for note in short.notes)
    assert any("41 requests" in note for note in demand(trace, Asked(requests=99)).notes)


def test_drawn_again_from_a_seed(trace: str) -> None:
    one, same, other = (demand(trace, Asked(resample=True, requests=200, seed=seed)).requests for seed in (1, 1, 2))
    assert len(one) == 200
    assert np.array_equal(one.isl, same.isl)
    assert not np.array_equal(one.isl, other.isl)
    assert set(one.isl.tolist()) <= {100 + n for n in range(41)}


def test_hashes_come_along_and_a_given_hit_replaces_them() -> None:
    whole = demand("mooncake_arxiv_first1000.jsonl.gz", Asked(requests=50)).requests
    assert whole.blocks is not None
    assert whole.hash_tokens == 512
    assert all(abs(len(b) * 512 - n) <= 512 for b, n in zip(whole.blocks, whole.isl.tolist(), strict=True))
    cached = demand("mooncake_arxiv_first1000.jsonl.gz", Asked(requests=50, prefix_hit=0.5)).requests
    assert cached.blocks is None
    assert cached.cached is not None
    assert np.array_equal(cached.cached, cached.isl // 2)


def test_a_trace_without_times_gets_poisson_arrivals_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("input_tokens,output_tokens\n" + "10,5\n" * 4000)
    found = demand(str(tmp_path / "t.csv"), Asked(rate=Rate(20.0), seed=3))
    gaps = np.diff(found.requests.arrival)
    assert found.rate == pytest.approx(20.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.1)
    assert any("arrivals drawn" in note for note in found.notes)


def test_descriptions_are_drawn() -> None:
    fixed = demand("fixed:1000x100", Asked(rate=Rate(50.0), requests=300)).requests
    assert set(fixed.isl.tolist()) == {1000}
    assert len(fixed) == 300
    assert float(demand("fixed:1000x100", Asked(rate=Rate(50.0), duration=4.0)).requests.arrival[-1]) <= 4.0


@pytest.mark.parametrize(
    ("spec", "asked", "expected"),
    [
        ("fixed:1000x100", Asked(), "no rate of its own"),
        ("fixed:1000x100", Asked(rate=Rate(1e9), duration=1e3), "--duration"),
        ("fixed:1000x100", Asked(rate=Rate(0.001), duration=0.1), "no request arrives"),
        ("preset:caht", Asked(), "did you mean chat?"),
        ("missing.csv", Asked(), "no such workload"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(spec: str, asked: Asked, expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected.replace("?", r"\?")):
        demand(spec, asked)


def whole(long: LongDemand | None) -> Requests:
    assert long is not None
    return together(long.parts())


@pytest.mark.parametrize(
    "asked",
    [
        Asked(),
        Asked(rate=Rate(2.0, True)),
        Asked(rate=Rate(8.0), duration=3.0),
        Asked(base=3.0, requests=17),
        Asked(rate=Rate(1.5, True), base=4.0, requests=30, duration=2.0),
        Asked(prefix_hit=0.25),
    ],
)
def test_a_long_trace_in_parts_is_the_same_requests(trace: str, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diptych.planner.demand.LONG", 40)
    monkeypatch.setattr("diptych.planner.demand.LONG_FILE", 0)
    held, long = demand(trace, asked), long_demand(trace, asked)
    found = whole(long)
    assert found.arrival == pytest.approx(held.requests.arrival, rel=1e-12)
    assert found.isl.tolist() == held.requests.isl.tolist()
    assert found.osl.tolist() == held.requests.osl.tolist()
    if asked.prefix_hit is not None:
        assert found.cached is not None
        assert held.requests.cached is not None
        assert found.cached.tolist() == held.requests.cached.tolist()
    assert long is not None
    assert (long.name, long.source) == (held.name, held.source)
    if asked.duration is None:
        assert long.count == len(held.requests)
        assert long.rate == pytest.approx(held.rate)


def test_a_long_description_is_drawn_as_a_short_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(rate=Rate(50.0), requests=40_000, seed=4)
    assert long_demand("preset:chat", asked) is None  # short enough to be held
    monkeypatch.setattr("diptych.planner.demand.LONG", 1000)
    held, found = demand("preset:chat", asked).requests, whole(long_demand("preset:chat", asked))
    assert np.array_equal(held.arrival, found.arrival)
    assert np.array_equal(held.isl, found.isl)


def test_what_must_be_held_is(trace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("diptych.planner.demand.LONG", 3)
    monkeypatch.setattr("diptych.planner.demand.LONG_FILE", 0)
    assert long_demand(trace, Asked(resample=True)) is None
    (tmp_path / "no_times.csv").write_text("input_tokens,output_tokens\n" + "10,5\n" * 9)
    assert long_demand(str(tmp_path / "no_times.csv"), Asked(rate=Rate(3.0))) is None


def test_more_than_can_be_kept_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidInput, match="without --out none is"):
        demand("preset:chat", Asked(rate=Rate(50.0), requests=6_000_000))
