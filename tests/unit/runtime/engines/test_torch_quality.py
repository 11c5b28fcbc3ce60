"""The gauge: nothing for the baseline, more for coarser formats, and all of it for the right role."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tiny_models import VOCABULARY, saved
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedModel
from typer.testing import CliRunner

from diptych.cli.quality import quality
from diptych.errors import InvalidInput
from diptych.runtime.engines.torch.engine import open_checkpoint
from diptych.runtime.engines.torch.quality import Gauge, Pairing, Quality, Role, Windows, pairings

FP32 = Role("fp32", "fp32")
TOKENS = random.Random(1).choices(range(1, VOCABULARY), k=400)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    place, model = saved("qwen2", tmp_path_factory.mktemp("quality"))
    words = Tokenizer(WordLevel({"?": 0, **{f"w{number}": number for number in range(1, VOCABULARY)}}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    words.save(str(place / "tokenizer.json"))
    return place, model


@pytest.fixture(scope="module")
def found(model: tuple[Path, PreTrainedModel]) -> dict[Pairing, Quality]:
    windows = Windows.of(TOKENS, 40, 12, 3)
    asked = pairings(FP32, ["bf16", "int8"], ["fp16", "int8", "fp8", "int4"])
    return {each.pairing: each for each in Gauge(open_checkpoint(model[0]), windows).measure(FP32, asked)}


def test_pairings_are_every_pair_of_weights_and_every_place_of_a_kv() -> None:
    asked = pairings(FP32, ["int8"], ["int8", "int4"])
    int8, kept = Role("int8", "fp32"), Role("fp32", "int8")
    assert asked[:4] == [Pairing(one, "", two) for one in (FP32, int8) for two in (FP32, int8)]
    assert asked[4:] == [
        Pairing(FP32, "int8", FP32),
        Pairing(FP32, "", kept),
        Pairing(kept, "", kept),
        Pairing(FP32, "int4", FP32),
    ]


def test_the_baseline_costs_nothing_and_its_perplexity_is_transformers(
    model: tuple[Path, PreTrainedModel], found: dict[Pairing, Quality]
) -> None:
    base = found[Pairing(FP32, "", FP32)]
    assert (base.change, base.error, base.agreement, base.divergence) == (0, 0, 1, 0)
    losses = []
    for window in Windows.of(TOKENS, 40, 12, 3).tokens:
        with torch.inference_mode():
            rows = torch.log_softmax(model[1](torch.tensor([window])).logits[0], -1)
        losses += [-float(rows[place - 1, window[place]]) for place in range(41, 52)]
    assert base.tokens == len(losses) == 33
    assert base.perplexity == pytest.approx(torch.tensor(losses).mean().exp().item(), rel=1e-4)


def test_coarser_kv_costs_more(found: dict[Pairing, Quality]) -> None:
    crossing = [found[Pairing(FP32, kv, FP32)].divergence for kv in ("fp16", "int8", "fp8", "int4")]
    assert crossing == sorted(crossing)
    assert 0 < crossing[0] < 1e-4 < crossing[-1]


def test_each_role_is_measured_by_itself(found: dict[Pairing, Quality]) -> None:
    int8 = Role("int8", "fp32")
    costs = [found[Pairing(one, "", two)].divergence for one, two in ((int8, FP32), (FP32, int8), (int8, int8))]
    assert len(set(costs)) == 3
    assert all(cost > 0 for cost in costs)
    kept = Role("fp32", "fp8")
    assert found[Pairing(FP32, "", kept)].divergence != found[Pairing(kept, "", kept)].divergence


def test_windows_lie_evenly_and_a_short_text_has_none() -> None:
    assert Windows.of(range(100), 6, 4, 3).tokens == (tuple(range(10)), tuple(range(45, 55)), tuple(range(90, 100)))
    assert len(Windows.of(range(25), 6, 4, 3).tokens) == 2
    with pytest.raises(InvalidInput, match="9 tokens"):
        Windows.of(range(9), 6, 4, 3)


def test_the_command(model: tuple[Path, PreTrainedModel], tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(quality)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{token}" for token in TOKENS))
    given = [
        "--model",
        str(model[0]),
        "--text",
        str(text),
        "--context",
        "30",
        "--scored",
        "8",
        "--kv",
        "int8",
        "--weights",
        "int8",
    ]
    told = json.loads(CliRunner().invoke(app, [*given, "--json"], catch_exceptions=False).stdout)
    assert len(told["pairings"]) == 7
    assert told["pairings"][0]["divergence"] == 0
    shown = CliRunner().invoke(app, given, catch_exceptions=False).stdout
    assert all(part in shown for part in ("int8 /", "greedy", "one standard error"))
    for bad, named in (
        ({"--kv": "int9"}, "--kv"),
        ({"--text": "/nowhere"}, "--text"),
        ({"--baseline": "int8"}, "--baseline"),
    ):
        spoiled = [*given, *(part for pair in bad.items() for part in pair)]
        with pytest.raises(InvalidInput, match=named):
            CliRunner().invoke(app, spoiled, catch_exceptions=False)
