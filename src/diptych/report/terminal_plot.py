"""A Pareto front in characters, for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from diptych.planner.plan import Plan
from diptych.report import words

_MARKS = dict(zip(words.SERIES, ("x", "o", "c"), strict=True))
_BEST = "@"


def pareto_plot(plan: Plan, width: int = 62, height: int = 11) -> str:
    """USD per million tokens upward, TPOT p90 across; one character per design, `@` is the plan."""
    points = [
        (p.tpot * 1e3, p.usd_per_mtok_total, _MARKS[words.series(p.placement, p.heterogeneous)]) for p in plan.pareto
    ]
    points.append((plan.best.tpot.p90 * 1e3, plan.best.usd_per_mtok_total, _BEST))
    left, right = _range([x for x, _, _ in points])
    bottom, top = _range([y for _, y, _ in points])
    canvas = [[" "] * width for _ in range(height)]
    for x, y, mark in points:
        column = round((x - left) / (right - left) * (width - 1))
        row = height - 1 - round((y - bottom) / (top - bottom) * (height - 1))
        canvas[row][column] = mark
    return "\n".join([*_rows(canvas, bottom, top), *_axis(left, right, width), _key(plan)])


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest value, parted a little when they are equal."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low * 0.9, low * 1.1 + 1e-9)


def _rows(canvas: list[list[str]], bottom: float, top: float) -> list[str]:
    last = len(canvas) - 1
    labels = {0: f"{top:.3g}", last // 2: f"{(top + bottom) / 2:.3g}", last: f"{bottom:.3g}"}
    return [f"{labels.get(index, ''):>6} │{''.join(row)}".rstrip() for index, row in enumerate(canvas)]


def _axis(left: float, right: float, width: int) -> list[str]:
    low, high = f"{left:.3g} ms", f"{right:.3g} ms"
    return ["       └" + "─" * width, " " * 8 + low + " " * (width - len(low) - len(high)) + high]


def _key(plan: Plan) -> str:
    present = dict.fromkeys(words.series(p.placement, p.heterogeneous) for p in plan.pareto)
    names = [(_MARKS[name], name.removeprefix("homogeneous, ")) for name in words.SERIES if name in present]
    return " " * 8 + "   ".join(f"{mark} {name}" for mark, name in [(_BEST, "the plan"), *names])
