"""What answers count for on their workers: tokens of load, prompt tokens before others', streams on their way and running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diptych.runtime.gateway.answer import Answer
    from diptych.runtime.gateway.roster import Worker

GRAIN = 32
"""Tokens per name of a prefix."""
MOST_CHARGED = 1024
"""Of an answer's length, which is only a bound: most end earlier."""


@dataclass(slots=True)
class Charge:
    """One answer on one worker. `ahead` and `coming` last until its first token."""

    worker: str
    load: int
    ahead: int
    stream: int
    coming: int


def overlap(worker: Worker, answer: Answer) -> int:
    """Prompt tokens that the worker may have in its cache; never all of them."""
    return min(worker.prefixes.match(answer.blocks) * GRAIN, len(answer.prompt) - 1)


def charge(answer: Answer, worker: Worker, half: str) -> None:
    """It is sent there: 'whole', 'prefill' or 'decode'."""
    prompt = 0 if half == "decode" else max(1, answer.todo - overlap(worker, answer))
    stream = int(half != "prefill")
    made = Charge(
        worker.name, prompt + stream * min(answer.params.max_tokens, MOST_CHARGED), prompt, stream,
        stream * (not answer.count),
    )  # fmt: skip
    _add(worker, made)
    answer.charges.append(made)
    worker.prefixes.sent(answer.blocks)


def begun(answer: Answer, workers: Mapping[str, Worker]) -> None:
    """Its first token is here: nobody waits behind its prompt, and its stream is no longer on its way."""
    for each in answer.charges:
        worker = workers[each.worker]
        worker.ahead = max(0, worker.ahead - each.ahead)
        worker.coming = max(0, worker.coming - each.coming)
        each.ahead = each.coming = 0


def refund(answer: Answer, workers: Mapping[str, Worker], only: str = "") -> None:
    """It counts no more, on any worker or on one."""
    for each in [each for each in answer.charges if not only or each.worker == only]:
        worker = workers[each.worker]
        worker.load = max(0, worker.load - each.load)
        worker.ahead = max(0, worker.ahead - each.ahead)
        worker.streams = max(0, worker.streams - each.stream)
        worker.coming = max(0, worker.coming - each.coming)
        answer.charges.remove(each)


def _add(worker: Worker, made: Charge) -> None:
    worker.load += made.load
    worker.ahead += made.ahead
    worker.streams += made.stream
    worker.coming += made.coming
