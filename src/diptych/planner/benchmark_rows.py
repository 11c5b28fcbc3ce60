"""Benchmark tables as people publish them, read into rows: what was run, and what was measured.

Two layouts are known, told apart by their header: a unified one (one line per result of any source) and that of the silicon
sample of aiconfigurator-core (parallelism of both roles). Numbers become seconds and tokens here; names stay as spelled.
A row that cannot be used is kept with the reason, so that what was not answered can be counted.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from diptych.errors import Finding, InvalidInput, did_you_mean


class Kind(StrEnum):
    """What a row measures."""

    CLOSED = "agg"  # clients in a loop against colocated workers
    DISAGGREGATED = "disagg"
    OFFLINE = "offline"  # all requests at once, throughput only
    SERVER = "server"  # Poisson arrivals at a rate
    STREAM = "single stream"
    STATIC = "static batch"
    FIRST_TOKEN = "first token"  # noqa: S105 - the field's word
    PREFILL = "prefill only"
    DECODE = "decode only"


@dataclass(frozen=True, slots=True)
class Ranks:
    """Parallelism of one worker as recorded; 0 where the table says nothing."""

    tp: int = 0
    pp: int = 0
    dp: int = 0
    ep: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What the source published: seconds, and output tokens/s of the whole system; None where it did not."""

    ttft: float | None = None
    tpot: float | None = None
    output: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One published result. Counts are 0 and lengths None where the table leaves them out."""

    number: int
    kind: Kind
    source: str
    reference: str
    accelerator: str
    model: str
    dtype: str
    engine: str
    engine_version: str
    date: str
    image: str
    gpus: int
    prefill: Ranks
    decode: Ranks
    prefill_workers: int
    decode_workers: int
    isl: float | None
    osl: float | None
    concurrency: float | None
    batch: float | None
    rate: float | None
    measured: Measured
    derived: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """A row that no prediction can be made for, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """A benchmark file: usable rows and the others, in file order."""

    layout: str
    rows: tuple[Row, ...]
    unread: tuple[Unread, ...] = field(default=())


UNIFIED_REQUIRED = ("mode", "model", "framework", "isl", "osl")
SILICON_REQUIRED = ("model_path", "system", "backend", "mode", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms")
_MODES: Mapping[str, Kind] = {
    "agg": Kind.CLOSED,
    "disagg": Kind.DISAGGREGATED,
    "offline": Kind.OFFLINE,
    "offline max throughput (inflight batching)": Kind.OFFLINE,
    "server": Kind.SERVER,
    "interactive": Kind.SERVER,
    "singlestream": Kind.STREAM,
    "single stream": Kind.STREAM,
    "static batch throughput": Kind.STATIC,
    "static batch, batch-1 first-token latency": Kind.FIRST_TOKEN,
    "prefill only": Kind.PREFILL,
    "disagg, decode per gpu": Kind.DECODE,
}


def read_table(path: Path) -> Table:
    """Read a CSV, gzip or not.

    Raises:
        InvalidInput: no such file, not a table, or columns missing that no row can do without (nearest names given).
    """
    lines = csv.DictReader(io.StringIO(_text(path)))
    header = [name or "" for name in lines.fieldnames or ()]
    silicon = "silicon_ttft_ms" in header or ("model_path" in header and "mode" in header)
    missing = [name for name in (SILICON_REQUIRED if silicon else UNIFIED_REQUIRED) if name not in header]
    if not silicon and not {"accelerator", "gpu"} & set(header):
        missing.append("accelerator")
    if missing:
        raise InvalidInput(
            Finding(
                f"{path}:1", f"no column {name!r}", hint=did_you_mean(name, header) if header else "the file is empty"
            )
            for name in missing
        )
    rows: list[Row] = []
    unread: list[Unread] = []
    for number, cells in enumerate(_records(path, lines), start=2):
        parsed = _parse(number, cells, silicon)
        (rows if isinstance(parsed, Row) else unread).append(parsed)  # type: ignore[arg-type]
    if not rows and not unread:
        raise InvalidInput(Finding(str(path), "no rows below the header", "at least one measured row"))
    return Table("silicon_sample" if silicon else "unified", tuple(rows), tuple(unread))


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(Finding(str(path), "not a text file in UTF-8", "a CSV, gzip or not")) from error
    except (OSError, EOFError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        reason = getattr(error, "strerror", None) or str(error) or "damaged gzip"
        raise InvalidInput(Finding(str(path), f"cannot be read: {reason}", "a CSV, gzip or not")) from error


def _records(path: Path, lines: csv.DictReader[str]) -> Iterator[dict[str, str]]:
    try:
        for line in lines:
            yield {key: value.strip() for key, value in line.items() if key and isinstance(value, str)}
    except csv.Error as error:
        raise InvalidInput(Finding(f"{path}:{lines.line_num}", str(error), "a well-formed CSV")) from error


class _BadCell(ValueError):
    """A cell that should hold a number and does not."""


class _Cells:
    """One line, read by column and type."""

    def __init__(self, cells: Mapping[str, str]) -> None:
        self.cells = cells

    def text(self, *names: str) -> str:
        return next((self.cells[name] for name in names if self.cells.get(name)), "")

    def number(self, name: str) -> float | None:
        """A finite non-negative number, or None for an empty cell ('nan' and 'inf' count as empty)."""
        text = self.cells.get(name, "")
        if text.casefold() in ("", "nan", "none", "null", "n/a", "inf"):
            return None
        try:
            value = float(text)
        except ValueError:
            raise _BadCell(f"{name} is not a number") from None
        if not math.isfinite(value) or value < 0:
            raise _BadCell(f"{name} is negative or not finite")
        return value

    def count(self, name: str) -> int:
        return round(self.number(name) or 0)

    def seconds(self, *names: str) -> float | None:
        """The first of several columns in ms that holds something above zero."""
        values = (self.number(name) for name in names)
        return next((value / 1e3 for value in values if value), None)


def _parse(number: int, cells: dict[str, str], silicon: bool) -> Row | Unread:
    mode = cells.get("mode", "").casefold()
    if mode not in _MODES:
        return Unread(number, f"unknown mode {cells.get('mode', '')!r}" if mode else "no mode")
    try:
        return (_silicon if silicon else _unified)(number, _MODES[mode], _Cells(cells))
    except _BadCell as error:
        return Unread(number, f"bad cell: {error}")


def _silicon(number: int, kind: Kind, row: _Cells) -> Row:
    apart = kind is Kind.DISAGGREGATED
    decode = _ranks(row, "decode_" if apart else "")
    prefill = _ranks(row, "prefill_") if apart else decode
    known = apart and row.count("prefill_num_workers") > 0 and row.count("decode_num_workers") > 0
    return Row(
        number, kind, "aiconfigurator-core silicon_sample", row.text("id"), row.text("system"), row.text("model_path"),
        row.text("gemm_quant_mode", "precision") if row.text("gemm_quant_mode") == "int4_wo" else row.text("precision"),
        row.text("backend"), row.text("backend_version"), row.text("measured_on"), row.text("image"),
        _gpus(row.count("n_gpus"), decode, kind),
        prefill, decode, row.count("prefill_num_workers") if known else 0, row.count("decode_num_workers") if known else 0,
        row.number("isl"), row.number("osl"), row.number("concurrency"),
        row.number("decode_batch_size" if apart else "batch_size"), None,
        Measured(row.seconds("silicon_ttft_ms"), row.seconds("silicon_tpot_ms"), row.number("derived_output_tok_s")),
        derived=True,
    )  # fmt: skip


def _ranks(row: _Cells, role: str) -> Ranks:
    prefix = {"": ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")}.get(
        role,
        tuple(f"{role}{name}" for name in ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")),
    )
    tp, pp, dp, moe_tp, ep = (row.count(name) for name in prefix)
    return recorded_ranks(tp, pp, dp, ep, moe_tp, row.text("id"))


def _unified(number: int, kind: Kind, row: _Cells) -> Row:
    reference, gpus = row.text("source_ref"), row.count("gpu_count")
    decode = _unified_ranks(row, reference)
    prefill_gpus, decode_gpus = row.count("prefill_gpus"), row.count("decode_gpus")
    size = max(decode.tp, 1) * max(decode.pp, 1) * max(decode.dp, 1)
    apart = kind is Kind.DISAGGREGATED
    output = row.number("output_tok_s")
    if output is None and row.number("output_tok_s_per_gpu") is not None and gpus:
        output = (row.number("output_tok_s_per_gpu") or 0.0) * gpus
    return Row(
        number, kind, row.text("source"), reference, row.text("accelerator", "gpu"), row.text("model"), row.text("dtype"),
        row.text("framework"), row.text("framework_version"), row.text("date"), "", _gpus(gpus, decode, kind),
        Ranks() if apart else decode, decode, 1 if apart and prefill_gpus else 0,
        decode_gpus // size if apart and decode_gpus and decode_gpus % size == 0 else 0,
        row.number("isl"), row.number("osl"), row.number("concurrency"), row.number("batch_size"),
        row.number("request_rate_rps"),
        Measured(row.seconds("ttft_mean_ms", "ttft_p50_ms"), row.seconds("tpot_mean_ms", "tpot_p50_ms"), output or None),
        derived="concurrency*osl" in row.text("derived"), note=row.text("note"),
    )  # fmt: skip


def _gpus(recorded: int, ranks: Ranks, kind: Kind) -> int:
    """The accelerators of the run: those recorded, unless they are the square that `recorded_ranks` undid."""
    size = ranks.tp * max(ranks.pp, 1) * max(ranks.dp, 1)
    squared = kind is Kind.CLOSED and ranks.ep > 1 and recorded == size * ranks.ep and ranks.ep == size
    return size if squared else recorded


def _unified_ranks(row: _Cells, reference: str) -> Ranks:
    """The parallelism columns; `DEP8` in dp is attention DP and EP over 8 ranks."""
    both = re.fullmatch(r"(?:DEP|DP)(\d+)", row.text("dp"), re.IGNORECASE)
    if both:
        return Ranks(1, row.count("pp"), int(both[1]), int(both[1]))
    return recorded_ranks(row.count("tp"), row.count("pp"), row.count("dp"), row.count("ep"), 0, reference)


_NAMED_RANKS = re.compile(r"_tp(\d+)(?:_0)?_ep(\d+)(?:_0)?_")


def recorded_ranks(tp: int, pp: int, dp: int, ep: int, moe_tp: int, reference: str) -> Ranks:
    """The ranks that were really run.

    Some tables store tp·ep where a run of e accelerators used tp = ep = e: 64 for 8 with moe_tp = ep = 8, or tp = dp = 4 with
    ep = 16. The run's own name, where it has one (…_tp8_ep8_…), settles it; else the square pattern does.
    """
    named = _NAMED_RANKS.search(reference)
    dp, ep, ranks = max(dp, 0), max(ep, 0), max(tp, 1) * max(dp, 1)
    moe_tp = moe_tp or (ranks // ep if ep else 0)
    square = ep > 1 and moe_tp == ep and ranks == ep * ep
    doubled = tp == dp > 1 and ep == tp * tp
    if named and (square or doubled) and int(named[1]) == int(named[2]):
        size = int(named[1])
        return Ranks(1, pp, size, size) if tp == 1 else Ranks(size, pp, 1, size)
    if named and int(named[1]) == ranks:
        return Ranks(tp, pp, max(dp, 1), max(ep, 1))
    if square and not named:
        return Ranks(1, pp, ep, ep) if tp == 1 else Ranks(ep, pp, 1, ep)
    if doubled:
        return Ranks(tp, pp, 1, tp)
    return Ranks(tp, pp, dp, ep)
