"""Which public trace format a file is in, told from its first line.

A format is a row of a table: the columns that give prompt length, answer length, arrival and prefix blocks. Compression
is told by magic bytes, never by name.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.errors import Finding, InvalidTrace, did_you_mean

GZIP_MAGIC = b"\x1f\x8b"
ROLES = ("isl", "osl", "arrival", "hash_ids")
UNITS = ("s", "ms", "us", "iso")
_NEEDED = {"isl": "prompt length", "osl": "answer length"}
_HEAD_BYTES = 1 << 16
_MAX_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class Format:
    """A public format. `arrival` and `blocks` may be absent from a file; `unit` is that of numeric arrivals.

    `zero_is_failure` marks formats that record a failed request as one without tokens.
    """

    name: str
    kind: str
    isl: str
    osl: str
    arrival: str = ""
    unit: str = "s"
    blocks: str = ""
    zero_is_failure: bool = False
    needs_arrival: bool = False


FORMATS = (
    Format("Azure LLM inference CSV", "csv", "ContextTokens", "GeneratedTokens", "TIMESTAMP", "iso"),
    Format("BurstGPT CSV", "csv", "Request tokens", "Response tokens", "Timestamp", "s", zero_is_failure=True),
    Format("splitwise CSV", "csv", "prompt_size", "token_size", "arrival_timestamp"),
    Format("vidur CSV", "csv", "num_prefill_tokens", "num_decode_tokens", "arrived_at"),
    Format("CSV of arrival_s, input_tokens, output_tokens", "csv", "input_tokens", "output_tokens", "arrival_s"),
    Format("Mooncake JSONL", "jsonl", "input_length", "output_length", "timestamp", "ms", "hash_ids",
           needs_arrival=True),
)  # fmt: skip

# A JSONL or CSV of a user's own: the first of these names that the file has plays the role.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "isl": ("isl", "input_tokens", "input_length", "input_len", "prompt_tokens", "prompt_length", "prompt_len",
            "num_prompt_tokens", "num_prefill_tokens", "context_tokens", "usage.prompt_tokens", "usage.input_tokens"),
    "osl": ("osl", "output_tokens", "output_length", "output_len", "completion_tokens", "response_tokens",
            "generated_tokens", "num_decode_tokens", "usage.completion_tokens", "usage.output_tokens"),
    "arrival": ("arrival", "arrival_s", "arrival_ms", "arrived_at", "arrival_time", "timestamp", "timestamp_ms", "time"),
    "hash_ids": ("hash_ids", "block_hashes"),
}  # fmt: skip
QUANTILE_COLUMNS = ("model", "field", "cum_prob", "tokens")
RATE_COLUMNS = ("model", "t_s", "total_rate_rps")


@dataclass(frozen=True, slots=True)
class Layout:
    """How to read one file: its kind, its columns in order and which of them play which role."""

    format: str
    kind: str
    gzipped: bool
    header: tuple[str, ...]
    isl: str = ""
    osl: str = ""
    arrival: str = ""
    unit: str = "s"
    blocks: str = ""
    delimiter: str = ","
    zero_is_failure: bool = False
    first_arrival: str = ""


def parse_columns(text: str, where: str = "--columns") -> dict[str, str]:
    """Read `isl=prompt_tokens,osl=completion_tokens,arrival=sent_at:ms` into a mapping from role to column.

    >>> parse_columns("isl=prompt_tokens, osl=n_out")
    {'isl': 'prompt_tokens', 'osl': 'n_out'}
    """
    mapping: dict[str, str] = {}
    findings: list[Finding] = []
    for term in (part.strip() for part in text.split(",") if part.strip()):
        role, sign, column = (part.strip() for part in term.partition("="))
        if not sign or not column:
            findings.append(Finding(where, f"cannot read {term!r}", "a term such as isl=prompt_tokens"))
        elif role not in ROLES:
            findings.append(Finding(where, f"unknown role {role!r}", ", ".join(ROLES), did_you_mean(role, ROLES)))
        else:
            mapping[role] = column
    if findings:
        raise InvalidTrace(findings)
    return mapping


def is_gzipped(path: Path) -> bool:
    """Whether the first two bytes are gzip's. Raises `InvalidTrace` for a file that may not be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(2) == GZIP_MAGIC
    except OSError as error:
        raise InvalidTrace(Finding(path.name, f"cannot be opened: {error.strerror}", "a file to read")) from None


def detect(path: Path, name: str, columns: Mapping[str, str] | None = None) -> Layout:
    """Tell the layout of a file from its first line and, where given, a user's mapping of roles to columns.

    Raises `InvalidTrace` for an empty file, binary content, an unknown format or a column that is not there.
    """
    gzipped = is_gzipped(path)
    first, second = _first_lines(path, name, gzipped)
    if first.lstrip().startswith("{"):
        return _jsonl_layout(first, name, gzipped, columns or {})
    if first.lstrip().startswith("["):
        raise InvalidTrace(
            Finding(f"{name}:1", "a JSON array, not JSONL", "one JSON object a line", "jq -c '.[]' FILE writes that")
        )
    return _csv_layout(first, second, name, gzipped, columns or {})


def _first_lines(path: Path, name: str, gzipped: bool) -> tuple[str, str]:
    try:
        with gzip.open(path, "rb") if gzipped else path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
            while head.count(b"\n") < 2 and len(head) < _MAX_LINE and (more := stream.read(_HEAD_BYTES)):
                head += more
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidTrace(Finding(name, f"broken gzip: {error}", "a whole gzip file", "copy it again")) from None
    if b"\x00" in head:
        raise InvalidTrace(Finding(name, "binary content", "a CSV or JSONL text file, gzip or not"))
    try:
        text = head.decode("utf-8-sig") if b"\n" not in head else head[: head.rindex(b"\n")].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = f"not text: byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise InvalidTrace(Finding(f"{name}:{line}", problem, "a CSV or JSONL text file, gzip or not")) from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InvalidTrace(Finding(name, "empty trace: no line in it", "at least one request"))
    return lines[0], lines[1] if len(lines) > 1 else ""


def _csv_layout(first: str, second: str, name: str, gzipped: bool, columns: Mapping[str, str]) -> Layout:
    delimiter = max(",;\t", key=first.count)
    header = tuple(cell.strip() for cell in next(csv.reader([first], delimiter=delimiter)))
    cells = next(csv.reader([second], delimiter=delimiter), [])
    sample = dict(zip(header, cells, strict=False))
    for title, wanted in (("quantile table", QUANTILE_COLUMNS), ("rate table", RATE_COLUMNS)):
        if set(wanted) <= set(header) and not columns:
            return Layout(title, "csv", gzipped, header, delimiter=delimiter)
    return _assign("csv", header, sample, name, gzipped, columns, delimiter)


def _jsonl_layout(first: str, name: str, gzipped: bool, columns: Mapping[str, str]) -> Layout:
    try:
        record = json.loads(first)
    except json.JSONDecodeError as error:
        raise InvalidTrace(Finding(f"{name}:1", f"not JSON: {error.msg}", "one JSON object a line")) from None
    flat = flatten(record)
    sample = {key: "" if value is None else str(value) for key, value in flat.items()}
    return _assign("jsonl", tuple(flat), sample, name, gzipped, columns, ",")


def read_rows(path: Path, name: str, layout: Layout) -> list[tuple[int, dict[str, str]]]:
    """Line and cells by column of a small CSV table. Raises `InvalidTrace` for a file that cannot be read to its end."""
    try:
        with (gzip.open if layout.gzipped else open)(path, "rt", encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, delimiter=layout.delimiter, restval="")
            return [(reader.line_num, row) for row in reader]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidTrace(Finding(name, f"broken gzip: {error}", "a whole gzip file", "copy it again")) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidTrace(Finding(name, f"not a table of text: {error}", "a CSV file in UTF-8")) from None


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys: `{"usage": {"prompt_tokens": 7}}` gives `usage.prompt_tokens`."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _assign(kind: str, header: tuple[str, ...], sample: Mapping[str, str], name: str, gzipped: bool,
            columns: Mapping[str, str], delimiter: str) -> Layout:  # fmt: skip
    format_name, roles, unit, zero_is_failure = _roles(kind, header)
    if columns:
        chosen = {role: column for role, column in columns.items() if column}
        arrival, _, given = chosen.get("arrival", "").rpartition(":")
        if given in UNITS and arrival and chosen["arrival"] not in header:
            chosen["arrival"], unit = arrival, given
        elif "arrival" in chosen:
            unit = "s"
        roles, format_name = {**roles, **chosen}, f"{kind.upper()} with --columns"
    _require(roles, header, columns, name)
    first_arrival = sample.get(roles.get("arrival", ""), "")
    if first_arrival and not _is_number(first_arrival):
        unit = "iso"
    return Layout(format_name, kind, gzipped, header, roles["isl"], roles["osl"], roles.get("arrival", ""), unit,
                  roles.get("hash_ids", ""), delimiter, zero_is_failure, first_arrival)  # fmt: skip


def _roles(kind: str, header: Sequence[str]) -> tuple[str, dict[str, str], str, bool]:
    for known in (row for row in FORMATS if row.kind == kind):
        needed = {known.isl, known.osl} | ({known.arrival} if known.needs_arrival else set())
        if needed <= set(header):
            roles = {"isl": known.isl, "osl": known.osl}
            roles |= {"arrival": known.arrival} if known.arrival in header else {}
            roles |= {"hash_ids": known.blocks} if known.blocks in header else {}
            return known.name, roles, known.unit, known.zero_is_failure
    folded = {column.casefold(): column for column in header}
    roles = {role: folded[found] for role, names in ALIASES.items() if (found := _first_of(names, folded))}
    unit = "ms" if roles.get("arrival", "").casefold().endswith("_ms") else "s"
    return f"plain {kind.upper()}", roles, unit, False


def _first_of(names: Sequence[str], present: Mapping[str, str]) -> str:
    return next((name for name in names if name in present), "")


def _require(roles: Mapping[str, str], header: Sequence[str], columns: Mapping[str, str], name: str) -> None:
    findings = [
        Finding(f"{name}:1", f"no column {column!r} for {role}", "one of the file's", did_you_mean(column, header))
        for role, column in roles.items()
        if role in columns and column not in header
    ]
    missing = {role: title for role, title in _NEEDED.items() if role not in roles}
    findings += [_missing(role, title, header, name) for role, title in missing.items()]
    if len(missing) == len(_NEEDED):
        known = ", ".join(sorted({row.name for row in FORMATS}))
        findings.append(Finding(name, "unknown format", f"{known}, a quantile table, or any with --columns"))
    if findings:
        raise InvalidTrace(findings)


def _missing(role: str, meaning: str, header: Sequence[str], name: str) -> Finding:
    names = list(ALIASES[role]) + [getattr(row, role) for row in FORMATS]
    near = next((f"{column!r}: {hint}" for column in header if "?" in (hint := did_you_mean(column, names, 1))), "")
    listed = ", ".join(repr(column) for column in header[:8])
    hint = near or f"or name it: --columns {role}=NAME"
    return Finding(
        f"{name}:1", f"no column for the {meaning} among {listed}", f"a name such as {ALIASES[role][1]}", hint
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
