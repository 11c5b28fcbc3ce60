"""Draws: by seed and position, from what the parameters leave, in the shares that they should have."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from diptych.runtime.engines.torch.sampler import Choice, choose
from diptych.runtime.sampling import Sampling

SHARES = (0.4, 0.3, 0.2, 0.06, 0.04)
LOGITS = torch.tensor(SHARES).log()


def tokens(sampling: Sampling, count: int = 400, generated: tuple[int, ...] = ()) -> list[int]:
    """One draw at each of `count` positions."""
    choices = [Choice(sampling, position, generated) for position in range(count)]
    return [each.token for each in choose(LOGITS.repeat(count, 1), choices)]


def test_shares_are_those_of_the_softmax() -> None:
    drawn = Counter(tokens(Sampling(temperature=1.0, seed=3), 5000))
    assert [drawn[token] / 5000 for token in range(5)] == pytest.approx(SHARES, abs=0.02)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.7}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.49}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.6}, {0, 1}),
        ({"temperature": 1e-40}, {0}),
        ({"temperature": 100.0}, {0, 1, 2, 3, 4}),
        ({"bias": ((4, 100.0),)}, {4}),
        ({"bias": ((0, -100.0), (1, -100.0))}, {2, 3, 4}),
        ({"min_tokens": 1, "stop_tokens": frozenset({0, 2})}, {1, 3, 4}),
    ],
)
def test_what_parameters_leave(given: dict[str, object], left: set[int]) -> None:
    assert set(tokens(replace(Sampling(temperature=1.0, seed=1), **given), 2000)) == left  # type: ignore[arg-type]


def test_penalties_are_openais() -> None:
    greedy = Sampling(presence_penalty=0.5)
    assert tokens(greedy, 1, (0,)) == [1]
    assert tokens(Sampling(frequency_penalty=0.1), 1, (0, 0)) == [0]
    assert tokens(Sampling(frequency_penalty=0.1), 1, (0, 0, 0)) == [1]
    assert tokens(Sampling(min_tokens=2, stop_tokens=frozenset({0})), 1, (1,)) == [1]
    assert tokens(Sampling(min_tokens=2, stop_tokens=frozenset({0})), 1, (1, 1)) == [0]


def test_a_row_does_not_know_its_neighbours() -> None:
    ways = [Sampling(), Sampling(temperature=0.7, seed=1), Sampling(temperature=1.3, top_p=0.8, seed=2, logprobs=2)]
    choices = [Choice(way, position) for position, way in enumerate(ways * 5)]
    together = choose(LOGITS.repeat(len(choices), 1), choices)
    alone = [choose(LOGITS[None].clone(), [choice])[0] for choice in choices]
    assert [each.token for each in together] == [each.token for each in alone]


def test_log_probabilities_are_the_models_own() -> None:
    asked = Sampling(temperature=0.1, bias=((4, 100.0),), logprobs=2)
    found = choose(LOGITS[None].clone(), [Choice(asked, 1)])[0]
    assert found.token == 4
    assert found.logprob == pytest.approx(float(LOGITS[4]))
    assert [token for token, _ in found.top] == [0, 1]
