"""What a plan says: its headline, what it gains and on whom, what a reader must know first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diptych.design.axes import Role
from diptych.planner.plan import Alternative, Answer, Goal, Option, Plan, Savings
from diptych.report import words
from diptych.units import format_usd


def verdict(plan: Plan) -> str:
    """What to do, without numbers: the first half of the headline."""
    prefill, decode = plan.best.pool(Role.PREFILL), plan.best.pool(Role.DECODE)
    together = dict.fromkeys(words.chips(pool) for pool in plan.best.pools if pool.role is Role.COLOCATED)
    if prefill is None or decode is None:
        return f"Do not disaggregate, run {words.listed(words.chips(pool) for pool in plan.best.pools)} colocated"
    beside = f", run {words.listed(together)} colocated beside" if together else ""
    if words.chips(prefill) == words.chips(decode):
        return f"Disaggregate on {words.chips(prefill)}{beside or ' alone'}"
    return f"Prefill on {words.chips(prefill)}, decode on {words.chips(decode)}{beside}"


def rival(plan: Plan) -> Savings | None:
    """The saving against the strongest baseline: the smallest one, so that no headline flatters."""
    return min(plan.verdict.savings, key=lambda saving: saving.per_mtok, default=None)


def baseline(saving: Savings) -> str:
    """What a saving is measured against: `the best colocated fleet`."""
    kind = "colocated" if saving.against == Answer.DO_NOT_DISAGGREGATE else saving.against
    return f"the best {kind} fleet"


def saving(plan: Plan) -> str:
    """The second half of the headline: what the plan gains on its strongest rival; empty without one."""
    if plan.question.goal is not Goal.RATE:
        return _carried(plan)
    least = rival(plan)
    if least is None:
        return ""
    if abs(least.per_hour) < 0.0005:
        return f"as cheap as {baseline(least)}"
    if least.per_hour <= -1:
        return f"{1 - least.per_hour:.2g} times the price of {baseline(least)}"
    return (
        f"{words.percent(abs(least.per_hour))} {'cheaper' if least.per_hour > 0 else 'dearer'} than {baseline(least)}"
    )


def _carried(plan: Plan) -> str:
    """What a budget or an inventory buys in goodput, beside the best fleet of another kind."""
    others = [(name, option) for name, option in named_options(plan) if option != plan.best]
    load = f"{words.count(plan.best.goodput)} requests/s"
    if not others:
        return load
    name, other = max(others, key=lambda pair: pair[1].goodput)
    more = plan.best.goodput / other.goodput - 1 if other.goodput else 0.0
    told = f"{words.percent(abs(more))} {'more' if more > 0 else 'less'} than" if abs(more) >= 0.0005 else "as much as"
    return f"{load}, {told} the {name} fleet"


def gain_title(plan: Plan) -> str:
    """The head of the column that compares each fleet with the plan."""
    return "plan saves" if plan.question.goal is Goal.RATE else "plan carries"


def gain(plan: Plan, option: Option) -> str:
    """What the plan gains on another fleet: a share of its bill, or of its goodput where the bill was given."""
    if option == plan.best:
        return ""
    if plan.question.goal is Goal.RATE:
        return words.percent(1 - plan.best.usd_per_hour / option.usd_per_hour) if option.usd_per_hour else ""
    more = plan.best.goodput / option.goodput - 1 if option.goodput else 0.0
    return f"{'+' if more >= 0 else ''}{words.percent(more)}"


def common(plan: Plan) -> str:
    """What every fleet compared has in common."""
    kept = {
        Goal.RATE: "carries the same load",
        Goal.BUDGET: "costs no more than the budget",
        Goal.INVENTORY: "uses what is owned",
    }
    return f"{kept[plan.question.goal]} inside the same SLO"


def spare(plan: Plan) -> str:
    """How much the fleet carries and what stops it; the margin only where a load was given."""
    best = plan.best
    margin = f", {_margin(best.headroom)} the load" if plan.question.goal is Goal.RATE else ""
    return f"goodput {words.count(best.goodput)} requests/s{margin}; {words.binding(best)} binds"


def _margin(headroom: float) -> str:
    """`12 % above`; from twice on, `3.1 times`."""
    return f"{words.percent(headroom)} above" if headroom < 1 else f"{words.count(1 + headroom)} times"


def prices(plan: Plan) -> str:
    """`aws, 2026-07-20`, or that there are none."""
    asked = plan.question
    return f"{asked.prices}, {asked.prices_date}" if asked.prices else "none: owned accelerators"


def purpose(plan: Plan) -> str:
    """What was asked of the fleet: `at 20 requests/s, holding TTFT p90 < 2 s`."""
    asked = plan.question
    owned = words.listed(f"{number} {name}" for name, number in (asked.inventory or {}).items())
    means = {
        Goal.RATE: f"at {words.count(plan.best.rate)} requests/s",
        Goal.BUDGET: f"for {format_usd(asked.budget_usd_per_hour or 0.0)} USD/h",
        Goal.INVENTORY: f"on {owned}",
    }
    over = {"trace": " over the whole trace", "average": " at the average rate", "peak": " at the peak of the trace"}
    return f"{means[asked.goal]}, holding {words.slo(plan)}{over.get(asked.size_for or '', '')}"


def headline(plan: Plan) -> str:
    """The answer in one sentence, as a manager would read it."""
    gain = saving(plan)
    return f"{verdict(plan)}: {gain}" if gain else verdict(plan)


def bill(plan: Plan) -> str:
    """`41.20 USD/h, 1.92 USD per million output tokens`; owned accelerators may have no price."""
    best = plan.best
    if not best.usd_per_hour:
        return f"{words.plural(best.accelerators, 'accelerator')}, not priced"
    return (
        f"{format_usd(best.usd_per_hour)} USD/h, {format_usd(best.usd_per_mtok_output)} USD per million output tokens"
    )


@dataclass(frozen=True, slots=True)
class Advice:
    """A warning in the pattern people act on: what, why, what to do."""

    what: str
    why: str = ""
    fix: str = ""


def advice(text: str) -> Advice:
    """Split a warning at its `Why:` and `Fix:`, both optional.

    >>> advice("The link is 91 % busy. Why: 4 TB/h cross it. Fix: --wire fp8")
    Advice(what='The link is 91 % busy.', why='4 TB/h cross it.', fix='--wire fp8')
    """
    head, _, fix = text.partition("Fix:")
    what, _, why = head.partition("Why:")
    return Advice(what.strip(), why.strip(), fix.strip())


def warnings(plan: Plan) -> tuple[Advice, ...]:
    """What a reader must know first: a saving smaller than its own error band, then the plan's warnings."""
    told = tuple(advice(text) for text in plan.warnings)
    doubt = _doubt(plan)
    return (doubt, *told) if doubt else told


def _doubt(plan: Plan) -> Advice | None:
    least = rival(plan)
    band = max(plan.best.ttft_decode.trust.band, plan.best.tpot.trust.band)
    if least is None or not 0 < least.per_mtok < band:
        return None
    return Advice(
        f"The saving of {words.percent(least.per_mtok)} lies within the error band of the latencies, ± {words.percent(band)}.",
        f"two fleets this close may change places; the rival is {least.baseline}.",
        "measure both fleets on your workload before you commit; diptych validate compares your rows with the model",
    )


def named_options(plan: Plan) -> tuple[tuple[str, Option], ...]:
    """The answer and the baselines that are always shown, each design once, under the name of its part."""
    named = (
        ("the plan", plan.best),
        ("best homogeneous colocated", plan.colocated),
        ("best homogeneous disaggregated", plan.disaggregated),
        ("best heterogeneous", plan.heterogeneous),
    )
    seen: list[tuple[str, Option]] = []
    for name, option in named:
        if option is None:
            continue
        known = next((index for index, (_, other) in enumerate(seen) if other == option), None)
        if known is None:
            seen.append((name, option))
        else:
            seen[known] = (f"{seen[known][0]}, {name}", option)
    return tuple(seen)


def runners_up(plan: Plan) -> tuple[Alternative, ...]:
    """The alternatives that are not already among the named options and fit the budget, where one was given."""
    named = [option for _, option in named_options(plan)]
    budget = plan.question.budget_usd_per_hour or math.inf
    return tuple(a for a in plan.alternatives if a.option not in named and a.option.usd_per_hour <= budget)


def reason_against(plan: Plan, option: Option) -> str:
    """Why an option is not the plan, where the plan says so."""
    return next((other.why_not for other in plan.alternatives if other.option == option), "")
