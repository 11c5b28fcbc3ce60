"""Why a half is not taken: said at once, before anything is held for it."""

from __future__ import annotations

from diptych.runtime.engine import Engine
from diptych.runtime.messages import Submit
from diptych.serving.blocks import BlockPool, blocks_for

Objection = tuple[str, str, bool]
"""Reason, detail, whether another attempt may succeed."""


def objection(submit: Submit, engine: Engine, pool: BlockPool, draining: bool) -> Objection | None:
    """Why this worker does not take a half; None when it does."""
    if draining:
        return "draining", "", True
    if not any(submit.request):
        return "bad request", "a request's id is not all zero", False
    tokens = len(submit.prompt) + len(submit.generated)
    if not submit.prompt or max(max(submit.prompt), *submit.generated, 0) >= engine.vocabulary:
        return "bad request", f"a prompt of tokens below {engine.vocabulary} is needed", False
    last = tokens + 1 if submit.half == "prefill" else len(submit.prompt) + submit.params.max_tokens
    most = min(engine.max_context, pool.capacity * pool.size)
    if last - 1 > most or (submit.half == "decode" and blocks_for(tokens + 1, pool.size) > pool.capacity):
        return "too large", f"{last:,} tokens of prompt and answer; room for {most + 1:,}", False
    return None
