"""What a terminal shows, as golden text at 80 columns."""

from __future__ import annotations

import doctest
import io
import re
from dataclasses import replace
from types import ModuleType

import pytest
from kept import FOLDER, same
from rich.console import Console, RenderableType
from sample_plan import colocated_plan, heterogeneous_plan, hostile_plan, owned_plan

from diptych.cli import plan_inputs
from diptych.errors import InvalidInput
from diptych.planner.plan import Goal, Plan, json_schema
from diptych.report import story, words
from diptych.report.chart_pareto import pareto_charts
from diptych.report.explain import explain_text, explanation, why_not
from diptych.report.folder import as_json
from diptych.report.html import render
from diptych.report.tables import plan_text
from diptych.report.terminal_plot import pareto_plot


def printed(body: RenderableType, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(body)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["heterogeneous", "colocated"])
def test_plan_text(name: str) -> None:
    plan = heterogeneous_plan() if name == "heterogeneous" else colocated_plan()
    same(f"plan_{name}.txt", printed(plan_text(plan, ("runs/conv/plan.json", "runs/conv/report.html"))))


def test_explain_text() -> None:
    same("explain_heterogeneous.txt", printed(explain_text(heterogeneous_plan())))


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_escape_reaches_a_pipe(width: int) -> None:
    text = printed(plan_text(heterogeneous_plan()), width) + printed(explain_text(heterogeneous_plan()), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_names_with_markup_are_shown_as_they_are() -> None:
    plan = heterogeneous_plan()
    odd = replace(plan, verdict=replace(plan.verdict, reason="[bold]not markup[/bold]"))
    assert "[bold]not markup[/bold]" in printed(plan_text(odd))
    assert "alert" in printed(plan_text(hostile_plan()))


def test_headline_names_the_strongest_rival_not_the_weakest() -> None:
    assert story.headline(heterogeneous_plan()) == (
        "Prefill on H100-SXM-80GB, decode on H20-96GB: 31 % cheaper than the best homogeneous disaggregated fleet"
    )
    assert story.headline(colocated_plan()).startswith("Do not disaggregate, run H100-SXM-80GB colocated: 4 % cheaper")


def test_headline_of_a_budget_compares_goodput() -> None:
    plan = heterogeneous_plan()
    question = replace(plan.question, goal=Goal.BUDGET, budget_usd_per_hour=60.0)
    asked = replace(plan, question=question, best=replace(plan.best, goodput=26.0), heterogeneous=None)
    assert story.headline(asked).endswith("26 requests/s, 11 % more than the best homogeneous colocated fleet")
    assert story.purpose(asked).startswith("for 60.00 USD/h")
    assert story.gain(asked, plan.best) == "+11 %"
    assert "costs no more than the budget" in printed(plan_text(asked))


def test_an_inventory_is_told_without_prices_and_with_every_pool() -> None:
    plan = owned_plan()
    same("plan_owned.txt", printed(plan_text(plan)))
    assert "against TPOT" not in printed(plan_text(plan))
    assert not pareto_charts(plan)
    page = render(plan)
    assert "Owned, not priced" in page
    assert [page.count(f'<div class="panel {role}">') for role in ("prefill", "decode", "colocated")] == [1, 1, 1]
    assert "0.00 USD" not in re.sub(r"<script.*", "", page, flags=re.DOTALL)


def test_what_does_not_fit_the_budget_is_no_runner_up() -> None:
    plan = heterogeneous_plan()
    assert [other.option.usd_per_hour for other in story.runners_up(plan)] == [37.4]
    asked = replace(plan, question=replace(plan.question, goal=Goal.BUDGET, budget_usd_per_hour=36.0))
    assert story.runners_up(asked) == ()


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.2, "20 % cheaper than"), (-0.2, "20 % dearer than"), (-3.7, "4.7 times the price of"), (0.0, "as cheap as")],
)
def test_headline_of_a_pinned_pair_says_what_the_pin_costs(share: float, told: str) -> None:
    plan = heterogeneous_plan()
    (one, _) = plan.verdict.savings
    pinned = replace(plan, verdict=replace(plan.verdict, savings=(replace(one, per_hour=share, per_mtok=share),)))
    assert f": {told} the best colocated fleet" in story.headline(pinned)


def test_headline_without_a_rival_claims_no_saving() -> None:
    plan = heterogeneous_plan()
    alone = replace(plan, verdict=replace(plan.verdict, savings=()))
    assert story.headline(alone) == "Prefill on H100-SXM-80GB, decode on H20-96GB"


def test_no_slo_is_said_in_words() -> None:
    plan = heterogeneous_plan()
    batch = replace(plan, question=replace(plan.question, slo="none"))
    assert words.slo(batch) == "no latency limit"
    assert "limit" not in words.objective(words.objectives(plan)[0])
    assert printed(plan_text(batch))


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("H100 tp2 -> H100 tp4", "20.10 USD/h more: An H100's FLOP idle during decode."),
        ("H100 -> H20", "is the plan."),
        ("colocated", "Prefill chunks lengthen the decode step."),
        ("5 workers", "keeps the SLO at 46.15 USD/h"),
        ("B200 -> H20", "The plan kept no design like 'B200 -> H20'"),
    ],
)
def test_why_not(asked: str, answer: str) -> None:
    assert answer in why_not(heterogeneous_plan(), asked)


@pytest.mark.parametrize("asked", ["A10", "L4", "00", "H100 -> L4"])
def test_why_not_takes_words_whole(asked: str) -> None:
    """A name that begins like another is not that other: H20 is not told of an H200."""
    assert "no design like" in why_not(heterogeneous_plan(), asked)


@pytest.mark.parametrize(("asked", "hint"), [("H10", "H100"), ("H100 -> L40X", "L40S"), ("tp", ""), ("the best", "")])
def test_why_not_refuses_what_names_nothing(asked: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint or "--why-not"):
        why_not(heterogeneous_plan(), asked)


def test_why_not_names_the_rule_whose_example_it_is() -> None:
    plan = heterogeneous_plan()
    rule = replace(plan.space.rules[0], example="tp8 over 4 KV heads on B200", dropped=3)
    plan = replace(plan, space=replace(plan.space, rules=(rule, *plan.space.rules[1:])))
    told = why_not(plan, "B200 tp8")
    assert rule.sentence.rstrip(".") in told
    assert rule.example in told


def test_explanation_holds_every_alternative_and_flip() -> None:
    plan = heterogeneous_plan()
    told = explanation(plan)
    assert [a["why_not"] for a in told["alternatives"]] == [a.why_not for a in plan.alternatives]
    assert len(told["sensitivity"]) == len(plan.sensitivity)
    assert told["trust"]["decode step"] == {"basis": "roofline", "band": 0.35, "extrapolated": True}


def test_plot_keeps_every_point_inside_and_marks_the_plan() -> None:
    plan = heterogeneous_plan()
    lines = pareto_plot(plan, width=40, height=8).splitlines()
    assert sum(line.count("@") for line in lines[:8]) == 1
    assert max(map(len, lines[:9])) <= 8 + 40


def test_plot_of_one_point() -> None:
    plan = heterogeneous_plan()
    assert "@" in pareto_plot(replace(plan, pareto=plan.pareto[:1]))


@pytest.mark.parametrize("name", ["heterogeneous", "colocated", "hostile"])
def test_plan_json(name: str) -> None:
    """The kept files are what the browser test and readers of old runs open."""
    made = {"heterogeneous": heterogeneous_plan, "colocated": colocated_plan, "hostile": hostile_plan}[name]()
    same(f"plan_{name}.json", as_json(made.to_dict()))
    assert Plan.load(FOLDER / f"plan_{name}.json") == made


def test_the_schema_in_the_docs_is_the_schema_of_the_plan() -> None:
    same("plan.schema.json", as_json(json_schema()), FOLDER.parents[1] / "docs")


def test_notebook_shows_the_plan_and_escapes_its_names() -> None:
    shown = heterogeneous_plan()._repr_html_()
    assert shown.count("<tr>") == 1 + 4
    assert "35.50" in shown
    assert "<script" not in hostile_plan()._repr_html_()
    assert "&lt;script&gt;" in hostile_plan()._repr_html_()


def test_pools_on_one_instance_share_it_and_idle_is_counted_over_the_fleet() -> None:
    best = heterogeneous_plan().best
    prefill, decode = (pool.members[0] for pool in best.pools)
    guest, host = replace(prefill, instances=0, idle_accelerators=-4), replace(decode, idle_accelerators=4)
    shared = replace(best, pools=(replace(best.pools[0], members=(guest,)), replace(best.pools[1], members=(host,))))
    assert words.rented(guest) == "shares a h100-sxm-80gb.8x of example"
    assert words.size(shared) == "16 accelerators"
    host = replace(decode, idle_accelerators=4)
    assert (
        words.size(replace(best, pools=(best.pools[0], replace(best.pools[1], members=(host,)))))
        == "16 accelerators and 4 idle"
    )


@pytest.mark.parametrize("module", [words, story, plan_inputs], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings(module: ModuleType) -> None:
    ran = doctest.testmod(module)
    assert ran.failed == 0
    assert ran.attempted > 0


@pytest.mark.parametrize(
    ("headroom", "told"), [(0.12, "12 % above the load"), (1.5, "2.5 times the load"), (296.0, "297 times the load")]
)
def test_a_large_margin_is_told_in_times(headroom: float, told: str) -> None:
    plan = heterogeneous_plan()
    assert told in story.spare(replace(plan, best=replace(plan.best, headroom=headroom)))


def test_no_power_figure_is_not_no_power() -> None:
    assert words.power(0.0) == "power unknown"
    assert words.power(4200.0) == "4.2 kW"


def test_a_colocated_pool_beside_a_pair_is_in_the_headline() -> None:
    plan = owned_plan()
    assert "A100-80GB colocated beside" in story.verdict(plan)
    pools = tuple(replace(pool, members=plan.best.pools[-1].members) for pool in plan.best.pools)
    alike = story.verdict(replace(plan, best=replace(plan.best, pools=pools)))
    assert alike == "Disaggregate on A100-80GB, run A100-80GB colocated beside"
