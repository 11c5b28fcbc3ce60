"""The answer in one word, one sentence, and what it saves against each baseline."""

from __future__ import annotations

from diptych.design.boundary import Placement
from diptych.planner.plan import Answer, Goal, Option, Savings, Verdict
from diptych.units import format_bandwidth, format_seconds, format_usd

NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end-to-end latency",
}


def answer_of(option: Option) -> Answer:
    """What kind of fleet an option is."""
    if option.placement is Placement.COLOCATED:
        return Answer.DO_NOT_DISAGGREGATE
    return Answer.HETEROGENEOUS if option.heterogeneous else Answer.HOMOGENEOUS_DISAGGREGATED


def verdict(goal: Goal, best: Option, baselines: dict[Answer, Option | None]) -> Verdict:
    """Judge `best` against the best of every other kind."""
    answer = answer_of(best)
    savings = tuple(
        saving(best, other, str(kind)) for kind, other in baselines.items() if other is not None and kind is not answer
    )
    return Verdict(answer, reason(goal, best, baselines), savings)


def saving(best: Option, other: Option, against: str) -> Savings:
    """Shares of the baseline's bill that `best` does not pay; negative when it pays more."""
    per_token = 1 - best.usd_per_mtok_total / other.usd_per_mtok_total if other.usd_per_mtok_total else 0.0
    per_hour = 1 - best.usd_per_hour / other.usd_per_hour if other.usd_per_hour else 0.0
    return Savings(against, other.label, per_hour, per_token)


def reason(goal: Goal, best: Option, baselines: dict[Answer, Option | None]) -> str:
    """Why this kind won: the next best kind, the gap, and where the gap lies."""
    others = [
        (kind, option) for kind, option in baselines.items() if option is not None and kind is not answer_of(best)
    ]
    if not others:
        return f"no other kind of fleet keeps the SLO; {best.binding} binds first"
    if goal is Goal.RATE:
        kind, other = min(others, key=lambda entry: entry[1].usd_per_hour)
        gap = other.usd_per_hour - best.usd_per_hour
        lead = (
            f"the best {_noun(kind)} fleet costs {format_usd(other.usd_per_hour)} USD/h, {format_usd(gap)} more"
            if gap > 1e-9 * best.usd_per_hour
            else f"the best {_noun(kind)} fleet costs as much and has more parts"
        )
    else:
        kind, other = max(others, key=lambda entry: entry[1].goodput)
        lead = f"the best {_noun(kind)} fleet carries {other.goodput:.3g} requests/s against {best.goodput:.3g}"
    return f"{lead}: {_where(best, other)}"


def _noun(kind: Answer) -> str:
    return "colocated" if kind is Answer.DO_NOT_DISAGGREGATE else str(kind)


def _where(best: Option, other: Option) -> str:
    """What the difference consists of."""
    if len(best.pools) == len(other.pools) == 2:
        parts = [
            f"{mine.role} costs {format_usd(mine.usd_per_hour)} USD/h on {mine.members[0].accelerator}, "
            f"{format_usd(theirs.usd_per_hour)} on {theirs.members[0].accelerator}"
            for mine, theirs in zip(best.pools, other.pools, strict=True)
        ]
        return "; ".join(parts)
    if best.placement is Placement.COLOCATED:
        return (
            f"prompts and answers share {best.accelerators} accelerators, apart they take {other.accelerators} "
            f"and {_handed(other)}"
        )
    return (
        f"together, prompts stretch decode steps, so {why(other.binding)} binds at {other.accelerators} accelerators where "
        f"{best.accelerators} do apart"
    )


def _handed(option: Option) -> str:
    boundary = option.boundary
    if boundary is None:
        return "no handoff"
    return (
        f"hand over {boundary.wire_bytes_mean / 1e6:.3g} MB per request at {format_bandwidth(boundary.bandwidth)} "
        f"({format_seconds(boundary.exposed_p90)} of TTFT)"
    )


def why(binding: str) -> str:
    """A binding name as words."""
    metric, _, statistic = binding.partition("_")
    return f"{NAMES[metric]} ({statistic})" if metric in NAMES else binding


def why_not(goal: Goal, best: Option, other: Option) -> tuple[str, float]:
    """The sentence and the extra bill of a runner-up."""
    more = other.usd_per_hour - best.usd_per_hour
    if goal is Goal.INVENTORY:
        less = 1 - other.goodput / best.goodput
        return f"carries {other.goodput:.3g} requests/s, {less:.0%} less: {why(other.binding)} binds", more
    if more < -1e-9 * best.usd_per_hour:
        return f"{format_usd(-more)} USD/h cheaper, but not among what was pinned", more
    if more <= 1e-9 * max(best.usd_per_hour, 1e-9):
        same = f"costs as much; {why(other.binding)} leaves {other.headroom:.0%} headroom against {best.headroom:.0%}"
        return same, more
    share = more / best.usd_per_hour
    return f"{format_usd(more)} USD/h ({share:.0%}) dearer: {_where_dearer(best, other)}", more


def _where_dearer(best: Option, other: Option) -> str:
    if len(best.pools) == len(other.pools) == 2:
        gaps = [theirs.usd_per_hour - mine.usd_per_hour for mine, theirs in zip(best.pools, other.pools, strict=True)]
        index = max(range(2), key=lambda i: gaps[i])
        mine, theirs = best.pools[index], other.pools[index]
        return (
            f"{theirs.role} takes {theirs.workers} × {theirs.members[0].accelerator} at {format_usd(theirs.usd_per_hour)} USD/h, "
            f"not {mine.workers} × {mine.members[0].accelerator} at {format_usd(mine.usd_per_hour)}"
        )
    return f"{why(other.binding)} binds; it needs {other.accelerators} accelerators, not {best.accelerators}"
