"""Workers as processes of their own: streams beside what the toy model says, kills, signals, ends."""

import random

import pytest
from worker_processes import MODEL, WorkerProcess, halves


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("w")
    made = WorkerProcess(folder, "p", "prefill"), WorkerProcess(folder, "d", "decode")
    try:
        yield [each.connect() for each in made]
    finally:
        for each in made:
            each.close()


def prompt(length, seed=0):
    chance = random.Random(seed * 1000 + length)
    return tuple(chance.randrange(MODEL.vocabulary - 1) for _ in range(length))


@pytest.mark.parametrize("ownership", ["push", "pull"])
def test_thirty_two_prompts_between_two_processes(pair, ownership):
    source, target = pair
    asked = {
        halves(source, target, prompt(length, length), 8, ownership): prompt(length, length)
        for length in range(1, 193, 6)
    }
    for request, tokens in asked.items():
        assert target.end_of(request).reason == "length"
        assert source.end_of(request).reason == "handed"
        assert target.tokens_of(request) == MODEL.expected(tokens, 8)
        assert source.tokens_of(request) == MODEL.expected(tokens, 1)
    assert source.at_rest().blocks == target.at_rest().blocks == 256
