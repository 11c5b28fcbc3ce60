"""What every engine does, whatever it computes with: one suite for the toy and for the real one."""

from __future__ import annotations

import random
from functools import cache

import pytest
from engine_worlds import Driver, World, move, torch_world, toy_world
from tiny_models import VOCABULARY, greedy, saved

from diptych.runtime.engine import Chunk, Engine, EngineFault, Step
from diptych.runtime.sampling import GREEDY, Sampled, Sampling

COUNT = 12
DRAWN = Sampling(temperature=1.0, seed=5)


@pytest.fixture(scope="module", params=["toy", "llama", "qwen3"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    if request.param == "toy":
        return toy_world()
    place, model = saved(request.param, tmp_path_factory.mktemp("models"))
    known = cache(lambda prompt, count: greedy(model, prompt, count))
    return torch_world(place, lambda prompt, count: known(tuple(prompt), count), VOCABULARY)


@pytest.fixture(scope="module")
def prompts(world: World) -> dict[int, tuple[int, ...]]:
    """Ragged ones: one token, a block, a block and one, many."""
    chosen = random.Random(11)
    return {
        place: tuple(chosen.randrange(world.vocabulary) for _ in range(length))
        for place, length in enumerate((1, 16, 17, 45))
    }


def expected(world: World, prompts: dict[int, tuple[int, ...]]) -> dict[int, list[int]]:
    return {sequence: world.expected(prompt, COUNT) for sequence, prompt in prompts.items()}


def test_one_after_the_other(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    driver = Driver(world.make())
    for sequence, prompt in prompts.items():
        assert driver.answer({sequence: prompt}, COUNT)[sequence] == world.expected(prompt, COUNT)


@pytest.mark.parametrize("chunk", [1, 7, 16, 1000])
def test_batched_and_chunked(world: World, prompts: dict[int, tuple[int, ...]], chunk: int) -> None:
    assert Driver(world.make()).answer(prompts, COUNT, chunk) == expected(world, prompts)


@pytest.mark.parametrize("block_tokens", [1, 4, 64])
def test_any_block_size_and_scattered_blocks(
    world: World, prompts: dict[int, tuple[int, ...]], block_tokens: int
) -> None:
    driver = Driver(world.make(block_tokens=block_tokens, blocks=256))
    random.Random(2).shuffle(driver.free)
    assert driver.answer(prompts, COUNT) == expected(world, prompts)


def test_sequences_join_and_leave_a_batch(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    driver = Driver(world.make())
    early = {place: prompts[place] for place in (0, 3)}
    answers = driver.answer(early, 4)
    late = {place: prompts[place] for place in (1, 2)}
    answers |= driver.answer(late, 2)
    driver.decode(prompts, answers, COUNT)
    assert answers == expected(world, prompts)


def test_blocks_that_were_released_are_used_again(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    driver = Driver(world.make(blocks=8))
    for sequence, prompt in [*prompts.items(), *list(prompts.items())[::-1]]:
        assert driver.answer({sequence: prompt}, COUNT)[sequence] == world.expected(prompt, COUNT)
        driver.drop(sequence)


@pytest.mark.parametrize(("here", "there"), [(16, 16), (4, 16), (16, 4)])
@pytest.mark.parametrize("after", [1, 5])
def test_kv_moves_to_another_engine_by_its_bytes(
    world: World, prompts: dict[int, tuple[int, ...]], here: int, there: int, after: int
) -> None:
    """From the first token on, and in the middle of an answer."""
    source = Driver(world.make(block_tokens=here, blocks=256))
    target = Driver(world.make(block_tokens=there, blocks=256))
    answers = source.answer(prompts, after)
    random.Random(4).shuffle(target.free)
    for sequence, prompt in prompts.items():
        target.take(sequence, len(prompt) + COUNT)
        move(source, target, sequence, len(prompt) + after - 1)
        source.drop(sequence)
    target.decode(prompts, answers, COUNT)
    assert answers == expected(world, prompts)


def test_a_prefix_that_is_here_need_not_be_computed(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    driver = Driver(world.make())
    prompt = prompts[3]
    shared = driver.take(0, len(prompt))[:2]
    driver.prefill({0: prompt})
    blocks = (*shared, *driver.take(1, COUNT + 16))
    found = driver.engine.prefill([Chunk(1, prompt[32:], 32, blocks, GREEDY, prompt)])[0]
    assert not isinstance(found, EngineFault)
    assert found.sampled is not None
    driver.blocks[1], answers = blocks, {1: [found.sampled.token]}
    driver.decode({1: prompt}, answers, COUNT)
    assert answers[1] == world.expected(prompt, COUNT)


def test_an_answer_goes_on_after_being_computed_again(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    """Preemption by recomputation: what was said becomes part of the prompt, and what was drawn stays drawn."""
    for sampling in (GREEDY, DRAWN):
        whole = Driver(world.make()).answer({2: prompts[2]}, COUNT, sampling=sampling)[2]
        driver = Driver(world.make())
        known = (*prompts[2], *whole[:5])
        blocks = driver.take(2, len(known) + COUNT)
        chunk = Chunk(2, known, 0, blocks, sampling, known, tuple(whole[:5]))
        found = driver.engine.prefill([chunk])[0]
        assert not isinstance(found, EngineFault)
        assert found.sampled is not None
        answers = {2: [*whole[:5], found.sampled.token]}
        driver.decode({2: prompts[2]}, answers, COUNT, sampling)
        assert answers[2] == whole


def test_draws_depend_on_seed_and_position_alone(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    one = Driver(world.make()).answer(prompts, COUNT, sampling=DRAWN)
    alone = {place: Driver(world.make()).answer({place: prompts[place]}, COUNT, 5, DRAWN)[place] for place in prompts}
    other = Driver(world.make()).answer(prompts, COUNT, sampling=Sampling(temperature=1.0, seed=6))
    assert one == alone
    assert one != other
    assert one != expected(world, prompts)


def test_every_layer_is_told_in_order_when_its_bytes_are_there(
    world: World, prompts: dict[int, tuple[int, ...]]
) -> None:
    driver = Driver(world.make())
    blocks = driver.take(0, 45)
    told: list[tuple[int, bytes]] = []

    def on_layer(layer: int) -> None:
        told.append((layer, b"".join(bytes(driver.engine.memory.layers[layer].block(block)) for block in blocks)))

    driver.engine.prefill([Chunk(0, prompts[3], 0, blocks, GREEDY, prompts[3])], on_layer)
    layers = driver.engine.memory.layers
    assert [layer for layer, _ in told] == list(range(len(layers)))
    assert all(found == b"".join(bytes(layers[layer].block(block)) for block in blocks) for layer, found in told)
    assert all(found.strip(b"\0") for _, found in told)


def test_logprobs_are_told_where_asked(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    driver = Driver(world.make())
    blocks = driver.take(0, 45)
    asked = Sampling(logprobs=3)
    found = driver.engine.prefill([Chunk(0, prompts[3], 0, blocks, asked, prompts[3], prompt_logprobs=2)])[0]
    assert not isinstance(found, EngineFault)
    assert found.sampled is not None
    assert found.sampled.logprob is not None
    assert found.sampled.logprob <= 0
    assert [len(found.sampled.top), len(found.prompt)] == [3, 44]
    assert [each.token for each in found.prompt] == list(prompts[3][1:])
    assert all(each.logprob is not None and len(each.top) == 2 for each in found.prompt)


def test_prompt_logprobs_are_the_same_in_chunks(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    whole, parts = (prompt_logprobs(world.make(), prompts[3], chunk) for chunk in (45, 7))
    assert [each.token for each in parts] == [each.token for each in whole] == list(prompts[3][1:])
    assert [each.logprob for each in parts] == pytest.approx([each.logprob for each in whole], abs=1e-4)


def prompt_logprobs(engine: Engine, prompt: tuple[int, ...], size: int) -> list[Sampled]:
    told: list[Sampled] = []
    for start in range(0, len(prompt), size):
        last = GREEDY if start + size >= len(prompt) else None
        chunk = Chunk(0, prompt[start : start + size], start, tuple(range(8)), last, prompt, prompt_logprobs=1)
        found = engine.prefill([chunk])[0]
        assert not isinstance(found, EngineFault)
        told.extend(found.prompt)
    return told


BAD = {
    "no room": ((1, 2, 3), 30, (0, 1)),
    "beyond the vocabulary": ((1, 500), 0, (0, 1)),
    "negative token": ((-1,), 0, (0,)),
    "no such block": ((1,), 0, (64,)),
    "nothing": ((), 0, (0,)),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_computed_is_a_fault_of_its_sequence_alone(
    world: World, prompts: dict[int, tuple[int, ...]], bad: str
) -> None:
    driver = Driver(world.make())
    tokens, start, blocks = BAD[bad]
    good = Chunk(1, prompts[1], 0, driver.take(1, 40), GREEDY, prompts[1])
    found = driver.engine.prefill([Chunk(7, tokens, start, blocks, GREEDY, tokens), good])
    assert isinstance(found[0], EngineFault)
    assert found[0].sequence == 7
    assert not isinstance(found[1], EngineFault)
    assert found[1].sampled == Sampled(world.expected(prompts[1], 1)[0])


def test_damaged_kv_is_never_another_sequences_business(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    driver = Driver(world.make())
    answers = driver.answer(prompts, 3)
    for layer in driver.engine.memory.layers:
        layer.block(driver.blocks[3][0])[:] = world.damage * layer.block_bytes
    driver.engine.insert(3, driver.blocks[3], len(prompts[3]) + 2)  # as it would arrive from somebody else
    steps = [
        Step(place, answers[place][-1], len(prompts[place]) + 2, driver.blocks[place], GREEDY, tuple(answers[place]))
        for place in prompts
    ]
    found = driver.engine.decode_step(steps)
    assert isinstance(found[3], EngineFault)
    assert [each.token for each in found[:3] if isinstance(each, Sampled)] == [
        world.expected(prompts[place], 4)[3] for place in range(3)
    ]


def test_kv_that_somebody_else_has_written_anew_is_what_counts(
    world: World, prompts: dict[int, tuple[int, ...]]
) -> None:
    """An engine may keep KV elsewhere too, in a form of its own; `insert` and `release` say when that is out of date."""
    driver = Driver(world.make())
    answers = driver.answer({place: prompts[place] for place in (0, 1)}, 3)
    there = driver.blocks[1][: len(driver.blocks[0])]
    for layer in driver.engine.memory.layers:
        for source, target in zip(driver.blocks[0], there, strict=False):
            layer.block(target)[:] = layer.block(source)
    length = len(prompts[0]) + 2
    driver.engine.insert(1, there, length)
    asked = Step(1, answers[0][-1], length, there, GREEDY, tuple(answers[0]))
    (found,) = driver.engine.decode_step([asked])
    assert isinstance(found, Sampled)
    assert found.token == world.expected(prompts[0], 4)[3]


def test_garbage_behind_a_sequences_tokens_is_never_read(world: World, prompts: dict[int, tuple[int, ...]]) -> None:
    """A block that is reused still holds what was there, be it NaN."""
    driver = Driver(world.make())
    for layer in driver.engine.memory.layers:
        layer.bytes[:] = world.damage * len(layer.bytes)
    assert driver.answer(prompts, COUNT, 7) == expected(world, prompts)


def test_nothing_is_nothing(world: World) -> None:
    engine = world.make()
    assert engine.prefill([]) == []
    assert engine.decode_step([]) == []
    engine.release(5)
