"""Two workers, a prompt computed by one and answered by the other: every stream beside what the toy model says."""

import pytest
from worker_parts import MODEL, Worker, both, prompt

OWNERSHIPS = ("push", "pull")


@pytest.fixture
def pair(tmp_path):
    made = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode")
    yield made
    for each in made:
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_prompt_is_handed_over_and_answered(pair, ownership):
    source, target = pair
    tokens = prompt(37)
    request = both(source, target, tokens, 9, ownership)
    assert target.end_of(request).reason == "length"
    assert source.end_of(request).reason == "handed"
    assert target.tokens_of(request) == MODEL.expected(tokens, 9)
    assert source.tokens_of(request) == MODEL.expected(tokens, 1)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_thirty_two_at_once(pair, ownership):
    source, target = pair
    asked = {
        both(source, target, prompt(length, length), 5, ownership): prompt(length, length) for length in range(1, 97, 3)
    }
    for request, tokens in asked.items():
        assert target.end_of(request).reason == "length"
        assert target.tokens_of(request) == MODEL.expected(tokens, 5)
