"""Workers of one engine behind one protocol, as the gateway's roster has them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from diptych.runtime.gateway.roster import Condition, Roster, Worker
from diptych.runtime.gateway.settings import Endpoint
from diptych.runtime.remote.halves import Prefiller, Protocol

UNPRICED: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of a request whose prefill worker fails. The default is an error: nothing is silent.

    `retries` other prefill workers are tried first; `recompute` then lets decode compute the prompt, which it was not sized for.
    """

    retries: int = 0
    recompute: bool = False


@dataclass(slots=True)
class Fleet:
    """`counts` says what was decided and why, by (what, reason); `usd` what an hour of one worker of a role costs.

    A worker is up until it fails, and again when it answers.
    """

    protocol: Protocol
    prefills: Sequence[Prefiller]
    decodes: Sequence[str]
    policy: Policy = Policy()
    usd: Mapping[str, float] = field(default_factory=lambda: UNPRICED)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    roster: Roster = field(init=False)
    first: list[Worker] = field(init=False)
    second: list[Worker] = field(init=False)
    _prefillers: dict[str, Prefiller] = field(init=False)

    def __post_init__(self) -> None:
        told = [("prefill", each.url) for each in self.prefills] + [("decode", url) for url in self.decodes]
        names = [_named(url) for _, url in told]
        self.roster = Roster(tuple(
            Endpoint(name, role, url, self.usd.get(role)) for name, (role, url) in zip(names, told, strict=True)
        ))  # fmt: skip
        self.first = [each for each in self.roster if each.role == "prefill"]
        self.second = [each for each in self.roster if each.role == "decode"]
        self._prefillers = dict(zip(names, self.prefills, strict=False))
        for each in self.roster:
            answers(each)

    @property
    def engine(self) -> str:
        return "sglang" if self.protocol is Protocol.SGLANG else "vllm"

    def prefiller(self, worker: Worker) -> Prefiller:
        """Where decode finds a prefill worker's KV."""
        return self._prefillers[worker.name]


def answers(worker: Worker) -> None:
    """It answers."""
    worker.becomes(Condition.UP, time.monotonic())


def fails(worker: Worker, why: str) -> None:
    """It does not."""
    worker.becomes(Condition.DOWN, time.monotonic(), why)


def _named(url: str) -> str:
    return urlsplit(url).netloc
