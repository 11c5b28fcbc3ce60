"""Whether a design that somebody wrote can run at all, and what is unusual about it."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.design.capability import capabilities
from diptych.design.constraints import HANDOFF_RULES, SHAPE_RULES, violations
from diptych.design.design import Design
from diptych.design.kv_rules import (
    nobody_compresses_kv,
    quantised_is_narrower,
    raw_needs_no_converter,
    raw_needs_one_format,
)
from diptych.design.path_rules import (
    another_server_excludes_scaleup,
    one_server_holds_one_accelerator,
    scaleup_must_exist,
)
from diptych.design.ruling import Quality, Setting
from diptych.design.worker_rules import (
    activations_are_multiplied,
    longest_request_fits,
    tp_stays_in_scaleup,
    weights_fit,
)
from diptych.errors import Finding, InvalidDesign
from diptych.planner.enumerate import memory_of

_NEVER = {
    rule.__name__
    for rule in (
        *(rule for rule in SHAPE_RULES if rule is not tp_stays_in_scaleup), *HANDOFF_RULES, weights_fit,
        activations_are_multiplied, raw_needs_no_converter, raw_needs_one_format, quantised_is_narrower, nobody_compresses_kv,
        another_server_excludes_scaleup, one_server_holds_one_accelerator, scaleup_must_exist,
    )
}  # fmt: skip
"""What no engine or no silicon can do; the other rules say what is unusual."""
_SILENT = {"sixteen_bits_are_one_choice", longest_request_fits.__name__}
"""About choosing among designs, or told of the requests one by one."""


def soundness(design: Design, where: str = "--design") -> tuple[str, ...]:
    """What is unusual about a design.

    Raises:
        InvalidDesign: it cannot run: weights that do not fit, heads that do not divide, KV that nobody could read.
    """
    setting = Setting(1.0, memory_of, Quality.ANY, link_is_given=True)
    found = violations(design, setting)
    never = [violation for violation in found if violation.rule in _NEVER]
    if never:
        raise InvalidDesign(Finding(where, str(violation)) for violation in never)
    unusual = (str(violation) for violation in found if violation.rule not in _SILENT)
    return tuple(dict.fromkeys((*unusual, *_engines(design))))


def _engines(design: Design) -> Iterator[str]:
    for pool in design.pools:
        for member in pool.members:
            worker = member.worker
            known = {engine for row in capabilities(worker.accelerator) for engine in row.engines}
            if worker.engine not in known:
                yield f"no engine {worker.engine!r} is known on {worker.accelerator.name}; its steps are filled as vLLM's are"
