"""One call from what a user names to a `Workload`."""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from diptych.errors import Finding, InvalidInput, InvalidTrace, did_you_mean
from diptych.units import parse_count
from diptych.workload.arrivals import rescale
from diptych.workload.checks import MAX_TOKENS
from diptych.workload.distributions import TruncatedLogNormal, independent, read_quantiles
from diptych.workload.formats import Layout, detect
from diptych.workload.lengths import Lengths
from diptych.workload.presets import BUNDLED, DATA, PRESETS, SOURCES, preset
from diptych.workload.reuse import MAX_TOUCHES, Reuse
from diptych.workload.stage import Progress
from diptych.workload.trace import Trace
from diptych.workload.workload import Arrivals, Workload

FORMS = "a file, a bundled trace's name, preset:NAME, fixed:2048x128 or lognormal:mu=9.9,sigma=1,low=128,high=131072,osl=1024"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a file: roles of columns, whether to sort or to leave empty requests out, cache size, and whom to tell."""

    columns: Mapping[str, str] | None = None
    sort: bool = False
    drop_empty: bool = False
    cache_tokens: float = math.inf
    progress: Progress | None = None


def load_workload(spec: str, rate: float | None = None, *, columns: Mapping[str, str] | None = None,
                  prefix_hit: float | None = None, cache_tokens: float = math.inf, sort: bool = False,
                  drop_empty: bool = False, say: Say | None = None, progress: Progress | None = None) -> Workload:  # fmt: skip
    """The workload that `spec` names: a trace's path, a bundled trace's name, `preset:NAME`, `fixed:…` or `lognormal:…`.

    `rate` (requests/s) stretches time. `columns` maps isl, osl, arrival and hash_ids to a file's own names. `prefix_hit` (0 to
    1) takes that share of every prompt as cached; otherwise block hashes, where a trace has them, meet an LRU cache of
    `cache_tokens`. `sort` and `drop_empty` repair files that are refused without. `say` gets what a user should hear,
    `progress` how far reading is. `arrivals.rate` is 0 where neither the source nor the caller gives one.
    Raises `InvalidInput` with every finding.
    """
    reading = Reading(columns, sort, drop_empty, cache_tokens, progress)
    workload = _named(spec, reading, say or (lambda _: None))
    if prefix_hit is not None:
        workload = with_prefix_hit(workload, prefix_hit)
    return workload if rate is None else replace(workload, arrivals=rescale(workload.arrivals, rate))


def with_prefix_hit(workload: Workload, share: float, where: str = "--prefix-hit") -> Workload:
    """The same workload with that share of every prompt cached. Raises `InvalidInput` outside 0 to 1."""
    if not 0 <= share < 1:
        raise InvalidInput(
            Finding(where, f"{share:g} is not a share of the prompt tokens", "0 up to, not including, 1")
        )
    lengths = replace(workload.lengths, cached=share * workload.lengths.isl)
    return replace(
        workload, lengths=lengths, notes=(*workload.notes, f"prefix hit ratio of {share * 100:.3g} % as given")
    )


def _named(spec: str, reading: Reading, say: Say) -> Workload:
    kind, sign, rest = spec.partition(":")
    if sign and kind in _FORMS:
        return _FORMS[kind](rest)
    path, name, table = _resolve(spec, say)
    layout = detect(path, name, reading.columns)
    if layout.format == "quantile table":
        return _from_quantiles(path, name, table, layout)
    if layout.format == "rate table":
        hint = "give lengths as --workload, and the mean rate here as --rate: " + _mean_rates(path, layout)
        raise InvalidTrace(Finding(name, "a rate table: rates without lengths", "a trace or a quantile table", hint))
    return _from_trace(path, name, reading)


def _resolve(spec: str, say: Say) -> tuple[Path, str, str]:
    """The file of a spec, its name for findings, and the part after '#'. A local file comes before a bundled one."""
    for text, table in ((spec, ""), (*spec.rsplit("#", 1),)) if "#" in spec else ((spec, ""),):
        path = Path(text).expanduser()
        if path.is_file():
            return path, path.name, table
        if text and path.is_dir():
            raise InvalidTrace(Finding(text, "a folder, not a file", FORMS))
        if path.name == text and text in BUNDLED:
            say(f"{text}: no such file here, the bundled one is used")
            return DATA / text, text, table
    named = [*BUNDLED, *(f"preset:{name}" for name in PRESETS)]
    hint = did_you_mean(spec, [*named, *_neighbours(Path(spec))])
    hint = hint if hint.endswith("?") else f"known here: {', '.join(named)}"
    raise InvalidTrace(Finding(spec or "--workload", "no such workload", FORMS, hint))


def _neighbours(path: Path) -> list[str]:
    try:
        return [str(path.parent / file.name) if path.parent != Path() else file.name for file in path.parent.iterdir()]
    except OSError:
        return []


def _from_trace(path: Path, name: str, reading: Reading) -> Workload:
    with Trace(path, name, reading.columns, sort=reading.sort, drop_empty=reading.drop_empty,
               progress=reading.progress) as trace:  # fmt: skip
        reuse, stats = trace.reuse(), trace.arrivals()
        lengths = trace.lengths(reuse, reading.cache_tokens)
        arrivals = stats.arrivals() if stats else Arrivals(0.0, note=_why_no_arrivals(trace))
        return Workload(name, lengths, arrivals, trace.requests, f"{SOURCES.get(name, name)}, read as {trace.layout.format}",
                        tuple(_notes(trace, reuse, reading)), reuse)  # fmt: skip


def _why_no_reuse(trace: Trace) -> str:
    if trace.layout.blocks:
        return f"prefix reuse not measured: no block hashes, or more than {MAX_TOUCHES:,}; none assumed"
    return "prefix reuse unknown: no block hashes; none assumed"


def _why_no_arrivals(trace: Trace) -> str:
    if trace.layout.arrival:
        return "arrivals span no time: give a rate"
    return "no column of arrival times known: give a rate, or name one (columns: arrival=NAME)"


def _notes(trace: Trace, reuse: Reuse | None, reading: Reading) -> list[str]:
    notes = []
    if trace.dropped:
        notes.append(f"{trace.dropped:,} request{'s' if trace.dropped > 1 else ''} without tokens (failed) left out")
    if trace.reordered:
        notes.append(f"{trace.reordered:,} rows were earlier than the row above: sorted by arrival")
    if reuse is None:
        notes.append(_why_no_reuse(trace))
    else:
        cache = (
            "a cache that never forgets"
            if math.isinf(reading.cache_tokens)
            else f"an LRU cache of {reading.cache_tokens:,.0f} tokens"
        )
        notes.append(f"cached prefixes as in {cache}, cold at the start; a short trace understates reuse")
    return notes


def _from_quantiles(path: Path, name: str, model: str, layout: Layout) -> Workload:
    tables = read_quantiles(path, name, layout)
    usable = [key for key, fields in tables.items() if {"input_tokens", "output_tokens"} <= set(fields)]
    if model not in usable and (model or len(usable) != 1):
        problem = f"no table {model!r} with input and output lengths" if model else "several tables in it"
        raise InvalidTrace(
            Finding(name, problem, f"{name}#MODEL with one of {', '.join(usable)}", did_you_mean(model, usable))
        )
    fields = tables[model or usable[0]]
    lengths = independent(fields["input_tokens"], fields["output_tokens"])
    notes = (
        "ISL and OSL taken as independent: the table has their quantiles only",
        "prefix reuse unknown; none assumed",
    )
    arrivals = Arrivals(0.0, note="no arrival times: give a rate")
    return Workload(f"{name}#{model or usable[0]}", lengths, arrivals, 0, f"{name}, quantile table", notes)


def _mean_rates(path: Path, layout: Layout) -> str:
    """Mean rate of each model of a rate table, as a sentence's end."""
    rates: dict[str, list[float]] = {}
    with (gzip.open if layout.gzipped else open)(path, "rt", encoding="utf-8-sig", newline="") as stream:
        for row in csv.DictReader(stream):
            try:
                rates.setdefault(row["model"], []).append(float(row["total_rate_rps"]))
            except (TypeError, ValueError):
                continue
    return ", ".join(f"{model} {np.mean(values):.4g}/s" for model, values in rates.items())


def _fixed(text: str) -> Workload:
    match = re.fullmatch(r"\s*([^x×/]+)[x×/]([^x×/]+)\s*", text)
    sizes = _counts(dict(zip(("isl", "osl"), match.groups(), strict=True))) if match else {}
    if not sizes:
        raise InvalidInput(Finding("--workload", f"cannot read fixed:{text}", "fixed:ISLxOSL, such as fixed:2048x128"))
    _in_reach(sizes, ("isl", "osl"))
    return Workload(f"fixed:{text}", Lengths.fixed(sizes["isl"], sizes["osl"]), _unknown_rate(), 0, "as given")


def _lognormal(text: str) -> Workload:
    wanted = ("mu", "sigma", "low", "high", "osl")
    values = dict(part.split("=", 1) for part in text.replace(" ", "").split(",") if "=" in part)
    problems = [f"{key} is missing" for key in wanted if key not in values]
    problems += [f"{key!r} is unknown" for key in values if key not in wanted]
    if problems:
        expected = "lognormal:mu=9.9,sigma=1,low=128,high=131072,osl=1024"
        raise InvalidInput(Finding("--workload", f"lognormal: {', '.join(problems)}", expected))
    sizes = _counts(values)
    osl = _in_reach(sizes, ("low", "high", "osl"))["osl"]
    try:
        prompts = TruncatedLogNormal(sizes["mu"], sizes["sigma"], sizes["low"], sizes["high"])
    except ValueError as error:
        raise InvalidInput(Finding("--workload", f"lognormal:{text}: {error}", FORMS)) from None
    return Workload(f"lognormal:{text}", prompts.lengths(osl), _unknown_rate(), 0, "as given")


def _counts(texts: Mapping[str, str]) -> dict[str, float]:
    findings, values = [], {}
    for key, text in texts.items():
        try:
            values[key] = parse_count(text)
        except ValueError as error:
            findings.append(Finding("--workload", f"{key}: {error}", "a count such as 2048 or 32k"))
    if findings:
        raise InvalidInput(findings)
    return values


def _in_reach(sizes: dict[str, float], keys: Sequence[str]) -> dict[str, float]:
    """The sizes, if each is a number of tokens that a model can have."""
    wrong = [Finding("--workload", f"{key} of {sizes[key]:g} tokens", f"1 to {MAX_TOKENS:,} tokens")
             for key in keys if not 1 <= sizes[key] <= MAX_TOKENS]  # fmt: skip
    if wrong:
        raise InvalidInput(wrong)
    return sizes


def _unknown_rate() -> Arrivals:
    return Arrivals(0.0, note="Poisson; no rate: give one")


_FORMS: Mapping[str, Callable[[str], Workload]] = {"preset": preset, "fixed": _fixed, "lognormal": _lognormal}
