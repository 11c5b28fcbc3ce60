"""Small plots as SVG text: lines, points and bars over two axes. Enough for a page of documentation; same data, same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10

Point = tuple[float, float]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 300, 58, 14, 34, 46
MEASURED, SIMULATED, QUIET = "#c0392b", "#1f5fa8", "#888888"


@dataclass
class Plot:
    """One pair of axes. Marks are drawn in the order added; axes end at what they show unless told otherwise."""

    title: str
    x: str
    y: str
    x_range: Point | None = None
    y_range: Point | None = None
    names: tuple[str, ...] = ()  # along x, instead of numbers, in equal parts
    marks: list[tuple[str, str, str, list[Point]]] = field(default_factory=list)  # kind, label, colour, points

    def line(self, label: str, points: Iterable[Point], colour: str = SIMULATED) -> Plot:
        self.marks.append(("line", label, colour, list(points)))
        return self

    def dots(self, label: str, points: Iterable[Point], colour: str = MEASURED) -> Plot:
        self.marks.append(("dots", label, colour, list(points)))
        return self

    def bars(self, label: str, points: Iterable[Point], colour: str) -> Plot:
        self.marks.append(("bars", label, colour, list(points)))
        return self

    def limit(self, label: str, points: Iterable[Point]) -> Plot:
        """A dashed line: an objective, a published value."""
        self.marks.append(("dash", label, QUIET, list(points)))
        return self

    def svg(self, left: float = 0.0) -> str:
        """The plot as a group, `left` pixels to the right."""
        xs, ys = self._ranges()

        def at(point: Point) -> tuple[float, float]:
            share = (point[0] - xs[0]) / (xs[1] - xs[0]), (point[1] - ys[0]) / (ys[1] - ys[0])
            return LEFT + share[0] * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share[1] * (HEIGHT - TOP - BOTTOM)

        parts = [f'<g transform="translate({left:g},0)">', self._frame(xs, ys, at)]
        bars = [mark for mark in self.marks if mark[0] == "bars"]
        for kind, _, colour, points in self.marks:
            where = [at(point) for point in points]
            if kind == "dots":
                parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in where]
            elif kind == "bars":
                place = next(i for i, mark in enumerate(bars) if mark[3] is points)
                parts += [_bar(x + (place - (len(bars) - 1) / 2) * 16, y, at((0, ys[0]))[1], colour) for x, y in where]
            else:
                dash = ' stroke-dasharray="5 4"' if kind == "dash" else ""
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in where)
                parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
        return "\n".join([*parts, self._legend(), "</g>"])

    def _ranges(self) -> tuple[Point, Point]:
        points = [point for _, _, _, listed in self.marks for point in listed]
        found_x = min(p[0] for p in points), max(p[0] for p in points)
        found_y = min(0.0, *(p[1] for p in points)), max(p[1] for p in points) * 1.06
        return self.x_range or found_x, self.y_range or found_y

    def _frame(self, xs: Point, ys: Point, place: Callable[[Point], Point]) -> str:
        low, high = place((xs[0], ys[0])), place((xs[1], ys[1]))
        parts = [
            f'<text x="{WIDTH / 2:g}" y="18" text-anchor="middle" font-weight="bold">{self.title}</text>',
            f'<rect x="{low[0]:.1f}" y="{high[1]:.1f}" width="{high[0] - low[0]:.1f}" height="{low[1] - high[1]:.1f}"'
            ' fill="none" stroke="#bbbbbb"/>',
            f'<text x="{(low[0] + high[0]) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{self.x}</text>',
            f'<text transform="translate(14,{(low[1] + high[1]) / 2:.1f}) rotate(-90)" text-anchor="middle">{self.y}</text>',
        ]
        for value, text in self._x_marks(xs):
            x = place((value, ys[0]))[0]
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
        for value in _ticks(*ys):
            y = place((xs[0], value))[1]
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eeeeee"/>')
        return "\n".join(parts)

    def _x_marks(self, xs: Point) -> list[tuple[float, str]]:
        if not self.names:
            return [(value, f"{value:g}") for value in _ticks(*xs)]
        part = (xs[1] - xs[0]) / len(self.names)
        return [(xs[0] + part * (place + 0.5), name) for place, name in enumerate(self.names)]

    def _legend(self) -> str:
        named = [(label, colour) for _, label, colour, _ in self.marks if label]
        return "\n".join(
            f'<text x="{LEFT + 8}" y="{TOP + 16 + 15 * row}" fill="{colour}">{label}</text>'
            for row, (label, colour) in enumerate(dict.fromkeys(named))
        )


def _bar(x: float, top: float, base: float, colour: str) -> str:
    return f'<rect x="{x - 7:.1f}" y="{top:.1f}" width="14" height="{base - top:.1f}" fill="{colour}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers between."""
    rough = (high - low) / 5
    size = 10 ** floor(log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough)
    return [round(i * step, 10) for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def row(plots: Sequence[Plot]) -> str:
    """Plots side by side as one SVG document."""
    body = "\n".join(plot.svg(WIDTH * index) for index, plot in enumerate(plots))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(plots)}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH * len(plots)} {HEIGHT}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def cdf(values: Iterable[float], points: int = 60) -> list[Point]:
    """Share of values at most x, thinned to about so many points."""
    ordered = sorted(values)
    count = len(ordered)
    picks = sorted({round(i * (count - 1) / (points - 1)) for i in range(points)})
    return [(ordered[i], (i + 1) / count) for i in picks]
