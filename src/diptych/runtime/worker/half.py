"""One request's half as this worker has it: what it was asked, its tokens so far, the blocks they lie in, and when it ends."""

from __future__ import annotations

from diptych.runtime.messages import Chosen, Params, Submit
from diptych.runtime.sampling import Sampled, Sampling
from diptych.runtime.worker.blocks import Table
from diptych.runtime.worker.prefixes import block_hashes
from diptych.serving.request import Sequence

Key = tuple[bytes, int]
"""A request and an epoch."""


class Half(Sequence):
    """A sequence of the batch that remembers its tokens. `tokens` are prompt and answer; `route` is who asked.

    To the batch, what an earlier attempt has generated is part of the prompt.
    """

    __slots__ = (
        "convert_ms",
        "deadline",
        "found",
        "is_here",
        "key",
        "moved",
        "prompt_told",
        "route",
        "sampling",
        "stops",
        "submit",
        "table",
        "tokens",
        "told_epoch",
    )

    def __init__(self, number: int, submit: Submit, route: int, eos: frozenset[int], block_tokens: int) -> None:
        self.submit, self.route = submit, route
        self.key: Key = (submit.request, submit.epoch)
        self.tokens = [*submit.prompt, *submit.generated]
        params = submit.params
        reusable = block_tokens and params.prompt_logprobs is None
        hashes = block_hashes(self.tokens, block_tokens, submit.salt) if reusable else ()
        super().__init__(number, len(self.tokens), params.max_tokens - len(submit.generated), hashes)
        self.stops = frozenset(params.stop_tokens) | (frozenset() if params.ignore_eos else eos)
        self.sampling = sampling_of(params, self.stops)
        self.table: Table | None = None
        self.told_epoch = 0  # the life in the batch that `table` belongs to
        self.is_here = False  # in the batch, and no handoff's
        self.found = 0  # prompt tokens that were in the cache
        self.prompt_told: list[Sampled] = []
        self.deadline = self.convert_ms = self.moved = 0
        if submit.half == "prefill":
            self.hands_off, self.osl = True, max(self.osl, 2)  # its own first token is not the batch's end of it
        elif submit.half == "decode":
            self.generated = 1  # the first token comes with the KV

    def lose(self) -> None:
        """As a sequence does; where it is going stays known."""
        hands_off = self.hands_off
        super().lose()
        self.hands_off = hands_off

    @property
    def answer(self) -> tuple[int, ...]:
        """All tokens generated, by earlier attempts too."""
        return tuple(self.tokens[len(self.submit.prompt) :])

    @property
    def said(self) -> int:
        """How many those are."""
        return len(self.tokens) - len(self.submit.prompt)

    def ending(self) -> str:
        """Whether the last token ends the answer: 'stop', 'length' or ''."""
        params, count = self.submit.params, self.said
        if count and self.tokens[-1] in self.stops and count >= params.min_tokens:
            return "stop"
        return "length" if count >= params.max_tokens else ""


def sampling_of(params: Params, stops: frozenset[int]) -> Sampling:
    """What the engine needs of a request's parameters. `stops` are held back until the answer has its least length."""
    seed = (params.seed + 2**63) % 2**64 - 2**63
    return Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=seed,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        min_tokens=params.min_tokens,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        bias=params.bias,
        stop_tokens=stops,
    )


def chosen(sampled: Sampled) -> Chosen:
    """A token as the gateway hears it."""
    return Chosen(sampled.token, sampled.logprob, sampled.top)
