"""Streaming a trace file into one compact DuckDB table, `request`, that may live on disk.

Columns: `row` (place among the file's data rows, from 1), `isl`, `osl`, `t` (seconds), `gap` (seconds since the row before),
`blocks` (prefix hashes, where there are any), and `raw`, the cells' texts, only of rows that could not be read (see `RAW`).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import duckdb

from diptych.errors import Finding, InvalidTrace
from diptych.workload.formats import Layout

MEMORY_LIMIT = "300MB"
_ON_DISK_ABOVE = 8 << 20  # bytes of file
_MAX_LINE, _BUFFER = 1 << 22, 1 << 24  # bytes: the longest line read, and the piece read at once
_REJECTS = 1000
# Hashes may be numbers or texts of any length: each becomes 64 bits of its text.
_HASHES = "list_transform(TRY_CAST(blocks_text AS VARCHAR[]), lambda id: hash(id))"
_POLL = 0.2  # seconds between looks at the progress
# The text behind each number, as an SQL expression; NULL in rows that were read.
RAW = {name: f"raw[{index}]" for index, name in enumerate(("line", "isl", "osl", "t", "blocks"), start=1)}
Progress = Callable[[float, float, str], None]


def connect(path: Path, folder: Path) -> Any:
    """A private database: in memory for a small file, on disk for a large one, with a memory limit either way."""
    place = str(folder / "stage.duckdb") if path.stat().st_size > _ON_DISK_ABOVE else ":memory:"
    connection = duckdb.connect(
        place, config={"memory_limit": MEMORY_LIMIT, "temp_directory": str(folder), "threads": 2}
    )
    connection.execute("""SET preserve_insertion_order = true; SET TimeZone = 'UTC'; SET autoinstall_known_extensions = false;
                          SET enable_progress_bar = true; SET enable_progress_bar_print = false""")
    return connection


def stage(
    connection: Any, path: Path, folder: Path, name: str, layout: Layout, progress: Progress | None = None
) -> None:
    """Fill the table `request` in one pass over the file. Raises `InvalidTrace` when the file cannot be read to its end."""
    link = folder / "source"  # a name of ours: no quote, no wildcard, no misleading suffix reaches the query
    link.symlink_to(path.resolve())
    source = _csv_source(link, layout) if layout.kind == "csv" else _json_source(link, layout)
    arrival = _arrival(layout, _base(connection, layout)) if layout.arrival else "NULL::DOUBLE"
    blocks = f", {_HASHES} AS blocks" if layout.blocks else ""
    unread = "isl IS NULL OR osl IS NULL" + (" OR t IS NULL" if layout.arrival else "")
    unread += " OR (blocks IS NULL AND blocks_text IS NOT NULL)" if layout.blocks else ""
    query = f"""
        CREATE TABLE request AS
        SELECT *, t - lag(t) OVER () AS gap FROM (
            SELECT row, TRY_CAST(isl_text AS DOUBLE) AS isl, TRY_CAST(osl_text AS DOUBLE) AS osl, {arrival} AS t {blocks},
                   CASE WHEN {unread} THEN [left(line, 60), isl_text, osl_text, t_text, left(blocks_text, 40)] END AS raw
            FROM ({source})
        )"""  # noqa: S608 - built from constants and column numbers; texts of the file are escaped
    _run(connection, query, path, name, layout.gzipped, progress)


def drop_empty(connection: Any) -> int:
    """Leave out requests without prompt or answer tokens; how many there were."""
    (dropped,) = connection.execute("SELECT count(*) FROM request WHERE isl = 0 OR osl = 0").fetchone()
    if dropped:
        connection.execute("DELETE FROM request WHERE isl = 0 OR osl = 0")
        _reorder(connection, "row")
    return int(dropped)


def sort_by_arrival(connection: Any) -> None:
    """Put the requests in the order of their arrival; equal ones keep the file's order."""
    _reorder(connection, "t, row")


def _reorder(connection: Any, order: str) -> None:
    connection.execute(f"""
        CREATE TABLE ordered AS SELECT * REPLACE (t - lag(t) OVER (ORDER BY {order}) AS gap) FROM request ORDER BY {order};
        DROP TABLE request;
        ALTER TABLE ordered RENAME TO request""")  # noqa: S608


def _csv_source(link: Path, layout: Layout) -> str:
    columns = ", ".join(f"'c{index}': 'VARCHAR'" for index in range(len(layout.header)))
    delimiter = layout.delimiter.replace("\t", "\\t")
    compression = "gzip" if layout.gzipped else "none"

    def cell(column: str) -> str:
        return f"trim(c{layout.header.index(column)})" if column else "NULL::VARCHAR"

    return f"""
        SELECT row_number() OVER () AS row, NULL::VARCHAR AS line, {cell(layout.isl)} AS isl_text, {cell(layout.osl)} AS osl_text,
               {cell(layout.arrival)} AS t_text, {cell(layout.blocks)} AS blocks_text
        FROM read_csv('{link}', header = true, auto_detect = false, columns = {{{columns}}}, delim = '{delimiter}',
             quote = '"', escape = '"', compression = '{compression}', null_padding = true, store_rejects = true,
             rejects_limit = {_REJECTS}, max_line_size = {_MAX_LINE}, buffer_size = {_BUFFER})"""  # noqa: S608


def _json_source(link: Path, layout: Layout) -> str:
    compression = "gzip" if layout.gzipped else "none"
    keys = ", ".join(_pointer(key) for key in (layout.isl, layout.osl, layout.arrival or layout.isl))
    blocks = f"json_extract(document, {_pointer(layout.blocks)})::VARCHAR" if layout.blocks else "NULL::VARCHAR"
    arrival = "cells[3]" if layout.arrival else "NULL::VARCHAR"
    return f"""
        SELECT row, CASE WHEN document IS NULL THEN line END AS line, cells[1] AS isl_text,
               cells[2] AS osl_text, {arrival} AS t_text, {blocks} AS blocks_text
        FROM (SELECT *, json_extract_string(document, [{keys}]) AS cells
              FROM (SELECT *, CASE WHEN json_valid(line) THEN line::JSON END AS document
                    FROM (SELECT row_number() OVER () AS row, line
                          FROM read_csv('{link}', header = false, auto_detect = false, columns = {{'line': 'VARCHAR'}},
                               delim = '\x01', quote = '', escape = '', compression = '{compression}',
                               max_line_size = {_MAX_LINE}, buffer_size = {_BUFFER}))
                    WHERE trim(line) <> ''))"""  # noqa: S608


def _pointer(key: str) -> str:
    """A JSON pointer as an SQL text; a dotted key reaches into nested objects."""
    return "'/" + key.replace("~", "~0").replace("/", "~1").replace(".", "/").replace("'", "''") + "'"


def _arrival(layout: Layout, base: int) -> str:
    scale = {"s": 1, "ms": 1000, "us": 1000000}.get(layout.unit)
    if scale:
        return f"TRY_CAST(t_text AS DOUBLE) / {scale}"
    return f"(epoch_us(TRY_CAST(t_text AS TIMESTAMPTZ)) - {base}) / 1e6"


def _base(connection: Any, layout: Layout) -> int:
    """The first timestamp in microseconds, subtracted before it would cost digits; 0 when it cannot be read."""
    text = layout.first_arrival if layout.unit == "iso" else ""
    row = connection.execute("SELECT epoch_us(TRY_CAST(? AS TIMESTAMPTZ))", [text]).fetchone()
    return int(row[0] or 0)


def _run(connection: Any, query: str, path: Path, name: str, gzipped: bool, progress: Progress | None) -> None:
    """Run the query, and on another core check the checksum that DuckDB's gzip reader leaves unread."""
    with ThreadPoolExecutor(2) as side:
        done = Event()
        watching = side.submit(_watch, connection, done, name, progress)
        broken = side.submit(_gzip_problem, path) if gzipped else None
        try:
            connection.execute(query)
            failed = None
        except duckdb.Error as error:
            failed = _unreadable(str(error), name)
        finally:
            done.set()
        watching.result()
        problem = broken.result() if broken else ""
    if problem:
        raise InvalidTrace(Finding(name, f"broken gzip: {problem}", "a whole gzip file", "copy it again"))
    if failed:
        raise InvalidTrace(failed)


def _watch(connection: Any, done: Event, name: str, progress: Progress | None) -> None:
    while progress and not done.wait(_POLL):
        progress(max(connection.query_progress(), 0.0), 100.0, f"reading {name}")


def _gzip_problem(path: Path) -> str:
    """What is wrong with a gzip file, empty if nothing: it ends early, a checksum differs, something follows it."""
    try:
        with gzip.open(path, "rb") as stream:
            while stream.read(1 << 20):
                pass
    except (EOFError, OSError, zlib.error) as error:
        return str(error)
    return ""


def raise_sentence(error: BaseException | None, name: str) -> None:
    """Turn DuckDB's own errors, such as a full disk, into an `InvalidTrace`; let others pass."""
    if isinstance(error, duckdb.Error):
        raise InvalidTrace(_unreadable(str(error), name)) from None


def _unreadable(message: str, name: str) -> Finding:
    """A sentence for what DuckDB could not read."""
    first = message.splitlines()[0]
    if "Out of Memory" in first:
        return Finding(
            name, f"does not fit: {first}", "free space in the temporary folder for the columns of the trace"
        )
    place = next((f"{name}:{line.split(':')[-1].strip()}" for line in message.splitlines() if "Line:" in line), name)
    if "unicode" in message.lower() or "utf-8" in message.lower():
        return Finding(place, "not text: bytes that are not UTF-8", "a CSV or JSONL text file, gzip or not")
    return Finding(place, f"cannot be read: {first}", "a CSV or JSONL text file, gzip or not")
