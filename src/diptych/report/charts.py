"""Charts as data: one `Chart` is a Vega-Lite specification, its words, and the same numbers as a table.

Colours are CSS variables (`var(--prefill)`), so a page changes between light, dark and print without drawing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif'
ROLE_COLOURS = {
    "prefill": "var(--prefill)",
    "decode": "var(--decode)",
    "colocated": "var(--colo)",
    "link": "var(--hinge)",
}
SERIES_COLOURS = ("var(--hetero)", "var(--homodis)", "var(--colo)")

_TEXT = {"labelFont": SANS, "titleFont": SANS, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500}
CONFIG: dict[str, Any] = {
    "background": None,
    "font": SANS,
    "padding": 2,
    "view": {"stroke": None},
    "axis": {
        **_TEXT,
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "titlePadding": 8,
        "labelPadding": 5,
        "labelLimit": 220,
    },
    "axisQuantitative": {"labelOverlap": "greedy", "labelSeparation": 8},
    "axisY": {"domain": False, "ticks": False},
    "legend": {
        **_TEXT,
        "labelColor": "var(--ink)",
        "title": None,
        "orient": "top",
        "direction": "horizontal",
        "columns": {"expr": "width < 130 ? 1 : width < 330 ? 2 : 3"},
        "symbolSize": 90,
        "labelLimit": 260,
        "offset": 8,
        "layout": {"top": {"anchor": "start", "bounds": "full"}},
    },
    "text": {"font": SANS, "fontSize": 12, "fill": "var(--ink)"},
    "bar": {"cornerRadius": 2},
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure: `columns` and `rows` repeat its numbers for readers without scripts, screens or patience;
    `keep_table` leaves them in sight beside the drawing."""

    key: str
    title: str
    caption: str
    spec: dict[str, Any]
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    wide: bool = False
    keep_table: bool = False


def specification(description: str, height: Any, **parts: Any) -> dict[str, Any]:
    """A Vega-Lite specification as wide as its place."""
    return {
        "$schema": SCHEMA,
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **parts,
    }


def values(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows inline: a report fetches nothing."""
    return {"values": list(rows)}


def quantity(field: str, title: str | None, **more: Any) -> dict[str, Any]:
    """A quantitative channel."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def category(field: str, order: Sequence[str] | None = None, **more: Any) -> dict[str, Any]:
    """A nominal channel, in the order given."""
    return {"field": field, "type": "nominal", "title": None, **({"sort": list(order)} if order else {}), **more}


def palette(names: Sequence[str], colours: Sequence[str]) -> dict[str, Any]:
    """A colour scale that gives each name its own colour."""
    return {"domain": list(names), "range": list(colours)}


def marked(
    channel: str, field: str, at: float, label: str, colour: str = "var(--bad)", y: int = 8
) -> list[dict[str, Any]]:
    """A dashed line at a limit or a percentile, its label to the left of it."""
    data = values([{field: at}])
    where = {channel: {"field": field, "type": "quantitative"}}
    return [
        {
            "data": data,
            "mark": {"type": "rule", "strokeDash": [5, 4], "strokeWidth": 1.5, "color": colour},
            "encoding": where,
        },
        {
            "data": data,
            "mark": {"type": "text", "fontSize": 11, "fill": colour, "align": "right", "dx": -5, "y": y},
            "encoding": {**where, "text": {"value": label}},
        },
    ]
