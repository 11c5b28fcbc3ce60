"""The report: one HTML file that runs under its own strict policy and asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from diptych.planner.plan import BoundaryPlan, Option, Plan
from diptych.report import story, words
from diptych.report.chart_fleet import fleet_charts
from diptych.report.chart_pareto import pareto_charts
from diptych.report.chart_question import question_charts
from diptych.report.chart_rules import rule_chart
from diptych.report.charts import CONFIG, Chart
from diptych.report.verified import counted, verified_rows
from diptych.units import format_bandwidth, format_bytes, format_seconds, format_usd

_PACKAGE = files("diptych.report")
_VENDORED = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
_MARKS = {"yes": "yes", "no": "no", "partly": "watch", "unknown": "watch"}


@dataclass(frozen=True, slots=True)
class Fact:
    """A number of the strip under the headline, and the line that explains it."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the comparison."""

    name: str
    option: Option
    lines: tuple[str, ...]
    why_not: str
    gain: str
    chosen: bool


def render(plan: Plan, command: str = "") -> str:
    """The whole page. `command` is the line that makes the same plan again, shown and offered for copying."""
    code, style = scripts(), asset("assets/report.css")
    groups = _charts(plan)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            plan=plan,
            command=command,
            policy=content_policy(code, style),
            style=Markup(style),  # noqa: S704 our own file, by its hash in the policy
            scripts=[Markup(script) for script in code],  # noqa: S704 likewise
            plan_json=embedded_json(plan.to_dict()),
            charts_json=embedded_json(_specs(groups)),
            charts=groups,
            headline=_unbroken(story.headline(plan)),
            purpose=story.purpose(plan),
            common=story.common(plan),
            prices=story.prices(plan),
            gain_title=story.gain_title(plan),
            warnings=story.warnings(plan),
            facts=facts(plan),
            compared=compared(plan),
            latencies=_latencies(plan.best),
            hinge=hinge(plan.best.boundary) if plan.best.boundary else (),
            workload=_workload(plan),
            question=_question(plan),
            axes=words.axes(plan.space),
            verified=verified_rows(plan.verification) if plan.verification else (),
            counted=counted(plan.verification) if plan.verification else "",
            marks=_MARKS,
        )
    )


def embedded_json(value: Any) -> Markup:
    """JSON that no HTML parser can mistake for markup: `<`, `>` and `&` are written as escapes."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 escaped here


def content_policy(scripts: tuple[str, ...], style: str) -> str:
    """A content security policy that runs these very scripts, applies this very style, and loads nothing."""
    allowed = " ".join(_digest(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def asset(name: str) -> str:
    """A file of the package as text."""
    return _PACKAGE.joinpath(name).read_text(encoding="utf-8")


@cache
def scripts() -> tuple[str, ...]:
    """The vendored libraries and our own script, safe inside a script element."""
    texts = [*(asset(f"vendor/{name}") for name in _VENDORED), asset("assets/report.js")]
    inline = tuple("\n".join(line for line in text.splitlines() if not line.startswith("//#")) for text in texts)
    assert not any("</script" in text or "<!--" in text for text in inline), "a script would end its own element"
    return inline


@cache
def environment() -> Environment:
    """The templates of `assets`, everything escaped unless marked as safe."""
    made = Environment(
        loader=FunctionLoader(lambda name: asset(f"assets/{name}")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        percent=lambda share: _glued(words.percent(share)),
        count=words.count,
        plural=words.plural,
        sentence=words.sentence,
        member_line=words.member_line,
        rented=words.rented,
        pool_formats=words.pool_formats,
        wire=words.wire,
        trust=words.trust,
        power=words.power,
        usd=words.money,
        seconds=format_seconds,
    )
    return made


def _charts(plan: Plan) -> dict[str, tuple[Chart, ...]]:
    asked = {chart.key: (chart,) for chart in question_charts(plan)}
    return {
        "pareto": pareto_charts(plan),
        "fleet": fleet_charts(plan),
        "space": (rule_chart(plan),),
        "flips": asked.get("flips", ()),
        "lengths": asked.get("lengths", ()),
    }


def _specs(groups: dict[str, tuple[Chart, ...]]) -> dict[str, Any]:
    return {"config": CONFIG, "specs": {chart.key: chart.spec for group in groups.values() for chart in group}}


def facts(plan: Plan) -> tuple[Fact, ...]:
    """The strip under the headline."""
    best = plan.best
    size = f"{words.size(best)}, {words.power(best.power_w)}"
    parts = f"{format_usd(best.usd_per_mtok_input)} input, {format_usd(best.usd_per_mtok_total)} all tokens"
    cost = (
        Fact("Bill", f"{format_usd(best.usd_per_hour)} USD/h", size),
        Fact("Per million output tokens", f"{format_usd(best.usd_per_mtok_output)} USD", parts),
    )
    load, _, rest = story.spare(plan).removeprefix("goodput ").partition(" requests/s")
    return (
        *(cost if best.usd_per_hour else (Fact("Owned, not priced", f"{best.accelerators}", size),)),
        _latency_fact(plan, "ttft"),
        _latency_fact(plan, "tpot"),
        Fact("Goodput", f"{load} req/s", rest.strip(",; ")),
    )


def _latency_fact(plan: Plan, metric: str) -> Fact:
    """A latency at the statistic that the SLO limits, p90 without one."""
    latency = plan.best.ttft if metric == "ttft" else plan.best.tpot
    limit = words.limit(plan, metric)
    name, value = words.statistic(latency, limit.quantile if limit else 0.9)
    trust = f"{latency.trust.basis} ± {words.percent(latency.trust.band)}"
    note = f"limit {format_seconds(limit.limit)}, {trust}" if limit else trust
    return Fact(f"{metric.upper()} {name}", format_seconds(value), _glued(note))


def _unbroken(text: str) -> Markup:
    """Text whose hyphenated names stay on one line."""
    parts = (
        Markup('<span class="name">{}</span>').format(word) if "-" in word else escape(word) for word in text.split(" ")
    )
    return Markup(" ").join(parts)


def _glued(text: str) -> str:
    """Text whose signs do not part from their numbers at a line's end."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%").replace("± ", "±\N{NO-BREAK SPACE}")


def compared(plan: Plan) -> tuple[Row, ...]:
    """The answer, the baselines that are always shown, then other runners-up: each design once."""
    named = story.named_options(plan)
    rows = [_row(plan, name[0].upper() + name[1:], option) for name, option in named]
    return (*rows, *(_row(plan, "Runner-up", other.option) for other in story.runners_up(plan)))


def _row(plan: Plan, name: str, option: Option) -> Row:
    lines = words.fleet_lines(option)
    chosen = option == plan.best
    return Row(
        name, option, lines, "" if chosen else story.reason_against(plan, option), story.gain(plan, option), chosen
    )


def _latencies(best: Option) -> tuple[tuple[str, Any], ...]:
    named = (("TTFT", best.ttft), ("TTFT, decoded", best.ttft_decode), ("TPOT", best.tpot), ("End to end", best.e2e))
    return named if best.boundary else tuple(pair for pair in named if pair[0] != "TTFT, decoded")


def hinge(boundary: BoundaryPlan) -> tuple[tuple[str, str], ...]:
    """The boundary in names and values."""
    local = (("stay local", f"prompts below {boundary.local_below:,} tokens"),) if boundary.local_below else ()
    return (
        ("placement", str(boundary.placement)),
        *local,
        ("path", f"{boundary.link} ({boundary.kind}), {format_bandwidth(boundary.bandwidth)}"),
        ("narrowest part", boundary.limited_by),
        ("busy", words.percent(boundary.utilisation)),
        ("would do", format_bandwidth(boundary.required_bandwidth)),
        ("KV on the wire", words.wire(boundary)),
        ("per request", f"{format_bytes(boundary.wire_bytes_mean)} mean, {format_bytes(boundary.wire_bytes_p99)} p99"),
        ("transfer", f"{format_seconds(boundary.transfer_p90)} p90 alone on the wire"),
        ("seen in TTFT", f"{format_seconds(boundary.exposed_p90)} p90, queue included"),
        ("conversion", f"{format_seconds(boundary.conversion_p90)} p90"),
        ("ownership", f"{boundary.ownership}, {boundary.overlap}"),
        ("engine", boundary.engine_support),
    )


def _workload(plan: Plan) -> tuple[tuple[str, str], ...]:
    asked = plan.question.workload
    arrivals = "measured" if asked.arrivals_measured else "assumed"
    return (
        ("name", asked.name),
        ("source", asked.source or "not given"),
        ("requests seen", f"{asked.requests:,}" if asked.requests else "none: described, not recorded"),
        ("rate", f"{words.count(asked.rate)} requests/s"),
        ("arrivals", f"gaps vary by {asked.arrival_cv:.2g} (1 is Poisson), {arrivals}"),
        ("prompt tokens", _quantiles(asked.isl_mean, asked.isl_p50, asked.isl_p90, asked.isl_p99)),
        ("answer tokens", _quantiles(asked.osl_mean, asked.osl_p50, asked.osl_p90, asked.osl_p99)),
        ("prefix hits", words.percent(asked.prefix_hit_rate)),
    )


def _quantiles(mean: float, p50: float, p90: float, p99: float) -> str:
    return f"mean {mean:,.0f}, p50 {p50:,.0f}, p90 {p90:,.0f}, p99 {p99:,.0f}"


def _question(plan: Plan) -> tuple[tuple[str, str], ...]:
    asked = plan.question
    owned = words.listed(f"{name}: {number}" for name, number in (asked.inventory or {}).items())
    pinned = words.listed(f"{name} = {value}" for name, value in asked.pins.items())
    budget = f"{format_usd(asked.budget_usd_per_hour)} USD/h" if asked.budget_usd_per_hour is not None else ""
    optional = (("budget", budget), ("inventory", owned), ("pinned", pinned))
    return (
        ("model", asked.model),
        ("SLO", words.slo(plan)),
        ("prices", story.prices(plan)),
        ("asked for", str(asked.goal)),
        *((name, value) for name, value in optional if value),
    )
