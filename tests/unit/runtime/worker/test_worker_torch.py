"""Workers over the torch engine: greedy answers of a small random Llama are those of `transformers`, however they came about."""

import sys
from pathlib import Path

import pytest
from worker_parts import Worker, both, submit

from diptych.runtime.engines.torch.engine import Setup, TorchEngine
from diptych.serving.batching import BatchRules

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
from tiny_models import VOCABULARY, greedy, saved


@pytest.fixture(scope="module")
def place_and_model(tmp_path_factory):
    return saved("llama", tmp_path_factory.mktemp("llama"))


def prompts():
    return [tuple((7 + 31 * seed + 13 * place) % VOCABULARY for place in range(9 + 11 * seed)) for seed in range(5)]


@pytest.mark.parametrize(
    ("ownership", "transport"),
    [("whole", "unix"), ("push", "unix"), ("pull", "unix"), ("push", "shm"), ("pull", "shm")],
)
def test_greedy_answers_are_those_of_transformers(tmp_path, monkeypatch, place_and_model, ownership, transport):
    monkeypatch.setattr(Worker, "transport", transport)
    place, model = place_and_model
    rules = BatchRules(budget=24, sequences=8)

    def made(name, role, blocks):
        setup = Setup(blocks=blocks, block_tokens=8)
        return Worker(tmp_path, name, role, rules=rules, make=lambda room: TorchEngine.load(place, setup, room))

    pair = [made("p", "prefill", 40), made("d", "decode", 26)]
    asked = {}
    for tokens in (*prompts(), prompts()[2]):
        if ownership == "whole":
            half = submit(tokens, 12, ignore_eos=True)
            pair[1].tell(half)
            asked[half.request] = tokens
        else:
            asked[both(*pair, tokens, 12, ownership, ignore_eos=True)] = tokens
    for request, tokens in asked.items():
        assert pair[1].end_of(request).reason == "length"
        assert pair[1].tokens_of(request) == greedy(model, tokens, 12)
    for each in pair:
        each.at_rest()
        each.stop()
