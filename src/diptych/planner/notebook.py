"""A plan in a notebook: a few lines of plain HTML, every name escaped, no script and no style sheet."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from diptych.units import format_seconds, format_usd

if TYPE_CHECKING:
    from diptych.planner.plan import Option, Plan

_COLUMNS = ("", "fleet", "USD/h", "USD/Mtok output", "TTFT p90", "TPOT p90")


def notebook_html(plan: Plan) -> str:
    """The headline, its reason, and the plan beside its baselines."""
    named = (
        ("plan", plan.best),
        ("best colocated", plan.colocated),
        ("best homogeneous disaggregated", plan.disaggregated),
        ("best heterogeneous", plan.heterogeneous),
    )
    rows = "".join(_row(_cells(name, option)) for name, option in named if option is not None)
    return (
        f"<div><p><b>{escape(plan.headline)}</b><br>{escape(plan.verdict.reason)}</p>"
        f"<table><thead>{_row(_COLUMNS, 'th')}</thead><tbody>{rows}</tbody></table></div>"
    )


def _cells(name: str, option: Option) -> tuple[str, ...]:
    return (
        name,
        option.label,
        format_usd(option.usd_per_hour),
        format_usd(option.usd_per_mtok_output),
        f"{format_seconds(option.ttft.p90)} ± {option.ttft.trust.band:.0%}",
        f"{format_seconds(option.tpot.p90)} ± {option.tpot.trust.band:.0%}",
    )


def _row(cells: Iterable[str], tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
