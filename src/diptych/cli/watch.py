"""`diptych watch`: what a gateway measures against the plan behind it: stay, or the move and what it saves."""

from __future__ import annotations

import json
import math
import re
import ssl
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from diptych.catalog.catalog import Catalog
from diptych.cli.gateway_data import TlsCa, trust
from diptych.cli.output import err, out, print_json, progress
from diptych.errors import Finding, InvalidInput, NoFeasibleDesign, Unsupported
from diptych.planner.pins import Pins
from diptych.planner.plan import Option, Plan
from diptych.planner.planning import plan as make_plan
from diptych.units import format_seconds, format_usd, parse_seconds
from diptych.workload.lengths import Lengths
from diptych.workload.load import load_workload
from diptych.workload.workload import Arrivals, Workload

LEAST_REQUESTS = 30
WORTH = 0.05
"""Less than this share of the bill is not worth a move: the plan itself is not that exact."""
MAX_ANSWER = 16 << 20
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_LE = re.compile(r'\ble="([^"]+)"')

Counts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """A window of a gateway's counters: seconds, requests that ended, mean lengths (tokens), 90th percentiles (s)."""

    seconds: float
    requests: float
    isl: float
    osl: float
    ttft_p90: float | None
    tpot_p90: float | None

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """`stay` or `move`, why, and USD an hour that the move saves (negative: costs); None where nothing is priced."""

    verdict: str
    why: str
    standing: str
    to: str = ""
    saves_usd_per_hour: float | None = None


def watch(
    run: Annotated[Path, typer.Argument(help="A folder of diptych plan, or its plan.json.", metavar="RUN")],
    metrics: Annotated[str, typer.Option("--metrics", help="The gateway's or a vLLM server's metrics.", metavar="URL")],
    window: Annotated[str, typer.Option("--window", help="How long to measure: 60s.", metavar="TIME")] = "60s",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="The key, where metrics need one.", show_default=False)
    ] = None,
    tls_ca: TlsCa = None,
    prices: Annotated[
        str | None, typer.Option("--prices", help="Another price book than the plan's.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure rate, lengths and latencies for a while, ask the planner again with them, and say whether to stay.

    Exit code 0 to stay, 3 to move. The plan's accelerators are asked first whether they carry what was
    measured; then the cheapest fleet for it is sought anew.

    Example: diptych watch runs/conv --metrics http://127.0.0.1:8000/metrics
    """
    plan, found = Plan.load(run), _inputs(run)
    seconds = _seconds(window)
    tls = trust(tls_ca)
    first = counts_of(fetch(metrics, token_file, tls))
    err.print(f"measuring for {window}", markup=False)
    began = time.monotonic()
    time.sleep(seconds)
    seen = measured(first, counts_of(fetch(metrics, token_file, tls)), time.monotonic() - began)
    workload, notes = workload_of(plan, found, seen)
    with progress("planning", as_json):
        verdict = judge(plan, workload, seen, prices or found.get("prices"))
    _show(plan, seen, verdict, notes, as_json)
    if verdict.verdict == "move":
        raise typer.Exit(3)


# --- measuring ------------------------------------------------------------------------------------------------------------


def fetch(url: str, token_file: Path | None, tls: ssl.SSLContext | None = None) -> str:
    """The exposition at a URL. Raises InvalidInput for an address that is none, Unsupported where nobody answers."""
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(Finding("--metrics", f"is {url[:120]!r}", "http://HOST:PORT/metrics"))
    request = urllib.request.Request(url)  # noqa: S310 - http or https, as checked above
    if token_file is not None:
        try:
            request.add_header("authorization", f"Bearer {token_file.read_text(encoding='utf-8').strip()}")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise InvalidInput(Finding("--token-file", f"cannot be used: {type(error).__name__}")) from None
    try:
        with urllib.request.urlopen(request, timeout=10, context=tls) as answer:  # noqa: S310 - as above
            return str(answer.read(MAX_ANSWER).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        raise InvalidInput(
            Finding("--metrics", f"answered {error.code}", "the address and key of its metrics")
        ) from None
    except OSError as error:
        raise Unsupported(f"nobody answers at {url}: {getattr(error, 'reason', error)}") from None


def counts_of(text: str) -> dict[str, float]:
    """Counters by name, summed over their labels; buckets of histograms by name and bound."""
    found: dict[str, float] = defaultdict(float)
    for name, labels, value in _LINE.findall(text):
        bound = _LE.search(labels) if name.endswith("_bucket") else None
        try:
            key, number = f"{name}:{float(bound[1])}" if bound else name, float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            found[key] += number
    return dict(found)


def measured(before: Counts, after: Counts, seconds: float) -> Measured:
    """What happened between two looks.

    Raises:
        Unsupported: the server was started anew between them, or too few requests ended.
    """

    def more(name: str) -> float:
        grown = after.get(name, 0.0) - before.get(name, 0.0)
        if grown < 0:
            raise Unsupported("the gateway was started anew while it was measured; measure again")
        return grown

    requests = more("vllm:request_success_total")
    if requests < LEAST_REQUESTS:
        raise Unsupported(f"{requests:g} requests ended in {seconds:.0f} s; {LEAST_REQUESTS} or more say something")
    return Measured(
        seconds,
        requests,
        more("vllm:prompt_tokens_total") / requests,
        more("vllm:generation_tokens_total") / requests,
        _percentile(before, after, "vllm:time_to_first_token_seconds"),
        _percentile(before, after, "vllm:request_time_per_output_token_seconds"),
    )


def _percentile(before: Counts, after: Counts, name: str, share: float = 0.9) -> float | None:
    """A percentile of a histogram, straight within its bucket; None where nothing was counted or it is beyond the last bound."""
    head = f"{name}_bucket:"
    bounds = sorted(float(key.removeprefix(head)) for key in after if key.startswith(head))
    totals = [after[f"{head}{bound}"] - before.get(f"{head}{bound}", 0.0) for bound in bounds]
    if not totals or totals[-1] <= 0:
        return None
    place = next(n for n, total in enumerate(totals) if total >= share * totals[-1])
    low, below = (bounds[place - 1], totals[place - 1]) if place else (0.0, 0.0)
    if bounds[place] == float("inf"):
        return None
    return low + (bounds[place] - low) * (share * totals[-1] - below) / (totals[place] - below)


# --- asking again ---------------------------------------------------------------------------------------------------------


def workload_of(plan: Plan, inputs: Mapping[str, Any], seen: Measured) -> tuple[Workload, tuple[str, ...]]:
    """The plan's own workload, stretched to the measured means and rate; lengths that are all alike where it is not at hand."""
    arrivals = Arrivals(seen.rate, max(plan.question.workload.arrival_cv, 0.0))
    try:
        known = load_workload(str(inputs["workload"]), seen.rate)
    except (InvalidInput, KeyError, OSError):
        note = "the plan's workload is not at hand: every request is taken as of the measured mean lengths"
        return Workload("measured", Lengths.fixed(seen.isl, max(seen.osl, 1.0)), arrivals), (note,)
    lengths = known.lengths
    wide, tall = seen.isl / lengths.mean_isl, seen.osl / lengths.mean_osl
    stretched = Lengths(
        np.maximum(lengths.isl * wide, 1.0), np.maximum(lengths.osl * tall, 1.0), lengths.cached * wide, lengths.weight
    )
    return replace(known, name="measured", lengths=stretched, reuse=None), ()


def judge(plan: Plan, workload: Workload, seen: Measured, prices: str | None) -> Verdict:
    """Whether the plan's fleet carries what was measured, and whether another one would: for less, or of what is owned."""
    question = plan.question
    asked = {"catalog": Catalog.load(), "prices": prices or None, "size_for": question.size_for or "average"}
    carried, held = _carried(plan, workload, seen.rate, asked)
    owned = question.inventory
    aim = {"inventory": dict(owned)} if owned else {"rate": seen.rate}
    if owned and carried >= seen.rate:
        return Verdict("stay", held, plan.best.label)
    try:
        fresh = make_plan(question.model, workload, question.slo, pins=Pins(**kept(plan)), **aim, **asked).best  # type: ignore[arg-type]
    except NoFeasibleDesign as error:
        return Verdict(
            "stay", f"no other fleet keeps the SLO under what was measured ({error}); {held}", plan.best.label
        )
    if owned and fresh.goodput < seen.rate:
        most = f"the most that is carried by what is owned is {fresh.goodput:.3g} requests/s, as {fresh.label}"
        return Verdict("stay", f"more accelerators are needed: {most}; {held}", plan.best.label)
    saves = plan.best.usd_per_hour - fresh.usd_per_hour if plan.best.usd_per_hour and fresh.usd_per_hour else None
    if carried < seen.rate:
        return Verdict("move", f"it is too small: {held}", plan.best.label, fresh.label, saves)
    if saves is not None and saves > WORTH * plan.best.usd_per_hour and fresh.label != plan.best.label:
        return Verdict("move", f"the same for less; {held}", plan.best.label, fresh.label, saves)
    return Verdict("stay", held, plan.best.label, saves_usd_per_hour=saves)


def _carried(plan: Plan, workload: Workload, rate: float, asked: Mapping[str, Any]) -> tuple[float, str]:
    """Requests/s within the SLO that the plan's accelerators carry of this workload, and how that is said.

    In the best precisions and shapes for it, which need no other accelerators than those that run.
    """
    owned: dict[str, int] = defaultdict(int)
    for pool in plan.best.pools:
        for member in pool.members:
            owned[member.accelerator] += member.accelerators
    question, pins = plan.question, pins_of(plan.best, **kept(plan))
    try:
        best = make_plan(question.model, workload, question.slo, inventory=owned, pins=pins, **asked).best
    except NoFeasibleDesign as error:
        return (
            0.0,
            f"its accelerators keep the SLO in no shape and precision ({error}), {rate:.3g} requests/s are asked",
        )
    return best.goodput, f"its accelerators carry {best.goodput:.3g} requests/s within the SLO, {rate:.3g} are asked"


def kept(plan: Plan) -> dict[str, Any]:
    """What of the plan's own pins says where and on what it may run at all."""
    return {name: plan.question.pins[name] for name in ("engine", "provider", "region") if name in plan.question.pins}


def pins_of(option: Option, **more: Any) -> Pins:
    """The accelerators of a sized design by role; precisions and shapes may change, which needs no other machines."""
    pins: dict[str, Any] = {"placement": str(option.placement), **more}
    for pool in option.pools:
        named = ",".join(dict.fromkeys(member.accelerator for member in pool.members))
        pins |= dict.fromkeys(("prefill", "decode") if str(pool.role) == "colocated" else (str(pool.role),), named)
    return Pins(**pins)


def _inputs(run: Path) -> dict[str, Any]:
    """The flags that made the plan, where its folder tells them."""
    folder = run if run.is_dir() else run.parent
    try:
        flags = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))["flags"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return flags if isinstance(flags, dict) else {}


def _seconds(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise InvalidInput(Finding("--window", str(error), "a time such as 60s")) from None
    if not 0.1 <= seconds <= 86400:
        raise InvalidInput(Finding("--window", f"is {text}", "0.1 s to a day"))
    return seconds


# --- showing --------------------------------------------------------------------------------------------------------------


def _show(plan: Plan, seen: Measured, verdict: Verdict, notes: tuple[str, ...], as_json: bool) -> None:
    asked = plan.question.workload
    rows = [
        ("requests/s", f"{asked.rate:.3g}", f"{seen.rate:.3g}"),
        ("prompt tokens, mean", f"{asked.isl_mean:,.0f}", f"{seen.isl:,.0f}"),
        ("answer tokens, mean", f"{asked.osl_mean:,.0f}", f"{seen.osl:,.0f}"),
        ("TTFT p90", _time(plan.best.ttft.p90), _time(seen.ttft_p90)),
        ("TPOT p90", _time(plan.best.tpot.p90), _time(seen.tpot_p90)),
    ]
    if as_json:
        value = {
            "verdict": verdict.verdict,
            "why": verdict.why,
            "standing": verdict.standing,
            "to": verdict.to,
            "saves_usd_per_hour": verdict.saves_usd_per_hour,
            "measured": {
                name: getattr(seen, name)
                for name in ("seconds", "requests", "rate", "isl", "osl", "ttft_p90", "tpot_p90")
            },
            "notes": list(notes),
        }
        print_json(value)
        return
    table = Table("", "planned", "measured", box=None)
    for row in rows:
        table.add_row(*row)
    out.print(table)
    for note in notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    out.print(sentence(verdict), markup=False, soft_wrap=True)


def sentence(verdict: Verdict) -> str:
    """The verdict as one line."""
    if verdict.verdict == "stay":
        return f"stay with {verdict.standing}: {verdict.why}"
    saves = verdict.saves_usd_per_hour
    bill = "" if saves is None else f", {'saves' if saves >= 0 else 'costs'} {format_usd(abs(saves))} USD/h"
    return f"move from {verdict.standing} to {verdict.to}{bill}: {verdict.why}"


def _time(seconds: float | None) -> str:
    return "unknown" if seconds is None else format_seconds(seconds)
