"""From the flags of `diptych plan` to a question that can be asked: every mistake found before any work is done."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Model
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.metrics.slo import SLO
from diptych.perf.model import PerfModel
from diptych.planner.ask import ask
from diptych.planner.demand import Asked, Demand, demand
from diptych.planner.pins import Pins
from diptych.report.folder import refusal
from diptych.units import parse_count, parse_usd_per_hour
from diptych.workload.formats import parse_columns
from diptych.workload.lengths import Lengths
from diptych.workload.load import load_workload
from diptych.workload.workload import Arrivals, Workload

T = TypeVar("T")
EXAMPLE_SLO = 'a text such as "ttft_p90<2s, tpot_p90<50ms"'
_PER = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = ("tp", "pp", "ep", "dp")
_SHOWN = ("as_json", "quiet")
_FORMATS = ("weights", "activations", "kv")
_ROLE_PINS = ("engine", "residency", "max_batch", "max_batched_tokens")
_MORE_PINS = (
    "codec", "converts_at", "local_below", *(f"{role}_{axis}" for role in ("prefill", "decode") for axis in _ROLE_PINS),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """A question without mistakes, ready for the planner; `inputs` records what it was read from."""

    model: Model | str
    workload: Workload
    slo: SLO
    catalog: Catalog
    prices: str | None
    rate: float | None
    budget: float | None
    inventory: dict[str, int] | None
    pins: Pins
    quality: str
    size_for: str
    out: Path | None
    command: str
    inputs: Mapping[str, Any]
    verify: Demand | None = None


class Reader:
    """Reads flags and collects what is wrong with them; a flag with nothing in it is a mistake, never a default."""

    def __init__(self, given: Mapping[str, Any], say: Callable[[str], None], progress: Any) -> None:
        self.say, self.progress = say, progress
        blank = [name for name, value in given.items() if isinstance(value, str) and not value.strip()]
        self.given: Mapping[str, Any] = {name: None if name in blank else value for name, value in given.items()}
        self.findings = [Finding(flag(name), "is empty", "a value, or to leave the flag out") for name in blank]

    def attempt(self, where: str, read: Callable[..., T], *arguments: Any, **named: Any) -> T | None:
        """What `read` returns, or None after noting what it complained about."""
        try:
            return read(*arguments, **named)
        except InvalidInput as error:
            self.findings.extend(Finding(f.where or where, f.problem, f.expected, f.hint) for f in error.findings)
        except ValueError as error:
            self.findings.append(Finding(where, str(error)))
        return None

    def value(self, name: str, read: Callable[[str], T]) -> T | None:
        """A flag read by `read`, None when it was not given."""
        text = self.given.get(name)
        return None if text is None else self.attempt(flag(name), read, text)

    def need(self, name: str, expected: str) -> None:
        if self.given.get(name) is None and not any(found.where == flag(name) for found in self.findings):
            self.findings.append(Finding(flag(name), "is missing", expected))

    def workload(self, spec: str | None, where: str = "--workload") -> Workload | None:
        """The workload `spec` names, read as the flags on reading say; None without one or after a mistake."""
        options = {
            "rate": self.value("rate", parse_rate),
            "columns": self.value("columns", parse_columns),
            "prefix_hit": self.value("prefix_hit", parse_share),
            "cache_tokens": self.value("cache_tokens", parse_capacity) or math.inf,
            "sort": bool(self.given.get("sort")),
            "drop_empty": bool(self.given.get("drop_empty")),
        }
        if spec is None:
            return None
        return self.attempt(where, load_workload, spec, say=self.say, progress=self.progress, **options)


def flag(name: str) -> str:
    """`--prefill-tp` of `prefill_tp`."""
    return "--" + ("out" if name == "out_folder" else name).replace("_", "-")


def read_request(
    given: Mapping[str, Any], perf: PerfModel, say: Callable[[str], None], progress: Any = None
) -> Request:
    """Check every flag, read every file, and resolve every name.

    Raises:
        InvalidInput: all findings at once.
    """
    reader = Reader(given, say, progress)
    reader.need("model", "a name from `diptych catalog models`, a folder or a Hugging Face config.json")
    reader.need("workload", "a trace, a bundled trace or a preset, such as preset:chat")
    given = reader.given
    workload = reader.workload(given.get("workload"))
    rate, budget = reader.value("rate", parse_rate), reader.value("budget", parse_usd_per_hour)
    inventory = _inventory(reader)
    slo = _slo(reader, workload)
    catalog = reader.attempt("--catalog", Catalog.load, *(given.get("catalog") or ())) or Catalog.load()
    pins = _pins(reader)
    _goal(reader, workload)
    out = Path(given["out_folder"]) if given.get("out_folder") else None
    if out is not None and (finding := refusal(out)):
        reader.findings.append(finding)
    quality, size_for = given.get("quality") or "8bit", given.get("size_for") or "trace"
    asked = {"prices": given.get("prices"), "rate": rate, "budget": budget, "inventory": inventory, "pins": pins}
    model = given.get("model") or next(iter(catalog.models))
    reader.attempt(
        "",
        ask,
        model,
        workload or _SOME,
        slo or SLO(),
        catalog=catalog,
        perf=perf,
        quality=quality,
        size_for=size_for,
        **asked,
    )
    if reader.findings:
        raise InvalidInput(_once(reader.findings))
    assert workload is not None
    assert slo is not None
    return Request(
        model, workload, slo, catalog, given.get("prices"), rate, budget, inventory, pins, quality, size_for, out,
        command_line(given), recorded(given), _demand(given, reader) if given.get("verify") else None,
    )  # fmt: skip


def _demand(given: Mapping[str, Any], reader: Reader) -> Demand:
    """The workload request by request, at some rate: simulations stretch it to that of each finalist."""
    share = reader.value("prefix_hit", parse_share)
    return demand(str(given["workload"]), Asked(base=1.0, requests=None, prefix_hit=share), None, reader.progress)


_SOME = Workload("placeholder", Lengths.fixed(1000, 100), Arrivals(1.0))


def _once(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


def _slo(reader: Reader, workload: Workload | None) -> SLO | None:
    """The SLO; only batch work may go without one."""
    text = reader.given.get("slo")
    if text is not None:
        return reader.attempt("--slo", SLO.parse, text)
    if workload is not None and workload.arrivals.offline:
        return SLO()
    reader.need("slo", EXAMPLE_SLO)
    return None


def _inventory(reader: Reader) -> dict[str, int] | None:
    """What is owned, as far as it can be read: the names of a text with a mistake in it are looked up all the same."""
    text = reader.given.get("inventory")
    if text is None:
        return None
    owned, findings = read_inventory(text)
    reader.findings.extend(findings)
    return owned


def _goal(reader: Reader, workload: Workload | None) -> None:
    """A rate must come from somewhere when a rate is the goal."""
    given = reader.given
    if workload is None or given.get("rate") or given.get("budget") or given.get("inventory"):
        return
    if not workload.arrivals.rate:
        problem = f"is missing, and {workload.name} says nothing of arrivals"
        reader.findings.append(Finding("--rate", problem, "requests/s such as 20, or --budget, or --inventory"))


def parse_rate(text: str) -> float:
    """Requests/s above zero from '20', '1.2k/min', '5000/h'.

    >>> parse_rate("20"), parse_rate("1.2k/min"), parse_rate("0.5/s")
    (20.0, 20.0, 0.5)
    """
    number, _, per = text.strip().partition("/")
    if per.strip() not in _PER:
        raise ValueError(f"unknown time {per!r} in {text!r}; a rate takes /s, /min, /h or /d")
    rate = parse_count(number) / _PER[per.strip()]
    if not rate > 0:
        raise ValueError(f"{text!r} is not a rate above zero")
    return rate


def parse_capacity(text: str) -> float:
    """Tokens above zero from '2M'.

    >>> parse_capacity("2M")
    2000000.0
    """
    tokens = parse_count(text)
    if not tokens > 0:
        raise ValueError(f"{text!r} is not above zero; expected tokens, such as 2M")
    return tokens


def parse_share(text: str) -> float:
    """A share from '0.3' or '30%'.

    >>> parse_share("30%"), parse_share("0.3")
    (0.3, 0.3)
    """
    value = parse_count(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    if not 0 <= value < 1:
        raise ValueError(f"{text!r} is not a share from 0 up to, not including, 1")
    return value


def parse_inventory(text: str) -> dict[str, int]:
    """Owned accelerators from 'A100-80:8, L40S:16'.

    >>> parse_inventory("A100-80:8, L40S:16")
    {'A100-80': 8, 'L40S': 16}
    """
    owned, findings = read_inventory(text)
    if findings:
        raise InvalidInput(findings)
    return owned


def read_inventory(text: str) -> tuple[dict[str, int], list[Finding]]:
    """The names of an inventory with their counts, 1 where the count is a mistake, and what cannot be read."""
    owned: dict[str, int] = {}
    findings = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(.+?)(?:\s*[:=]\s*(\S*))?", part)
        assert match is not None
        name, count = match.groups()
        if name in owned:
            findings.append(Finding("--inventory", f"{name} is given twice", "one count for each name"))
        elif not re.fullmatch(r"[0-9]+", count or "") or int(count) < 1:
            findings.append(Finding("--inventory", f"cannot read {part!r}", "NAME:COUNT such as A100-80:8"))
        owned.setdefault(name, int(count) if re.fullmatch(r"0*[1-9][0-9]*", count or "") else 1)
    return owned, findings


def _pins(reader: Reader) -> Pins:
    given = reader.given
    plain = (
        "prefill",
        "decode",
        "interconnect",
        "placement",
        "wire",
        "ownership",
        "overlap",
        "engine",
        "provider",
        "region",
    )
    roles: dict[str, Any] = {
        f"{role}_{axis}": combine(reader, role)
        for axis, combine in (("precision", _precision), ("parallelism", _parallelism))
        for role in ("prefill", "decode")
    }
    pinned: dict[str, Any] = {name: given.get(name) for name in (*plain, *_MORE_PINS)}
    return Pins(**pinned, **roles)


def _precision(reader: Reader, role: str) -> str | None:
    """`--ROLE-precision` with the single formats of `--ROLE-weights`, `--ROLE-activations`, `--ROLE-kv` laid over it."""
    base = reader.given.get(f"{role}_precision")
    over = {name: reader.value(f"{role}_{name}", parse_format) for name in _FORMATS}
    single = {name: value for name, value in over.items() if value}
    if not single:
        return base
    parts = {"weights": base, "activations": base} if base and "=" not in base else _parts(base)
    return " ".join(f"{name}={value}" for name, value in {**parts, **single}.items())


def parse_format(text: str) -> str:
    """The name of a number format, such as fp8; raises `InvalidInput` with the nearest."""
    known = [str(dtype) for dtype in Dtype]
    if text.strip().lower() not in known:
        raise InvalidInput(Finding("", f"unknown format {text!r}", ", ".join(known), did_you_mean(text, known)))
    return text.strip().lower()


def _parts(text: str | None) -> dict[str, str]:
    names = {"w": "weights", "a": "activations"}
    pairs = (part.split("=", 1) for part in re.split(r"[\s,]+", text or "") if "=" in part)
    return {names.get(name, name): value for name, value in pairs}


def _parallelism(reader: Reader, role: str) -> str | None:
    """`--ROLE-parallelism`, or the sizes of `--ROLE-tp`, `--ROLE-pp`, `--ROLE-ep`, `--ROLE-dp`."""
    base = reader.given.get(f"{role}_parallelism")
    sizes = {name: size for name in _SIZES if (size := reader.given.get(f"{role}_{name}")) is not None}
    if base and sizes:
        named = ", ".join(flag(f"{role}_{name}") for name in sizes)
        reader.findings.append(Finding(flag(f"{role}_parallelism"), f"is given beside {named}", "one of the two forms"))
    return base or " ".join(f"{name}{size}" for name, size in sizes.items()) or None


def command_line(given: Mapping[str, Any], *verb: str) -> str:
    """The command that asks the same question again, quoted for a shell; `verb` is the command with its arguments."""
    words = ["diptych", *(shlex.quote(word) for word in verb or ("plan",))]
    for name, value in asked(given).items():
        for item in value if isinstance(value, list) else [value]:
            words += [flag(name)] if item is True else [flag(name), shlex.quote(str(item))]
    return " ".join(words)


def asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, but those that only say how to show the answer; a repeated one as a list."""
    named = {"out" if name == "out_folder" else name: value for name, value in given.items() if name not in _SHOWN}
    return {name: list(value) if isinstance(value, list | tuple) else value for name, value in named.items() if value}


def recorded(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was read: the flags, and the size and SHA-256 of every local file they name."""
    named = [given.get("workload"), given.get("model"), given.get("prices"), *(given.get("catalog") or ())]
    files = [_fingerprint(path) for path in map(_file, named) if path is not None]
    return {"flags": asked(given), "files": files}


def _file(name: Any) -> Path | None:
    path = Path(str(name)).expanduser() if name else None
    if path is not None and path.is_dir():
        path = path / "config.json"
    return path if path is not None and path.is_file() else None


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"path": str(path), "bytes": path.stat().st_size, "sha256": digest}
