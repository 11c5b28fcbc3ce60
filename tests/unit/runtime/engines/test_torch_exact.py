"""Every family against `transformers`, token for token in fp32, and what the formats of KV and weights cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_worlds import Driver, move
from tiny_models import KINDS, VOCABULARY, greedy, saved
from transformers import PreTrainedModel

from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.stored import KvShape, StoredKV
from diptych.boundary.element import Element
from diptych.boundary.format import Format
from diptych.runtime.engine import Chunk, EngineFault, Step
from diptych.runtime.engines.torch.engine import Setup, TorchEngine
from diptych.runtime.engines.torch.paged import STORED, Blocks, Slots, Table
from diptych.runtime.memory import LayerMemory, code_bytes
from diptych.runtime.sampling import Sampled, Sampling

COUNT = 20
ALL = Sampling(logprobs=VOCABULARY)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    return saved(request.param, tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    return saved("qwen3", tmp_path_factory.mktemp("qwen"))


def ragged(seed: int, lengths: Sequence[int]) -> dict[int, tuple[int, ...]]:
    numbers = np.random.default_rng(seed)
    return {place: tuple(numbers.integers(0, VOCABULARY, size).tolist()) for place, size in enumerate(lengths)}


def test_greedy_answers_are_those_of_transformers(model: tuple[Path, PreTrainedModel]) -> None:
    place, reference = model
    prompts = ragged(1, (1, 3, 30, 130))
    driver = Driver(TorchEngine.load(place, Setup(blocks=64)))
    assert driver.answer(prompts, COUNT, 32) == {
        sequence: greedy(reference, prompt, COUNT) for sequence, prompt in prompts.items()
    }


def test_log_probabilities_are_those_of_transformers(model: tuple[Path, PreTrainedModel]) -> None:
    place, reference = model
    prompt = ragged(2, (40,))[0]
    engine = TorchEngine.load(place, Setup(blocks=8))
    found = engine.prefill([Chunk(0, prompt, 0, tuple(range(4)), ALL, prompt, prompt_logprobs=0)])[0]
    assert not isinstance(found, EngineFault)
    with torch.inference_mode():
        wanted = torch.log_softmax(reference(torch.tensor([prompt])).logits[0], -1)
    told = [each.logprob for each in found.prompt]
    assert told == pytest.approx([float(wanted[row, token]) for row, token in enumerate(prompt[1:])], abs=1e-4)
    assert found.sampled is not None
    assert dict(found.sampled.top) == pytest.approx(dict(enumerate(wanted[-1].tolist())), abs=1e-4)


def forced(engine: TorchEngine, driver: Driver, tokens: Sequence[int], start: int) -> list[np.ndarray]:
    """Log probabilities after each of the same tokens, whatever the engine would have chosen."""
    rows = []
    for place, token in enumerate(tokens):
        found = engine.decode_step([Step(0, token, start + place, driver.blocks[0], ALL)])[0]
        assert isinstance(found, Sampled)
        row = np.empty(VOCABULARY)
        row[[each for each, _ in found.top]] = [value for _, value in found.top]
        rows.append(row)
    return rows


def divergence(wanted: list[np.ndarray], found: list[np.ndarray]) -> float:
    """Mean KL, in nats a token."""
    return float(np.mean([np.sum(np.exp(one) * (one - other)) for one, other in zip(wanted, found, strict=True)]))


@pytest.mark.parametrize(
    ("weights", "kv", "most"),
    [
        ("fp32", "fp32", 1e-8),
        ("fp32", "fp16", 1e-4),
        ("fp32", "bf16", 5e-3),
        ("fp32", "int8", 5e-3),
        ("fp32", "fp8", 0.3),
        ("bf16", "bf16", 2e-2),
        ("int8", "fp32", 6e-2),
        ("int8", "int8", 6e-2),
    ],
)
def test_precisions_stay_near_fp32_on_the_same_tokens(
    qwen: tuple[Path, PreTrainedModel], weights: str, kv: str, most: float
) -> None:
    """The logits of this random model spread wide, so that roundings weigh far more than in a trained one."""
    prompt, coming = ragged(3, (60,))[0], ragged(4, (12,))[0]
    rows = []
    for setup in (Setup(blocks=8), Setup(blocks=8, weights=weights, kv=kv)):
        engine = TorchEngine.load(qwen[0], setup)
        driver = Driver(engine)
        driver.take(0, 80)
        driver.prefill({0: prompt}, 16)
        rows.append(forced(engine, driver, coming, 60))
    assert divergence(*rows) < most


@pytest.mark.parametrize("kv", STORED)
@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8"])
def test_kv_of_a_precision_goes_on_elsewhere_with_the_same_numbers(
    qwen: tuple[Path, PreTrainedModel], weights: str, kv: str
) -> None:
    """The first token is handed over with the KV; from then on both see the same bytes."""
    prompt, coming = ragged(5, (50,))[0], ragged(6, (8,))[0]
    setup = Setup(blocks=16, weights=weights, kv=kv)
    source, target = (Driver(TorchEngine.load(qwen[0], setup)) for _ in range(2))
    target.free.reverse()
    for driver in (source, target):
        driver.take(0, 64)
    source.prefill({0: prompt})
    move(source, target, 0, 50)
    here, there = (forced(driver.engine, driver, coming, 50) for driver in (source, target))  # type: ignore[arg-type]
    assert np.array_equal(here, there)


@pytest.mark.parametrize("kv", ["int8", "fp8", "bf16"])
def test_chunks_see_the_kv_that_is_stored(qwen: tuple[Path, PreTrainedModel], kv: str) -> None:
    """Whole or in chunks, a prompt's last token sees the same rounded past."""
    prompt = ragged(7, (64,))[0]
    rows = []
    for chunk in (64, 9):
        engine = TorchEngine.load(qwen[0], Setup(blocks=8, kv=kv))
        driver = Driver(engine)
        driver.take(0, 80)
        driver.prefill({0: prompt}, chunk)
        rows.append(forced(engine, driver, (1, 2, 3), 64))
    assert divergence(*rows) < 1e-4


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_a_batch_does_not_change_an_answer(qwen: tuple[Path, PreTrainedModel], weights: str) -> None:
    prompts = ragged(8, (5, 40, 90, 17, 33))
    together = Driver(TorchEngine.load(qwen[0], Setup(blocks=64, weights=weights))).answer(prompts, COUNT)
    for sequence, prompt in prompts.items():
        alone = Driver(TorchEngine.load(qwen[0], Setup(blocks=64, weights=weights)))
        assert alone.answer({sequence: prompt}, COUNT)[sequence] == together[sequence]


@pytest.mark.parametrize("form", STORED.values(), ids=list(STORED))
def test_blocks_hold_what_the_boundarys_codec_would_store(form: Format) -> None:
    """Bit by bit, so that converted KV is the KV that would have been made here."""
    values = torch.randn(24, 2, 3, 8, generator=torch.Generator().manual_seed(1)) * 20
    layer = layer_of(form)
    blocks = Blocks(layer, 4, torch.device("cpu"))
    blocks.write(Slots.of([((3, 1), 0, 24)], 16, torch.device("cpu")), values)
    canonical = values.permute(1, 0, 2, 3)[None].contiguous().numpy()
    wanted = convert(StoredKV.of(canonical), form)
    stored = torch.cat((blocks.codes[3], blocks.codes[1]), -2)[:, :, :24].permute(0, 2, 1, 3).contiguous()
    assert stored.view(torch.uint8).numpy().tobytes() == wanted.codes.tobytes()
    if blocks.scales is not None:
        scales = torch.cat((blocks.scales[3], blocks.scales[1]), -1)[..., :24].permute(0, 2, 1).contiguous()
        assert scales.numpy().tobytes() == wanted.scales.tobytes()
    read = blocks.read(Table.of([(3, 1)], 3, torch.device("cpu")), torch.float32)[:, 0, :, :24]
    assert torch.equal(read.permute(2, 0, 1, 3), blocks.round_trip(values))
    assert convert(wanted, Format(Element.FP32)).array.reshape(2, 24, 3, 8).tolist() == read.transpose(1, 2).tolist()


def layer_of(form: Format) -> LayerMemory:
    shape = KvShape(1, 2, 16, 3, 8)
    size = code_bytes(form, 2, 3, 16, 8) + (2 * 3 * 16 * 4 if form == STORED["int8"] else 0)
    assert shape.elements == 2 * 3 * 16 * 8
    return LayerMemory(form, 2, 3, 16, 8, size, size, memoryview(bytearray(4 * size)))


def test_what_is_too_large_for_a_format_is_its_largest() -> None:
    for name, top in (("fp16", 65504.0), ("fp8", 448.0)):
        blocks = Blocks(layer_of(STORED[name]), 4, torch.device("cpu"))
        blocks.write(Slots.of([((0,), 0, 1)], 16, torch.device("cpu")), torch.full((1, 2, 3, 8), -1e6))
        assert blocks.codes[0, 0, 0, 0].float().tolist() == [-top] * 8


def test_memory_is_as_large_as_the_state_says(qwen: tuple[Path, PreTrainedModel]) -> None:
    for kv in STORED:
        engine = TorchEngine.load(qwen[0], Setup(blocks=4, kv=kv))
        assert engine.memory.bytes_per_block == engine.state.cache_bytes(16)
        assert engine.state.format == STORED[kv]
        assert engine.state.identity.weights
