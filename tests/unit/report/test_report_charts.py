"""Charts tell the plan's numbers, no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_plan import colocated_plan, heterogeneous_plan, owned_plan

from diptych.planner.plan import Plan, RuleCount
from diptych.report import story
from diptych.report.chart_fleet import fleet_charts
from diptych.report.chart_pareto import pareto_charts
from diptych.report.chart_question import question_charts
from diptych.report.chart_rules import MOST_BARS, rule_chart
from diptych.report.charts import Chart

PLAN = heterogeneous_plan()


def charts(plan: Plan) -> dict[str, Chart]:
    return {
        chart.key: chart
        for chart in (*pareto_charts(plan), *fleet_charts(plan), *question_charts(plan), rule_chart(plan))
    }


def data(chart: Chart, layer: int = 0) -> list[dict[str, Any]]:
    rows = chart.spec["layer"][layer]["data"]["values"]
    assert isinstance(rows, list)
    return rows


def test_all_that_was_promised_is_drawn() -> None:
    assert set(charts(PLAN)) == {
        "pareto-tpot", "pareto-ttft", "pareto-goodput", "cost", "utilisation", "ttft", "memory", "rules", "flips", "lengths",
    }  # fmt: skip
    assert "flips" not in charts(colocated_plan())
    assert not {"cost", "pareto-tpot"} & set(charts(owned_plan()))


def test_cost_bars_add_up_to_the_bill_of_each_fleet() -> None:
    rows = data(charts(PLAN)["cost"])
    for fleet in {row["fleet"] for row in rows}:
        option = next(o for name, o in story.named_options(PLAN) if name.split(",")[0].split()[-1] in fleet)
        assert sum(row["usd"] for row in rows if row["fleet"] == fleet) == pytest.approx(option.usd_per_hour)


def test_memory_bars_add_up_to_the_memory_of_a_worker() -> None:
    rows = data(charts(PLAN)["memory"])
    for pool in PLAN.best.pools:
        assert sum(row["gb"] for row in rows if row["role"] == pool.role) * 1e9 == pytest.approx(pool.memory_bytes)


def test_rule_bars_and_sized_designs_add_up_to_the_product() -> None:
    assert sum(row["n"] for row in data(charts(PLAN)["rules"])) == PLAN.space.cartesian


def test_many_rules_are_summed_up_in_the_drawing_and_kept_in_the_table() -> None:
    rules = tuple(RuleCount(f"rule_{i}", "a reason", 10 + i) for i in range(30))
    chart = rule_chart(replace(PLAN, space=replace(PLAN.space, rules=rules)))
    drawn = [row for row in data(chart) if row["stage"] == "broke a rule"]
    assert len(drawn) == MOST_BARS + 1
    assert sum(row["n"] for row in drawn) == sum(rule.dropped for rule in rules)
    assert sum(row[0] == "broke a rule" for row in chart.rows) == 30


def test_slo_line_is_at_the_limit_and_bands_surround_the_rings() -> None:
    layers = charts(PLAN)["pareto-tpot"].spec["layer"]
    assert layers[0]["data"]["values"] == [{"tpot": 50.0}]
    rings = next(l["data"]["values"] for l in layers if l["mark"].get("fill") == "var(--card)")  # noqa: E741
    assert rings[0]["low"] == pytest.approx(PLAN.best.tpot.p90 * 1e3 * (1 - PLAN.best.tpot.trust.band))
    assert rings[0]["high"] == pytest.approx(PLAN.best.tpot.p90 * 1e3 * (1 + PLAN.best.tpot.trust.band))


def test_stretches_end_at_the_nearest_flips_and_zero_stays_in_the_table() -> None:
    closer = replace(PLAN.sensitivity[0], at=1.2)
    chart = charts(replace(PLAN, sensitivity=(*PLAN.sensitivity, closer)))["flips"]
    rows = {row["axis"]: row for row in data(chart)}
    assert rows["price of H20-96GB"] == {"axis": "price of H20-96GB", "from": 1.2 / 1.8, "to": 3.34 / 1.8}
    assert (rows["prompt length"]["from"], rows["prompt length"]["to"]) == (0.1, 10.0)
    assert "prefix hit rate" not in rows
    assert any(row[0] == "prefix hit rate" and row[2] == "above 72 %" for row in chart.rows)


def test_every_colour_is_a_name_of_the_style_sheet() -> None:
    from importlib.resources import files

    style = files("diptych.report").joinpath("assets/report.css").read_text(encoding="utf-8")
    named = set()

    def walk(value: Any) -> None:
        if isinstance(value, str) and value.startswith("var("):
            named.add(value[4:-1])
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(part)

    for chart in charts(PLAN).values():
        walk(chart.spec)
    assert named
    assert all(style.count(f"{name}:") == 4 for name in named), [n for n in named if style.count(f"{n}:") != 4]


def test_table_rows_have_their_columns() -> None:
    for plan in (PLAN, colocated_plan()):
        for chart in charts(plan).values():
            assert {len(row) for row in chart.rows} == {len(chart.columns)}, chart.key
