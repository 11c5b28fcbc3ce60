"""The choice of next tokens for many sequences at once, with draws by seed and position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from diptych.runtime.sampling import Sampled, Sampling, draw


@dataclass(frozen=True, slots=True)
class Choice:
    """One row of logits to choose from: the token at `position`, after `generated`."""

    sampling: Sampling
    position: int
    generated: tuple[int, ...] = ()


def choose(logits: torch.Tensor, choices: Sequence[Choice]) -> list[Sampled]:
    """One token per row of (rows, vocabulary) float32 logits, which are overwritten.

    Log probabilities are the model's own, before bias, penalties and temperature.
    """
    told = _log_probabilities(logits, choices)
    for row, choice in enumerate(choices):
        _adjust(logits[row], choice)
    tokens = logits.argmax(-1)
    drawn = [row for row, choice in enumerate(choices) if choice.sampling.temperature > 0]
    if drawn:
        tokens[drawn] = _draws(logits[drawn], [choices[row] for row in drawn])
    return [
        reported(token, told.get(row), choice.sampling.logprobs)
        for row, (token, choice) in enumerate(zip(tokens.tolist(), choices, strict=True))
    ]


def reported(token: int, told: torch.Tensor | None, count: int | None) -> Sampled:
    """A token with its log probability and those of the `count` likeliest, out of one row of them."""
    if told is None or count is None:
        return Sampled(token)
    best = told.topk(min(count, told.shape[0]))
    return Sampled(token, float(told[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))


def _log_probabilities(logits: torch.Tensor, choices: Sequence[Choice]) -> dict[int, torch.Tensor]:
    rows = [row for row, choice in enumerate(choices) if choice.sampling.logprobs is not None]
    return dict(zip(rows, torch.log_softmax(logits[rows], -1), strict=True)) if rows else {}


def _adjust(row: torch.Tensor, choice: Choice) -> None:
    """Bias, penalties (OpenAI's: by whether and how often a token was generated) and a minimum length, in place."""
    sampling = choice.sampling
    if sampling.bias:
        tokens, amounts = zip(*sampling.bias, strict=True)
        row[list(tokens)] += torch.tensor(amounts, dtype=row.dtype, device=row.device)
    if (sampling.presence_penalty or sampling.frequency_penalty) and choice.generated:
        counts = Counter(choice.generated)
        often = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
        row[list(counts)] -= sampling.presence_penalty + sampling.frequency_penalty * often
    if sampling.stop_tokens and len(choice.generated) < sampling.min_tokens:
        row[sorted(sampling.stop_tokens)] = -torch.inf


def _draws(logits: torch.Tensor, choices: Sequence[Choice]) -> torch.Tensor:
    """Tokens drawn from what temperature, top-k, top-p and min-p leave: (rows,)."""
    heat = _column([choice.sampling.temperature for choice in choices], logits)
    below = (logits - logits.amax(-1, keepdim=True)) / heat
    falling, tokens = torch.sort(below, stable=True, dim=-1, descending=True)
    shares = torch.softmax(falling, -1)
    shares = shares.masked_fill_(~_kept(shares, choices), 0.0).double().cumsum_(-1)
    numbers = _column([draw(choice.sampling.seed, choice.position) for choice in choices], shares)
    place = torch.searchsorted(shares, numbers * shares[:, -1:], right=True)
    last = (shares < shares[:, -1:]).sum(-1, keepdim=True)
    drawn: torch.Tensor = tokens.gather(-1, torch.minimum(place, last))[:, 0]
    return drawn


def _kept(shares: torch.Tensor, choices: Sequence[Choice]) -> torch.Tensor:
    """Which of the falling shares may be drawn; always the first."""
    size = shares.shape[-1]
    most = _column([min(choice.sampling.top_k or size, size) for choice in choices], shares)
    rank = torch.arange(size, device=shares.device)[None]
    kept = rank < most
    whole = shares.masked_fill(~kept, 0.0)
    whole = whole / whole.sum(-1, keepdim=True)
    before = whole.cumsum(-1) - whole
    kept &= before < _column([choice.sampling.top_p for choice in choices], shares)
    kept &= whole >= _column([choice.sampling.min_p for choice in choices], shares) * whole[:, :1]
    kept[:, 0] = True
    return kept


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
