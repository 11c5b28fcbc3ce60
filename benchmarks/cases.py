"""Where heterogeneous prefill/decode pays and where it does not: real workloads, real price books, one table and one figure.

python benchmarks/cases.py     # writes benchmarks/cases.md and docs/cases.svg, a minute or two
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import diptych as dp
from diptych.planner.plan import Option

ROOT = Path(__file__).parents[1]
KINDS = {"do not disaggregate": "colocated"}
SIZINGS = ("trace", "average")
COLOURS = {"heterogeneous": "#0f766e", "homogeneous disaggregated": "#7c5aa6", "colocated": "#8a94a3"}


@dataclass(frozen=True)
class Case:
    """One question; `name` is how the page calls it."""

    name: str
    model: str
    workload: str
    rate: float
    slo: str
    prices: str


CASES = (
    Case("chat on AWS", "Llama-3.1-70B", "azure2023_conv.csv.gz", 20, "ttft_p90<2s, tpot_p90<50ms", "aws"),
    Case("chat on Nebius", "Llama-3.1-70B", "azure2023_conv.csv.gz", 20, "ttft_p90<2s, tpot_p90<50ms", "nebius"),
    Case(
        "chat on Hyperstack", "Llama-3.1-70B", "azure2023_conv.csv.gz", 20, "ttft_p90<2s, tpot_p90<50ms", "hyperstack"
    ),
    Case("summaries on AWS", "Llama-3.1-70B", "preset:summarisation", 5, "ttft_p90<4s, tpot_p90<50ms", "aws"),
    Case("code on AWS", "Llama-3.1-8B", "azure2023_code.csv.gz", 20, "ttft_p90<1s, tpot_p90<30ms", "aws"),
    Case("agents on AWS", "gpt-oss-120b", "preset:agent", 10, "ttft_p90<4s, tpot_p90<30ms", "aws"),
)


def options(plan: dp.Plan) -> dict[str, Option | None]:
    """The best fleet of each kind."""
    return {
        "heterogeneous": plan.heterogeneous,
        "homogeneous disaggregated": plan.disaggregated,
        "colocated": plan.colocated,
    }


def bills_of(plan: dp.Plan) -> dict[str, float | None]:
    """USD/h of the best fleet of each kind."""
    return {kind: option.usd_per_hour if option else None for kind, option in options(plan).items()}


def row(case: Case, sizing: str, plan: dp.Plan) -> str:
    """One line of the table."""
    bills = bills_of(plan)
    homogeneous = min(
        (bill for kind, bill in bills.items() if bill is not None and kind != "heterogeneous"), default=None
    )
    saved = (
        "-"
        if bills["heterogeneous"] is None or homogeneous is None
        else f"{1 - bills['heterogeneous'] / homogeneous:+.0%}".replace("+0%", "0%")
    )
    cells = [f"{bill:.2f}" if bill is not None else "-" for bill in bills.values()]
    asked = f"{case.model}, {case.workload}, {case.rate:g}/s, {case.slo}"
    return f"| {case.name} | {asked} | {sizing} | {' | '.join(cells)} | {saved} | {plan.verdict.answer}: {plan.best.label} |"


def page(answers: list[tuple[Case, str, dp.Plan]]) -> str:
    """The results page."""
    pairs = [(case, savings) for case, _, plan in answers for savings in plan.verdict.savings]
    most = max(pairs, key=lambda pair: pair[1].per_hour)
    return "\n".join(
        [
            "# Where it pays",
            "",
            "Best fleet of each kind at the same load and SLO, in USD/h; *saves* compares the best heterogeneous fleet with the",
            "best homogeneous one of either kind. *Sized for* the whole `trace` with its rushes (the default), or for its",
            "`average` rate; presets have no rushes. Written by `python benchmarks/cases.py`; price books: "
            + ", ".join(sorted({f"{plan.question.prices} of {plan.question.prices_date}" for _, _, plan in answers}))
            + ".",
            "",
            "| case | asked | sized for | heterogeneous | homogeneous disaggregated | colocated | saves | answer |",
            "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
            *(row(case, sizing, plan) for case, sizing, plan in answers),
            "",
            "## 61 % per hour, 48 % per token?",
            "",
            "These two figures are often quoted for heterogeneous prefill/decode. They are not in the text of the design-space",
            "paper (arXiv:2606.29708), and at a fixed rate a saving per hour *is* the saving per token, so both cannot hold",
            "for one workload.",
            f"The largest saving of these cases over any single baseline is {most[1].per_hour:.0%} per hour and "
            f"{most[1].per_mtok:.0%} per token ({most[0].name}, against the",
            f"best {KINDS.get(most[1].against, most[1].against)} fleet).",
            "Against the *better* homogeneous fleet, the honest baseline, see the column above.",
            "",
        ]
    )


def figure(answers: list[tuple[Case, str, dp.Plan]]) -> str:
    """The bars of the table as an SVG that reads on light and dark pages."""
    widest = max(o.usd_per_hour for _, _, plan in answers for o in options(plan).values() if o)
    lines, y = [], 34
    for case, sizing, plan in answers:
        lines.append(f'<text x="0" y="{y + 11}" class="name">{case.name}</text>')
        lines.append(f'<text x="0" y="{y + 27}" class="note">{case.model}, {case.rate:g}/s, {sizing}</text>')
        for kind, option in options(plan).items():
            if option is not None:
                width = 340 * option.usd_per_hour / widest
                lines.append(f'<rect x="190" y="{y}" width="{width:.1f}" height="11" rx="2" fill="{COLOURS[kind]}"/>')
                mark = " ←" if option.label == plan.best.label else ""
                lines.append(
                    f'<text x="{196 + width:.1f}" y="{y + 10}" class="note">{option.usd_per_hour:.2f}{mark}</text>'
                )
            y += 14
        y += 16
    legend = "".join(
        f'<rect x="{x}" y="6" width="11" height="11" rx="2" fill="{colour}"/>'
        f'<text x="{x + 16}" y="16" class="note">{kind}</text>'
        for x, (kind, colour) in zip((190, 310, 490), COLOURS.items(), strict=True)
    )
    style = (
        "text{font-family:system-ui,sans-serif;fill:#57606a}.name{font-size:13px;font-weight:600}.note{font-size:11px}"
        "@media(prefers-color-scheme:dark){text{fill:#b6bec9}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {y}" role="img" '
        f'aria-label="USD per hour of the best fleet of each kind"><style>{style}</style>{legend}{"".join(lines)}</svg>\n'
    )


def answered(asked: tuple[Case, str]) -> dp.Plan:
    """The plan of one case under one sizing."""
    case, sizing = asked
    workload = dp.load_workload(case.workload, rate=case.rate)
    return dp.plan(case.model, workload, case.slo, prices=case.prices, size_for=sizing)


def main() -> None:
    asked = [
        (case, sizing) for case in CASES for sizing in SIZINGS if sizing == SIZINGS[0] or "preset" not in case.workload
    ]
    with ProcessPoolExecutor(2) as pool:
        answers = [(*each, plan) for each, plan in zip(asked, pool.map(answered, asked), strict=True)]
    (ROOT / "benchmarks" / "cases.md").write_text(page(answers), encoding="utf-8")
    (ROOT / "docs" / "cases.svg").write_text(figure(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
