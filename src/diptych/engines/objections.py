"""What an engine has against two workers and the boundary between them: the same rules that check real commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diptych.design.axes import Role, Worker
from diptych.design.boundary import Boundary
from diptych.design.design import Design, Member, Pool
from diptych.engines.check import applies
from diptych.engines.engine import Engine, Launcher, Version
from diptych.engines.handling import STOCK, refusals
from diptych.engines.of_design import How, deployment_of
from diptych.engines.resolve import Joint
from diptych.engines.rule import Severity
from diptych.engines.rules import all_rules


@dataclass(frozen=True, slots=True)
class Objection:
    """One reason: the rule's id, or 'handoff' for a choice without words on the engine, and the sentence."""

    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


def objections(
    prefill: Worker,
    decode: Worker,
    boundary: Boundary,
    engine: Engine,
    version: Version | None = None,
    connector: str = STOCK,
) -> Iterator[Objection]:
    """Every reason why `engine` over `connector` would not serve this pair rightly; what is only slow is none."""
    for refusal in refusals(engine, Launcher.PLAIN, prefill, decode, boundary, connector):
        yield Objection("handoff", f"{refusal.choice}: {refusal.sentence}")
    joint = joint_of(prefill, decode, boundary, How(engine, version, connector=connector))
    for rule in all_rules():
        if not applies(rule, joint):
            continue
        for clash in rule.check(joint):
            if (clash.severity or rule.severity) is not Severity.SLOW:
                values = " against ".join(filter(None, (clash.prefill, clash.decode)))
                yield Objection(rule.id, f"{rule.sentence.rstrip('.')}: {values}")


def joint_of(prefill: Worker, decode: Worker, boundary: Boundary, how: How) -> Joint:
    """Two workers as the roles that the generators would start."""
    pools = (Pool(Role.PREFILL, (Member(prefill, 1),)), Pool(Role.DECODE, (Member(decode, 1),)))
    deployment = deployment_of(Design(pools, boundary), how)
    first, second = deployment.roles
    return Joint(first, second, deployment, prefill.model, prefill.accelerator, decode.accelerator, decode.model)
