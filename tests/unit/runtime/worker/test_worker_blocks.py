"""Block ids beside the batch's counts: random lives of many sequences, and drift that is noticed."""

import random

import pytest
from worker_parts import MODEL, prompt, submit

from diptych.runtime.engines.toy import ToyEngine
from diptych.runtime.worker.half import Half
from diptych.runtime.worker.prefixes import block_hashes
from diptych.runtime.worker.stepper import Stepper
from diptych.serving.batching import BatchRules


def half_of(stepper, number, asked):
    return Half(number, asked, 1, stepper.engine.eos, stepper.pool.hash_tokens)


@pytest.mark.parametrize("seed", range(6))
def test_counts_and_ids_agree_through_random_lives(seed):
    """Shared prefixes, little memory, removals and reservations at any time: `agree` is called in every step."""
    chance = random.Random(seed)
    rules = BatchRules(chance.choice((8, 24)), chance.choice((3, 16)), mixes=seed % 3 > 0)
    stepper = Stepper(ToyEngine(MODEL, blocks=24, block_tokens=4), rules, prefixes=seed != 5)
    alive, pinned, answers = {}, [], 0
    for number in range(400):
        if chance.random() < 0.4 and len(alive) < 12:
            tokens = (*prompt(4 * chance.randrange(6), 1), *prompt(chance.randrange(1, 12), chance.randrange(3)))
            half = half_of(stepper, number, submit(tokens, chance.randrange(1, 20)))
            if chance.random() < 0.2:
                half.generated, half.osl = 1, max(half.osl, 2)
                if (holding := stepper.reserve(half)) is not None:
                    pinned.append((half, holding))
            else:
                stepper.add(half)
                alive[half] = True
        for result in stepper.step():
            assert not result.fault
            expected = MODEL.expected(result.half.submit.prompt, result.half.said)
            assert list(result.half.answer) == expected
            if result.finish:
                del alive[result.half]
                answers += 1
        if alive and chance.random() < 0.05:
            half = chance.choice(list(alive))
            del alive[half]
            stepper.remove(half)
        if pinned and chance.random() < 0.3:
            stepper.free(*pinned.pop(chance.randrange(len(pinned))))
    assert answers > 20
    for half in list(alive):
        stepper.remove(half)
    for half, holding in pinned:
        stepper.free(half, holding)
    assert stepper.spare == stepper.pool.capacity
    stepper.blocks.agree(stepper.batch)


def test_drift_between_counts_and_ids_is_noticed():
    stepper = Stepper(ToyEngine(MODEL, blocks=24, block_tokens=4), BatchRules())
    stepper.blocks.free.pop()
    with pytest.raises(AssertionError, match="23 blocks free, 24 by the counts"):
        stepper.blocks.agree(stepper.batch)


def test_a_hash_stands_for_everything_before_it():
    tokens = list(range(12))
    chain = block_hashes(tokens, 4)
    assert len(chain) == 3
    assert block_hashes([*tokens, 99], 4) == chain
    assert block_hashes(tokens, 4, b"salt")[0] != chain[0]
    for place in range(12):
        changed = block_hashes([*tokens[:place], 100, *tokens[place + 1 :]], 4)
        assert [one == other for one, other in zip(chain, changed, strict=True)] == [
            (number + 1) * 4 <= place for number in range(3)
        ]
