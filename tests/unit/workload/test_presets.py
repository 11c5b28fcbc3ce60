"""Presets, closed forms and regimes against the numbers their sources print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from diptych.errors import InvalidInput
from diptych.workload.distributions import TruncatedLogNormal
from diptych.workload.load import load_workload
from diptych.workload.presets import DATA, PRESETS, SOURCES, preset
from diptych.workload.regime import OUTPUT_TOKEN_COST, regime

ROOT = Path(__file__).parents[3]
# Means of ISL and OSL that the sources (or the statistics of their traces) print, in tokens to one decimal.
PUBLISHED = {
    "chat": (1154.7, 211.1),
    "codegen": (2047.8, 27.9),
    "summarisation": (2588.1, 291.4),
    "rag": (15325.5, 149.1),
    "creative": (1268.2, 1527.4),
    "agent": (8596.0, 182.0),
    "batch": (914.3, 155.1),
}
FROM_QUANTILES = {"creative": 0.005, "batch": 0.015}  # 201 quantiles cannot give the mean of the requests to a digit


@pytest.mark.parametrize("name", PRESETS)
def test_means_are_the_published_ones(name: str) -> None:
    isl, osl = PUBLISHED[name]
    lengths, within = preset(name).lengths, FROM_QUANTILES.get(name, 0.0)
    assert lengths.mean_isl == pytest.approx(isl, rel=within, abs=0.0501)
    assert lengths.mean_osl == pytest.approx(osl, rel=within, abs=0.0501)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole_and_say_what_they_assume(name: str) -> None:
    workload, row = load_workload(f"preset:{name}"), PRESETS[name]
    lengths = workload.lengths
    assert lengths.weight.sum() == pytest.approx(1)
    assert np.all((lengths.isl > 0) & (lengths.osl > 0) & (lengths.cached <= lengths.isl))
    assert row.source
    assert row.derived
    assert any(note.startswith("assumed: ") for note in workload.notes)


def test_reuse_of_agent_and_rag() -> None:
    assert preset("agent").lengths.hit_rate == pytest.approx(0.59)
    assert preset("rag").lengths.hit_rate == pytest.approx(0.6512, abs=1e-4)


def test_only_batch_is_offline() -> None:
    assert [name for name in PRESETS if preset(name).arrivals.offline] == ["batch"]


def test_stored_points_derive_from_the_traces() -> None:
    spec = importlib.util.spec_from_file_location("derive_presets", ROOT / "benchmarks" / "derive_presets.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name in script.SOURCES:
        derived, stored = script.derive(name), preset(name).lengths
        for column in ("isl", "osl", "cached", "weight"):
            assert np.allclose(getattr(derived, column), getattr(stored, column), rtol=1e-8)


def test_bundled_files_are_documented() -> None:
    readme = (DATA / "README.md").read_text()
    files = {path.name for path in DATA.iterdir()} - {"README.md"}
    assert files == set(re.findall(r"[\w.]+\.(?:csv|jsonl)(?:\.gz)?", readme)) & files
    assert set(SOURCES) <= files


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean summarisation"):
        preset("summarization")


def test_truncated_lognormal_of_prefill_as_a_service() -> None:
    """Published (arXiv:2604.15039): mean about 27K, 49 to 50 % above 19.4K, and 10.2K and 45.1K on average either side of it."""
    prompts = TruncatedLogNormal(9.90, 1.00, 128, 128 * 1024)
    assert prompts.mean == pytest.approx(27.5e3, rel=0.02)
    assert 0.49 <= prompts.above(19.4e3) <= 0.50
    assert prompts.mean_between(128, 19.4e3) == pytest.approx(10.2e3, rel=0.005)
    assert prompts.mean_between(19.4e3, 128 * 1024) == pytest.approx(45.1e3, rel=0.005)


def test_lognormal_spec_gives_the_same_points() -> None:
    lengths = load_workload("lognormal:mu=9.90,sigma=1.00,low=128,high=131072,osl=1024").lengths
    assert lengths.mean_isl == pytest.approx(TruncatedLogNormal(9.90, 1.00, 128, 131072).mean)
    assert set(lengths.osl) == {1024}
    above = lengths.weight[lengths.isl > 19.4e3].sum()
    assert above == pytest.approx(0.4957, abs=1 / 256)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lognormal:mu=9", "sigma is missing, low is missing"),
        ("lognormal:mu=9,sigma=1,low=1,high=9,osl=1,x=2", "'x' is unknown"),
        ("lognormal:mu=9,sigma=0,low=1,high=9,osl=1", "sigma above zero"),
        ("lognormal:mu=90,sigma=1,low=1,high=9,osl=1", "has nothing from 1 to 9"),
        ("lognormal:mu=9,sigma=1,low=9,high=8,osl=1", "0 < low < high"),
        ("lognormal:mu=x,sigma=y,low=1,high=8,osl=1", "'x' is not a count"),
        ("fixed:2048", "ISLxOSL"),
        ("fixed:0x5", "isl of 0 tokens"),
        ("fixed:1Gx5", "isl of 1e+09 tokens"),
        ("fixed:axb", "'b' is not a count"),
    ],
)
def test_bad_closed_forms(spec: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_workload(spec)
    assert words in str(caught.value)


def test_fixed_lengths() -> None:
    lengths = load_workload("fixed:2kx128").lengths
    assert (lengths.mean_isl, lengths.mean_osl, len(lengths)) == (2000, 128, 1)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("preset:codegen", "prefill-heavy"),
        ("preset:rag", "prefill-heavy"),
        ("preset:creative", "decode-heavy"),
        ("preset:chat", "balanced"),
        ("preset:batch", "offline"),
    ],
)
def test_regimes(spec: str, name: str) -> None:
    assert regime(load_workload(spec)).name == name


def test_regime_by_hand() -> None:
    found = regime(load_workload("fixed:1000x100"))
    assert found.prefill_share == pytest.approx(1000 / (1000 + 100 * 295 / 64))
    assert abs(OUTPUT_TOKEN_COST - 4.609) < 1e-3


def test_cached_prompts_lean_to_decode() -> None:
    cold, warm = (regime(load_workload("fixed:8000x400", prefix_hit=hit)) for hit in (0.0, 0.9))
    assert (cold.name, warm.name) == ("prefill-heavy", "decode-heavy")
