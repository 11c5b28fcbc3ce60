"""Batches by hand: chunks, continuous batching, blocks by phase, preemption, reservation, prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.serving.batching import Batch, BatchRules
from diptych.serving.blocks import BlockPool
from diptych.serving.request import Sequence, Stage


def batch(blocks: int = 1000, hash_tokens: int = 0, **rules: object) -> Batch[Sequence]:
    return Batch(BatchRules(**rules), BlockPool(blocks, 16, hash_tokens=hash_tokens))  # type: ignore[arg-type]


def drain(engine: Batch[Sequence], limit: int = 10_000) -> list[tuple[int, int]]:
    """(id, step count of plans) in order of finishing."""
    done = []
    for plans in range(limit):
        count = engine.plan()
        if not count:
            break
        engine.complete(1)
        done += [(sequence.id, plans) for sequence in engine.finished]
    return done


def test_a_prompt_is_cut_into_chunks_of_the_budget() -> None:
    engine = batch(budget=100)
    engine.add(Sequence(1, 250, 3))
    seen = []
    while engine.plan():
        seen.append((engine.tokens, engine.batch))
        engine.complete(1)
    assert seen == [(100, 0), (100, 0), (50, 0), (0, 1), (0, 1)]
    assert engine.pool.held == 0


def test_decodes_take_their_token_of_the_budget_first() -> None:
    engine = batch(budget=100)
    engine.add(Sequence(1, 10, 50))
    engine.plan()
    engine.complete(1)
    engine.add(Sequence(2, 300, 2))
    engine.plan()
    assert (engine.tokens, engine.batch) == (99, 1)


def test_prompts_run_alone_in_an_engine_that_does_not_mix() -> None:
    engine = batch(mixes=False, budget=100)
    first = Sequence(1, 10, 50)
    engine.add(first)
    engine.plan()
    engine.complete(1)
    engine.add(Sequence(2, 60, 2))
    before = engine.step
    engine.plan()
    engine.complete(1)
    assert engine.step == before, "decodes waited"


def test_pairs_count_what_attention_reads() -> None:
    """Two chunks of n tokens, one after p cached ones: n(2p + n) doubled pairs each."""
    engine = batch(budget=40)
    engine.add(Sequence(1, 60, 2))
    engine.plan()
    assert engine.pairs == 40 * 40
    engine.complete(1)
    engine.plan()
    assert engine.pairs == 20 * (2 * 40 + 20)


def test_shortest_first_orders_the_queue() -> None:
    engine = batch(shortest_first=True, sequences=1)
    for number, prompt in enumerate((50, 10, 30)):
        engine.add(Sequence(number, prompt, 2))
    assert [name for name, _ in drain(engine)] == [1, 2, 0]


def test_the_last_admitted_is_preempted_and_computed_again() -> None:
    engine = batch(blocks=5)
    old, new = Sequence(1, 30, 40), Sequence(2, 30, 40)
    engine.add(old)
    engine.add(new)
    engine.plan()
    engine.complete(1)
    while engine.preemptions == 0:
        engine.plan()
        engine.complete(1)
    assert new.stage is Stage.QUEUED
    assert new.todo == 30 + new.generated
    assert old.stage is Stage.DECODING
    assert [name for name, _ in drain(engine)] == [1, 2]
    assert (new.generated, engine.pool.held, engine.growing()) == (40, 0, 0)


def test_reserving_keeps_whole_answers_apart_instead() -> None:
    engine = batch(blocks=9, reserve=True)
    engine.add(Sequence(1, 30, 40))
    engine.add(Sequence(2, 30, 40))
    engine.plan()
    engine.complete(1)
    assert engine.batch == 1
    assert [name for name, _ in drain(engine)] == [1, 2]
    assert engine.preemptions == 0


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(2, 90)), min_size=1, max_size=12), st.integers(0, 40))
def test_blocks_by_phase_equal_blocks_by_sequence(lengths: list[tuple[int, int]], ahead: int) -> None:
    engine = batch(budget=10_000)
    for number, (prompt, answer) in enumerate(lengths):
        engine.add(Sequence(number, prompt, answer))
    engine.plan()
    engine.complete(1)
    contexts = [s.prompt + s.osl - s.finish + engine.step + ahead for _, _, s in engine.running]
    assert engine.growing(ahead) == sum(-(-context // 16) for context in contexts)


@given(st.integers(1, 400), st.lists(st.tuples(st.integers(1, 60), st.integers(2, 60)), min_size=1, max_size=8))
def test_the_run_ends_before_blocks_do(blocks: int, lengths: list[tuple[int, int]]) -> None:
    """plan() promises n steps: every one of them fits, and the one after does not or somebody finishes."""
    engine = batch(blocks=max(blocks, 8), budget=10_000)
    for number, (prompt, answer) in enumerate(lengths):
        engine.add(Sequence(number, prompt, answer))
    for _ in range(400):
        count = engine.plan()
        if not count:
            break
        if not engine.chunks:
            assert engine.has_room(0, count - 1)
            assert engine.preemptions or engine.running[0][0] == engine.step + count or not engine.has_room(0, count)
        engine.complete(count)
    assert engine.pool.held == 0
    assert not engine.queued


def test_a_shared_prefix_is_held_once_and_computed_once() -> None:
    engine = batch(hash_tokens=32)
    hashes = ("a", "b", "c")
    engine.add(Sequence(1, 96, 5, hashes))
    engine.plan()
    engine.complete(1)
    engine.add(Sequence(2, 100, 5, hashes))
    engine.plan()
    assert engine.tokens == 4, "three hashes of 32 tokens are there"
    engine.complete(1)
    assert engine.pool.cache is not None
    assert engine.pool.cache.live == {"a": 2, "b": 2, "c": 2}
    drain(engine)
    assert engine.pool.held == 0
    assert list(engine.pool.cache.idle) == ["c", "b", "a"], "the end of a prefix goes first"


def test_the_last_token_is_always_computed() -> None:
    engine = batch(hash_tokens=32)
    for number in (1, 2):
        engine.add(Sequence(number, 64, 2, ("a", "b")))
        engine.plan()
        tokens = engine.tokens
        engine.complete(1)
        drain(engine)
    assert tokens == 32


def test_a_look_that_comes_to_nothing_makes_no_prefix_look_used() -> None:
    engine = batch(blocks=20, hash_tokens=32)
    for number, name in enumerate("ab"):
        engine.add(Sequence(number, 40, 1, (name,)))
        drain(engine)
    assert engine.pool.cache is not None
    assert list(engine.pool.cache.idle) == ["a", "b"]
    assert engine.reserve(Sequence(9, 4000, 5, ("a",))) is None
    assert list(engine.pool.cache.idle) == ["a", "b"]


@pytest.mark.parametrize("place", ["waiting", "ready", "partial", "running"])
def test_a_sequence_can_be_removed_from_anywhere(place: str) -> None:
    engine = batch(budget=50)
    one = Sequence(1, 40 if place == "running" else 120, 9)
    if place == "ready":
        holding = engine.reserve(one)
        assert holding is not None
        one.generated = 1
        engine.join(one, holding)
    else:
        engine.add(one)
    if place in ("partial", "running"):
        engine.plan()
        engine.complete(1)
    assert one in list(engine.everyone())
    assert engine.remove(one)
    assert not engine.remove(one)
    assert (engine.pool.held, engine.growing(), engine.batch) == (0, 0, 0)
