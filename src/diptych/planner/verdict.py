"""The answer in one word, one sentence, and what it saves against each baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diptych.design.boundary import Placement
from diptych.planner.ask import Ask
from diptych.planner.plan import Answer, Goal, Option, PoolPlan, Savings, Verdict
from diptych.units import format_bandwidth, format_bytes, format_seconds, format_usd

NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end-to-end latency",
}
SAME = 1e-9
"""Relative difference of two bills or goodputs that are the same."""


def answer_of(option: Option) -> Answer:
    """What kind of fleet an option is."""
    if option.placement is Placement.COLOCATED:
        return Answer.DO_NOT_DISAGGREGATE
    return Answer.HETEROGENEOUS if option.heterogeneous else Answer.HOMOGENEOUS_DISAGGREGATED


def parts(option: Option) -> int:
    """Kinds of workers, and the threshold of a conditional fleet."""
    return sum(len(pool.members) for pool in option.pools) + (option.placement is Placement.CONDITIONAL)


def preference(goal: Goal, option: Option) -> tuple[float, int, bool, float, int, str]:
    """Less is better: the bill (or the goodput, most first), then parts, kinds of accelerators, headroom, size, name."""
    first = round(option.usd_per_hour, 6) if goal is Goal.RATE else -round(option.goodput, 6)
    headroom = -round(option.headroom, 6)
    return first, parts(option), option.heterogeneous, headroom, option.accelerators, option.label


def simplest_equal(held: Option | None, options: list[Option]) -> Option | None:
    """The preferred of the options that are of the same kind and placement as `held` and cost no more."""
    if held is None:
        return None
    same = [o for o in options if answer_of(o) is answer_of(held) and o.placement is held.placement]
    equal = [o for o in same if o.usd_per_hour <= held.usd_per_hour * (1 + SAME)]
    return min([held, *equal], key=lambda o: preference(Goal.RATE, o))


def ruling(ask: Ask) -> dict[Answer, str]:
    """The kinds of fleets that pins leave no room for, and the flags that do."""
    ruled: dict[Answer, str] = {}
    names = [{accelerator.name for accelerator in role.accelerators} for role in (ask.prefill, ask.decode)]
    if ask.placement not in (None, Placement.COLOCATED):
        ruled[Answer.DO_NOT_DISAGGREGATE] = "--placement" if ask.pins.placement else "--local-below"
    elif ask.pinned_apart:
        ruled[Answer.DO_NOT_DISAGGREGATE] = "--prefill and --decode"
    if ask.placement is Placement.COLOCATED:
        ruled |= dict.fromkeys((Answer.HETEROGENEOUS, Answer.HOMOGENEOUS_DISAGGREGATED), "--placement")
    elif ask.placement is Placement.SAME_NODE:
        ruled[Answer.HETEROGENEOUS] = "--placement"
    elif names[0] and names[1]:
        if not names[0] & names[1]:
            ruled[Answer.HOMOGENEOUS_DISAGGREGATED] = "--prefill and --decode"
        if len(names[0] | names[1]) == 1:
            ruled[Answer.HETEROGENEOUS] = "--prefill and --decode"
    return ruled


def verdict(
    goal: Goal,
    best: Option,
    baselines: Mapping[Answer, Option | None],
    ruled: Mapping[Answer, str] | None = None,
    allowed: Callable[[Option], bool] = lambda _: True,
) -> Verdict:
    """Judge `best` against the best of every other kind; `ruled` and `allowed` say what the pins leave out.

    Fleets without a price save nothing that is known.
    """
    answer = answer_of(best)
    savings = tuple(
        saving(best, other, str(kind))
        for kind, other in baselines.items()
        if other is not None and kind is not answer and best.usd_per_hour and other.usd_per_hour
    )
    return Verdict(answer, reason(goal, best, baselines, ruled, allowed), savings)


def saving(best: Option, other: Option, against: str) -> Savings:
    """Shares of the baseline's bill that `best` does not pay; negative when it pays more."""
    per_token = 1 - best.usd_per_mtok_total / other.usd_per_mtok_total if other.usd_per_mtok_total else 0.0
    per_hour = 1 - best.usd_per_hour / other.usd_per_hour if other.usd_per_hour else 0.0
    return Savings(against, other.label, per_hour, per_token)


def reason(
    goal: Goal,
    best: Option,
    baselines: Mapping[Answer, Option | None],
    ruled: Mapping[Answer, str] | None = None,
    allowed: Callable[[Option], bool] = lambda _: True,
) -> str:
    """Why this fleet won: the next best kind that the pins allow, the gap, where it lies; then what the pins cost."""
    ruled = ruled or {}
    others = {kind: o for kind, o in baselines.items() if o is not None and kind is not answer_of(best)}
    rivals = [(kind, o) for kind, o in others.items() if allowed(o) and kind not in ruled]
    barred = [(kind, o) for kind, o in others.items() if not (allowed(o) and kind not in ruled)]
    lead = _against(goal, best, *min(rivals, key=lambda entry: preference(goal, entry[1]))) if rivals else ""
    better = [entry for entry in barred if _gap(goal, best, entry[1]) < -SAME]
    if not better:
        return lead or _alone(best, ruled)
    kind, other = min(better, key=lambda entry: preference(goal, entry[1]))
    by = ruled.get(kind, "--placement")
    note = f"the best {_noun(kind)} fleet, ruled out by {by}, {_ahead(goal, best, other)}"
    return f"{lead or _alone(best, ruled)}; {note}"


def _gap(goal: Goal, best: Option, other: Option) -> float:
    """How much better `best` is, as a share: of the bill saved or of the goodput gained."""
    if goal is Goal.RATE:
        return (other.usd_per_hour - best.usd_per_hour) / max(best.usd_per_hour, 1e-12)
    return (best.goodput - other.goodput) / max(best.goodput, 1e-12)


def _against(goal: Goal, best: Option, kind: Answer, other: Option) -> str:
    """What the best fleet of another kind does worse."""
    gap, noun = _gap(goal, best, other), _noun(kind)
    if gap <= (SAME if goal is Goal.RATE else 1e-6):
        same = "costs as much" if goal is Goal.RATE else "carries as much"
        return f"the best {noun} fleet {same} and {_lesser(best, other)}"
    if goal is Goal.RATE:
        more = other.usd_per_hour - best.usd_per_hour
        lead = f"the best {noun} fleet costs {format_usd(other.usd_per_hour)} USD/h, {format_usd(more)} more"
    else:
        lead = f"the best {noun} fleet carries {other.goodput:.4g} requests/s against {best.goodput:.4g}"
    return f"{lead}: {_where(best, other)}"


def _lesser(best: Option, other: Option) -> str:
    """Why the other of two equals comes second, by what `preference` looks at."""
    if parts(other) > parts(best):
        return "has more parts"
    if other.heterogeneous and not best.heterogeneous:
        return "mixes accelerators"
    if other.headroom < best.headroom - 1e-6:
        return f"leaves {other.headroom:.0%} headroom, not {best.headroom:.0%}"
    return f"takes {_counted(other)}, not {best.accelerators}"


def _ahead(goal: Goal, best: Option, other: Option) -> str:
    if goal is Goal.RATE:
        less = best.usd_per_hour - other.usd_per_hour
        return f"would cost {format_usd(other.usd_per_hour)} USD/h, {format_usd(less)} less"
    return f"would carry {other.goodput:.4g} requests/s against {best.goodput:.4g}"


def _alone(best: Option, ruled: Mapping[Answer, str]) -> str:
    """When no other kind that may be chosen keeps the SLO."""
    left = [kind for kind in Answer if kind is not answer_of(best) and kind not in ruled]
    binds = f"{why(best.binding)} binds first"
    if not left:
        flags = " and ".join(dict.fromkeys(ruled.values()))
        return f"{flags} leave no other kind of fleet; {binds}"
    return f"no {' or '.join(map(_noun, left))} fleet keeps the SLO; {binds}"


def _noun(kind: Answer) -> str:
    return "colocated" if kind is Answer.DO_NOT_DISAGGREGATE else str(kind)


def _where(best: Option, other: Option) -> str:
    """What the difference consists of."""
    if len(best.pools) == len(other.pools) == 2:
        differing = [
            f"{mine.role} takes {_kit(mine)} here, {_kit(theirs)} there"
            for mine, theirs in zip(best.pools, other.pools, strict=True)
            if _kit(mine) != _kit(theirs)
        ]
        return "; ".join(differing) or f"both run the same workers, but there {why(other.binding)} binds"
    if best.placement is Placement.COLOCATED and best.accelerators < other.accelerators:
        return f"prompts and answers share {_counted(best)}, apart they take {other.accelerators} and {_handed(other)}"
    if other.placement is Placement.COLOCATED and best.accelerators < other.accelerators:
        return (
            f"together, prompts stretch decode steps, so {why(other.binding)} binds at {_counted(other)} "
            f"where {best.accelerators} do apart"
        )
    return f"{_fleet(best)} here, {_fleet(other)} there, where {why(other.binding)} binds"


def _kit(pool: PoolPlan) -> str:
    """The workers of a pool and their bill."""
    bill = f" at {format_usd(pool.usd_per_hour)} USD/h" if pool.usd_per_hour else ""
    return " + ".join(member.label for member in pool.members) + bill


def _fleet(option: Option) -> str:
    return " → ".join(map(_kit, option.pools))


def _counted(option: Option) -> str:
    """`1 accelerator`, `8 accelerators`."""
    return f"{option.accelerators} accelerator{'' if option.accelerators == 1 else 's'}"


def _handed(option: Option) -> str:
    boundary = option.boundary
    if boundary is None:
        return "no handoff"
    return (
        f"hand over {format_bytes(boundary.wire_bytes_mean)} per request at {format_bandwidth(boundary.bandwidth)} "
        f"({format_seconds(boundary.exposed_p90)} of TTFT)"
    )


def why(binding: str) -> str:
    """A binding name as words."""
    metric, _, statistic = binding.partition("_")
    return f"{NAMES[metric]} ({statistic})" if metric in NAMES else binding


def why_not(goal: Goal, best: Option, other: Option) -> tuple[str, float]:
    """The sentence and the extra bill of a runner-up."""
    more = other.usd_per_hour - best.usd_per_hour
    if goal is not Goal.RATE:
        return _carries(best, other), more
    if more < -SAME * best.usd_per_hour:
        return f"{format_usd(-more)} USD/h cheaper, but not among what was pinned", more
    if more <= SAME * max(best.usd_per_hour, 1.0):
        headroom = f"{why(other.binding)} leaves {other.headroom:.0%} headroom against {best.headroom:.0%}"
        return f"costs as much{' with more parts' if parts(other) > parts(best) else ''}; {headroom}", more
    share = more / best.usd_per_hour
    return f"{format_usd(more)} USD/h ({share:.0%}) dearer: {_where_dearer(best, other)}", more


def _carries(best: Option, other: Option) -> str:
    """A runner-up where goodput decides."""
    less = 1 - other.goodput / best.goodput
    if less < -1e-6:
        return f"carries {other.goodput:.4g} requests/s, {-less:.0%} more, but not among what was pinned"
    if less <= 1e-6:
        return f"carries as much and {_lesser(best, other)}"
    return f"carries {other.goodput:.4g} requests/s, {less:.1%} less: {why(other.binding)} binds"


def _where_dearer(best: Option, other: Option) -> str:
    if len(best.pools) == len(other.pools) == 2:
        gaps = [theirs.usd_per_hour - mine.usd_per_hour for mine, theirs in zip(best.pools, other.pools, strict=True)]
        index = max(range(2), key=lambda i: gaps[i])
        mine, theirs = best.pools[index], other.pools[index]
        return f"{theirs.role} takes {_kit(theirs)}, not {_kit(mine)}"
    return f"{_fleet(other)}, not {_fleet(best)}; {why(other.binding)} binds"
