"""Every statistic of `tests/data/traces/trace_stats.csv`, computed apart with numpy, beside ours."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from diptych.workload.load import load_workload
from diptych.workload.presets import DATA
from diptych.workload.reuse import NEVER
from diptych.workload.summary import summarise
from diptych.workload.trace import Trace

TRACES = Path(__file__).parents[2] / "data" / "traces"
FILES = {
    "azure2023_code": DATA / "azure2023_code.csv.gz",
    "azure2023_conv": DATA / "azure2023_conv.csv.gz",
    "mooncake_arxiv_first1000": DATA / "mooncake_arxiv_first1000.jsonl.gz",
    "mooncake_conversation": TRACES / "mooncake_conversation.jsonl.gz",
    "mooncake_synthetic": TRACES / "mooncake_synthetic.jsonl.gz",
    "vidur_arxiv_summarization_lengths": TRACES / "vidur_arxiv_summarization_lengths.csv.gz",
    "sharegpt300_Llama-3.1-8B": TRACES / "sharegpt300_Llama-3.1-8B.jsonl.gz",
    "sharegpt300_Qwen3-32B": TRACES / "sharegpt300_Qwen3-32B.jsonl.gz",
}


def published(name: str) -> dict[str, str]:
    with (TRACES / "trace_stats.csv").open(encoding="utf-8", newline="") as stream:
        row = next(row for row in csv.DictReader(stream) if row["trace"] == name)
    return {key: value for key, value in row.items() if value and key not in {"trace", "source", "licence", "note"}}


def half_a_digit(text: str) -> float:
    """Half of the last digit printed."""
    digits = len(text.partition(".")[2])
    return max(0.5001 * 10.0**-digits, 1e-6)


def measured(name: str) -> dict[str, float]:
    found = summarise(load_workload(str(FILES[name])))
    ours = {
        "n": found["requests"],
        "in_out_ratio_of_totals": found["in_out_ratio"],
        "corr_isl_osl": found["correlation"],
    }
    for role in ("isl", "osl"):
        ours |= {f"{role}_{key}": found[role][key] for key in ("mean", "cv", "p5", "p50", "p90", "p95", "p99", "max")}
    with Trace(FILES[name]) as trace:
        stats, reuse = trace.arrivals(), trace.reuse()
    if stats:
        fano = {f"count_fano_{window:g}s": value for window, value in stats.fano}
        ours |= {"duration_s": stats.duration, "rate_rps": stats.rate, "iat_cv": stats.cv_gaps, **fano}
        ours |= {"peak_to_mean_60s": stats.peak_to_mean}
    if reuse:
        ours |= {"block_tokens": reuse.block, "blocks_total": len(reuse.depth), "blocks_unique": reuse.distinct,
                 "prefix_token_hit_ratio_infinite_cache": reuse.hit_ratio()}  # fmt: skip
        ours["prefix_block_hit_ratio_infinite_cache"] = float(np.mean(reuse.depth < NEVER))
    return ours


@pytest.mark.parametrize("name", FILES)
def test_statistics_equal_the_published_ones(name: str) -> None:
    theirs, ours = published(name), measured(name)
    assert set(theirs) <= set(ours), "every published number is compared"
    wrong = {
        key: (text, ours[key]) for key, text in theirs.items() if abs(ours[key] - float(text)) > half_a_digit(text)
    }
    assert not wrong, f"published, ours: {wrong}"


def test_conversation_prefix_reuse_is_37_percent() -> None:
    workload = load_workload(str(FILES["mooncake_conversation"]))
    assert workload.lengths.hit_rate == pytest.approx(0.3736, abs=5e-5)


def test_steps_in_timestamps_are_told_from_bursts() -> None:
    with Trace(FILES["mooncake_conversation"]) as trace:
        stats = trace.arrivals()
    assert stats is not None
    assert stats.quantised
    assert stats.step == pytest.approx(3.0, abs=0.01)
    assert stats.arrivals().cv == 1.0
    assert "artefact" in stats.arrivals().note


@pytest.mark.parametrize("name", ["azure2023_conv", "azure2023_code", "mooncake_synthetic", "sharegpt300_Qwen3-32B"])
def test_fine_timestamps_keep_their_cv(name: str) -> None:
    with Trace(FILES[name]) as trace:
        stats = trace.arrivals()
    assert stats is not None
    assert not stats.quantised
    assert stats.arrivals().cv == stats.cv_gaps
