"""The rules of prefill/decode pairs, one module per engine or orchestrator; each holds its own in `RULES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from diptych.engines.resolve import Joint
from diptych.engines.rule import Broken, Remark, Rule
from diptych.engines.rules import (
    lmcache,
    orchestrators,
    pair,
    sglang_ranks,
    sglang_routing,
    sglang_stored,
    trtllm,
    vllm_backend,
    vllm_config,
    vllm_diptych,
    vllm_geometry,
    vllm_identity,
    vllm_mooncake,
    vllm_remarks,
    vllm_stages,
)

_MODULES = (
    *(pair, vllm_config, vllm_identity, vllm_geometry, vllm_stages, vllm_mooncake, vllm_diptych, vllm_backend),
    *(sglang_stored, sglang_ranks, sglang_routing, trtllm, lmcache, orchestrators),
)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by the letters of its id and its number."""
    return tuple(sorted((rule for module in _MODULES for rule in module.RULES), key=_order))


def all_remarks() -> tuple[Callable[[Joint, tuple[Broken, ...]], Iterable[Remark]], ...]:
    """What looks for things that are fine though they look wrong, given what was found broken."""
    return (*pair.REMARKS, *vllm_remarks.REMARKS)


def all_doubts() -> tuple[Callable[[Joint], Iterable[str]], ...]:
    """What says of a pair which rules could not be decided, and what to say so that they can."""
    return vllm_remarks.DOUBTS


def rule(id: str) -> Rule:
    """The rule of this id. Raises KeyError."""
    return {each.id: each for each in all_rules()}[id]


def _order(rule: Rule) -> tuple[str, int]:
    letters = rule.id.rstrip("0123456789")
    return letters, int(rule.id[len(letters) :] or 0)
