"""One call from what a user names to a `Workload`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diptych.errors import Finding, InvalidInput, InvalidTrace, did_you_mean
from diptych.workload.arrivals import rescale
from diptych.workload.closed_forms import FORMS, fixed, lognormal
from diptych.workload.distributions import LENGTH_FIELDS, independent, read_quantiles
from diptych.workload.formats import Layout, detect
from diptych.workload.presets import BUNDLED, DATA, PRESETS, SOURCES, preset
from diptych.workload.rates import read_rates
from diptych.workload.reuse import MAX_TOUCHES, Reuse
from diptych.workload.stage import Progress
from diptych.workload.trace import Trace
from diptych.workload.workload import Arrivals, Workload

_ON_REUSE = ("prefix reuse", "cached prefixes")  # how notes on measured reuse begin
_INDEPENDENT = "ISL and OSL taken as independent: the table has their quantiles only"
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
    kept = (note for note in workload.notes if not note.startswith(_ON_REUSE))
    return replace(workload, lengths=lengths, notes=(*kept, f"prefix hit ratio of {share * 100:.3g} % as given"))


def _named(spec: str, reading: Reading, say: Say) -> Workload:
    kind, _, rest = spec.partition(":")
    if is_described(spec):
        return _FORMS[kind](rest)
    path, name, table = locate(spec, say)
    layout = detect(path, name, reading.columns)
    if layout.format == "quantile table":
        return _from_quantiles(path, name, table, layout)
    if layout.format == "rate table":
        return _from_rates(path, name, table, layout)
    return _from_trace(path, name, reading)


def is_described(spec: str) -> bool:
    """Whether `spec` is a preset or a closed form, which no file stands behind."""
    kind, sign, _ = spec.partition(":")
    return bool(sign) and kind in _FORMS


def locate(spec: str, say: Say | None = None) -> tuple[Path, str, str]:
    """The file of a spec, its name for findings, and the part after '#'. A local file comes before a bundled one."""
    for text, table in ((spec, ""), (*spec.rsplit("#", 1),)) if "#" in spec else ((spec, ""),):
        path, kind = _on_disk(text)
        if kind == "file":
            return path, path.name, table
        if kind == "folder":
            raise InvalidTrace(Finding(text, "a folder, not a file", FORMS))
        if kind:
            raise InvalidTrace(Finding(text, "a pipe or a device, and a trace is read more than once", "a file"))
        if path.name == text and text in BUNDLED:
            (say or (lambda _: None))(f"{text}: no such file here, the bundled one is used")
            return DATA / text, text, table
    named = [*BUNDLED, *(f"preset:{name}" for name in PRESETS)]
    hint = did_you_mean(spec, [*named, *_neighbours(Path(spec))])
    hint = hint if hint.endswith("?") else f"known here: {', '.join(named)}"
    shown = spec if len(spec) <= 200 else f"{spec[:200]}…"
    raise InvalidTrace(Finding(shown or "--workload", "no such workload", FORMS, hint))


def _on_disk(text: str) -> tuple[Path, str]:
    """The path of a text and what lies there: 'file', 'folder', 'other', or '' for nothing or no possible path."""
    path = Path(text)
    try:
        path = path.expanduser()
        kinds = (("file", path.is_file()), ("folder", path.is_dir()), ("other", path.exists()))
    except (OSError, RuntimeError):  # too long a name, no such user
        return path, ""
    return path, next((kind for kind, there in kinds if there and text), "")


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
    model = _pick(model, [key for key, fields in tables.items() if set(fields) >= set(LENGTH_FIELDS)], name)
    lengths = independent(*(tables[model][field] for field in LENGTH_FIELDS))
    arrivals = Arrivals(0.0, note="no arrival times: give a rate")
    source = f"{SOURCES.get(name, name)}, quantile table"
    return Workload(
        f"{name}#{model}", lengths, arrivals, 0, source, (_INDEPENDENT, "prefix reuse unknown; none assumed")
    )


def _from_rates(path: Path, name: str, model: str, layout: Layout) -> Workload:
    """Rates of a table with the lengths of the bundled quantile table's model of the same name."""
    rates, lengths_of = read_rates(path, name, layout), "servegen_length_quantiles.csv.gz"
    known = read_quantiles(DATA / lengths_of, lengths_of, detect(DATA / lengths_of, lengths_of))
    if not set(rates) & set(known):
        mean = ", ".join(f"{key} {table.arrivals().rate:.4g}/s" for key, table in rates.items())
        hint = f"give lengths as --workload and the mean rate as --rate: {mean}"
        raise InvalidTrace(Finding(name, "a rate table: rates without lengths", f"a model of {lengths_of}", hint))
    model = _pick(model, [key for key in rates if key in known], name)
    lengths = independent(*(known[model][field] for field in LENGTH_FIELDS))
    notes = (f"lengths of {model} from the bundled {lengths_of}", _INDEPENDENT, "prefix reuse unknown; none assumed")
    found = rates[model]
    return Workload(f"{name}#{model}", lengths, found.arrivals(), found.requests, f"{name}, rate table", notes)


def _pick(model: str, usable: Sequence[str], name: str) -> str:
    """The table asked for, or the only one there is."""
    if model in usable or (not model and len(usable) == 1):
        return model or usable[0]
    problem = (
        f"no table {model!r} that can be used"
        if model
        else "several tables in it"
        if usable
        else "no table of both lengths"
    )
    hint = did_you_mean(model, usable) if model else ""
    raise InvalidTrace(Finding(name, problem, f"{name}#MODEL with one of {', '.join(usable)}", hint))


_FORMS: Mapping[str, Callable[[str], Workload]] = {"preset": preset, "fixed": fixed, "lognormal": lognormal}
