"""Short numbers and names, the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable

from diptych.design.axes import Role
from diptych.design.boundary import Codec, Placement
from diptych.errors import InvalidInput
from diptych.metrics.slo import SLO, Objective
from diptych.planner.offers import OWNED
from diptych.planner.plan import (
    BoundaryPlan,
    Latency,
    MemberPlan,
    Option,
    Plan,
    PoolPlan,
    Space,
    Trust,
)
from diptych.units import format_seconds, format_usd

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LETTERS = {Role.PREFILL: "P", Role.DECODE: "D", Role.COLOCATED: ""}
SERIES = ("heterogeneous", "homogeneous, disaggregated", "homogeneous, colocated")


def percent(share: float, digits: int = 0) -> str:
    """A share as people write it, with a space before the sign.

    >>> percent(0.314), percent(0.0042), percent(-0.0004), percent(0.9991)
    ('31 %', '0.4 %', '0 %', '99.9 %')
    """
    if 0 < abs(share) < 0.01 or 0.99 < abs(share) < 1:
        digits = max(digits, 1)
    text = f"{share * 100:.{digits}f}"
    if float(text) == 0:
        text = "0"
    elif abs(float(text)) == 100:
        text = text.split(".")[0]
    return f"{text} %"


def count(value: float) -> str:
    """A whole number with thin groups, a small one with its digits.

    >>> count(12400000), count(20), count(5.25)
    ('12,400,000', '20', '5.25')
    """
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def big(value: float) -> str:
    """A large count in three digits, in words while there are words for it.

    >>> big(41_300_000), big(950), big(6_300), big(2.01e20)
    ('41.3 million', '950', '6,300', '2.01 × 10²⁰')
    """
    if value >= 1e15:
        exponent = math.floor(math.log10(value))
        return f"{value / 10**exponent:.3g} × 10{str(exponent).translate(_RAISED)}"
    for scale, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value:,.0f}"


def power(watts: float | None) -> str:
    """`4.2 kW`; accelerators whose maker gives no figure have none."""
    if not watts:
        return "power unknown"
    return f"{watts / 1e3:.3g} kW" if watts >= 1e3 else f"{watts:.0f} W"


def plural(number: int, noun: str) -> str:
    """`3 workers`, `1 worker`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def spaced(name: str) -> str:
    """A rule's name as words."""
    return name.replace("_", " ").replace("-", " ")


def axes(space: Space) -> str:
    """How the product of the axes is made up: `3 prefill designs × 2 decode designs + 4 colocated designs`."""
    terms = {name: f"{big(number)} {name}" for name, number in space.axes.items()}
    apart = " × ".join(term for name, term in terms.items() if not name.startswith("colocated"))
    return " + ".join([apart, *(term for name, term in terms.items() if name.startswith("colocated"))])


def sentence(text: str) -> str:
    """`text` with a capital at its start and a full stop at its end."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?:" else ".")


def objective(term: Objective) -> str:
    """`TTFT p90 < 2 s`."""
    statistic = "mean" if term.quantile is None else f"p{term.quantile * 100:g}"
    return f"{term.metric.upper()} {statistic} < {format_seconds(term.limit)}"


def objectives(plan: Plan) -> tuple[Objective, ...]:
    """The objectives of the plan's SLO; none when it has none."""
    try:
        return SLO.parse(plan.question.slo).objectives
    except InvalidInput:
        return ()


def slo(plan: Plan) -> str:
    """`TTFT p90 < 2 s and TPOT p90 < 50 ms`."""
    return listed(objective(term) for term in objectives(plan)) or "no latency limit"


def limit(plan: Plan, metric: str) -> Objective | None:
    """The tightest objective on a metric, None when the SLO has none."""
    return min((term for term in objectives(plan) if term.metric == metric), key=lambda term: term.limit, default=None)


def statistic(latency: Latency, quantile: float | None) -> tuple[str, float]:
    """A latency's mean or percentile with its name; the next higher percentile where a plan keeps no such one."""
    if quantile is None:
        return "mean", latency.mean
    kept = ((0.5, latency.p50), (0.9, latency.p90), (0.99, latency.p99))
    at, value = next(((q, v) for q, v in kept if q >= quantile - 1e-9), kept[-1])
    return f"p{at * 100:g}", value


def listed(parts: Iterable[str]) -> str:
    """`a, b and c`."""
    items = list(parts)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""


def series(placement: Placement, heterogeneous: bool) -> str:
    """The family of a design, as charts and tables name it."""
    if heterogeneous:
        return SERIES[0]
    return SERIES[2] if placement is Placement.COLOCATED else SERIES[1]


def binding(option: Option) -> str:
    """What stops the fleet from carrying more, in words: `TPOT p90`."""
    metric, _, statistic = option.binding.partition("_")
    return f"{metric.upper()} {statistic}" if statistic and metric in ("ttft", "tpot", "e2e") else option.binding


def chips(pool: PoolPlan) -> str:
    """The accelerators of a pool: `H100` or `A100 and L40S`."""
    return listed(dict.fromkeys(member.accelerator for member in pool.members))


def shape(member: MemberPlan) -> str:
    """`tp2·pp2` of one worker."""
    sizes = (("tp", member.tp), ("pp", member.pp), ("dp", member.dp), ("ep", member.ep))
    return "·".join(f"{name}{size}" for name, size in sizes if size > 1) or "tp1"


def formats(member: MemberPlan) -> str:
    """`fp8 weights, bf16 multiply, fp8 KV`, as short as the formats allow."""
    if member.weights is member.activations is member.kv:
        return f"{member.weights} throughout"
    compute = f"{member.weights} weights" + (
        "" if member.weights is member.activations else f", {member.activations} activations"
    )
    return f"{compute}, {member.kv} KV"


def member_line(member: MemberPlan) -> str:
    """`3 × H20-96GB tp4`."""
    return f"{member.workers} × {member.accelerator} {shape(member)}"


def pool_line(pool: PoolPlan) -> str:
    """`2 × H100-SXM-80GB tp2`, with `+` between the members of a mixed pool."""
    return " + ".join(member_line(member) for member in pool.members)


def pool_with_formats(pool: PoolPlan) -> str:
    """`2 × H100-SXM-80GB tp2 fp8`; the formats of a mixed pool once when its members share them."""
    formats = [short_formats(member) for member in pool.members]
    if len(set(formats)) == 1:
        return f"{pool_line(pool)} {formats[0]}"
    return " + ".join(f"{member_line(member)} {text}" for member, text in zip(pool.members, formats, strict=True))


def fleet_lines(option: Option, brief: bool = False) -> tuple[str, ...]:
    """A fleet in short lines: its pools under their roles with their formats, and the link between them.

    `brief` writes P and D for the roles, as in 3P5D.
    """
    pools = tuple(
        f"{_LETTERS[pool.role] if brief else pool.role} {pool_with_formats(pool)}".strip() for pool in option.pools
    )
    link = option.boundary
    return (*pools, f"over {link.link}, KV {link.wire}, {link.ownership}") if link else pools


def pool_formats(pool: PoolPlan) -> str:
    """The formats of a pool's members, each once."""
    return "; ".join(dict.fromkeys(formats(member) for member in pool.members))


def short_formats(member: MemberPlan) -> str:
    """`fp8`, `int4/bf16`, `fp8 (KV bf16)`."""
    same = member.weights is member.activations
    compute = str(member.weights) if same else f"{member.weights}/{member.activations}"
    return compute if same and member.kv is member.weights else f"{compute} (KV {member.kv})"


def rented(member: MemberPlan) -> str:
    """`2 × p5.48xlarge of aws`; a member on another one's instance shares it; empty for what is owned."""
    if member.offer in ("", OWNED):
        return ""
    source = f" of {member.provider}" if member.provider and member.provider != member.offer else ""
    return f"{member.instances} × {member.offer}{source}" if member.instances else f"shares a {member.offer}{source}"


def size(option: Option) -> str:
    """`14 accelerators`, and how many more are rented with them and stay idle."""
    members = [member for pool in option.pools for member in pool.members]
    idle = sum(member.idle_accelerators for member in members if member.offer != OWNED)
    return plural(option.accelerators, "accelerator") + (f" and {idle} idle" if idle > 0 else "")


def money(value: float) -> str:
    """A price, or a dash for what has none."""
    return format_usd(value) if value else "–"


def wire(boundary: BoundaryPlan) -> str:
    """KV on the wire: `fp8, unchanged` or `int8, quantised at prefill`."""
    if boundary.codec is Codec.RAW:
        return f"{boundary.wire}, unchanged"
    side = f" at {boundary.converts_at}" if boundary.converts_at else ""
    return f"{boundary.wire}, {boundary.codec}{side}"


def trust(value: Trust) -> str:
    """`± 12 %, fitted`; says when a number lies outside what was measured."""
    outside = ", extrapolated" if value.outside_measured else ""
    return f"± {percent(value.band)}, {value.basis}{outside}"


def short_trust(value: Trust) -> str:
    """`± 12 % fitted`, a trailing `*` when a number lies outside what was measured."""
    return f"± {percent(value.band)} {value.basis}{'*' if value.outside_measured else ''}"
