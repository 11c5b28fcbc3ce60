"""KV that decoding sequences keep in one piece: the same tokens as out of blocks and as `transformers`', whoever has room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_worlds import Driver
from tiny_models import VOCABULARY, greedy, saved
from transformers import PreTrainedModel

from diptych.runtime.engine import Step
from diptych.runtime.engines.torch.dense import SLACK, Dense
from diptych.runtime.engines.torch.engine import Setup, TorchEngine
from diptych.runtime.sampling import GREEDY

ASKED = (1, 30, 100)
COUNT = SLACK + 20  # beyond what a sequence may grow before it is laid out anew


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    return saved("llama", tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def expected(model: tuple[Path, PreTrainedModel]) -> dict[int, list[int]]:
    return {sequence: greedy(model[1], prompt, COUNT) for sequence, prompt in prompts(*ASKED).items()}


def engine(place: Path, most_bytes: int, **given: object) -> TorchEngine:
    made = TorchEngine.load(place, Setup(blocks=96, **given))  # type: ignore[arg-type]
    made._dense = Dense(made.layers, made.decoder.dtype, most_bytes)
    return made


def prompts(*lengths: int) -> dict[int, tuple[int, ...]]:
    numbers = np.random.default_rng(4)
    return {place: tuple(numbers.integers(0, VOCABULARY, size).tolist()) for place, size in enumerate(lengths)}


@pytest.mark.parametrize("most_bytes", [1 << 30, 0, 300_000])
def test_answers_are_those_of_transformers_with_room_for_all_for_none_and_for_some(
    model: tuple[Path, PreTrainedModel], expected: dict[int, list[int]], most_bytes: int
) -> None:
    assert Driver(engine(model[0], most_bytes)).answer(prompts(*ASKED), COUNT, 32) == expected


@pytest.mark.parametrize("kv", ["bf16", "fp8", "int8"])
def test_what_is_kept_is_what_blocks_would_give(model: tuple[Path, PreTrainedModel], kv: str) -> None:
    asked = prompts(20, 70)
    kept, gathered = (Driver(engine(model[0], size, kv=kv)).answer(asked, 40) for size in (1 << 30, 0))
    assert kept == gathered


def test_the_longest_silent_is_given_up_first_and_nobody_takes_more_than_there_is(
    model: tuple[Path, PreTrainedModel],
) -> None:
    made = engine(model[0], 0)
    one = made.layers[0]
    row = len(made.layers) * 2 * one.heads * SLACK * one.dim * 4
    dense = Dense(made.layers, torch.float32, 2 * row)
    steps = [Step(number, 1, 5, (number,), GREEDY) for number in range(3)]
    for step in steps[:2]:
        assert dense.rows([step]) is not None
        dense.wrote([step])
    assert dense.rows([steps[2]]) is not None
    assert list(dense._kept) == [1, 2]
    assert dense._bytes == 2 * row
    assert dense.rows(steps) is None
    assert dense._bytes == sum(kept.values.nbytes for kept in dense._kept.values()) == 0


def test_other_blocks_under_an_old_number_are_read_anew(model: tuple[Path, PreTrainedModel]) -> None:
    """As after a preemption of which the engine was not told."""
    place, reference = model
    driver = Driver(engine(place, 1 << 30))
    asked = prompts(40, 25)
    driver.answer(asked, 4)
    driver.blocks[0], driver.blocks[1] = driver.blocks[1], driver.blocks[0]
    (found,) = driver.engine.decode_step([Step(0, asked[1][-1], len(asked[1]) - 1, driver.blocks[0], GREEDY)])
    assert found.token == greedy(reference, asked[1], 1)[0]  # type: ignore[union-attr]
