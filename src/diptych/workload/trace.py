"""A request trace on disk: read once, validated whole, then asked for lengths, arrivals and prefix reuse.

Memory stays constant whatever the number of requests: the file is streamed into a table that spills to disk (`stage`),
and what comes back is counts per length and per window.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diptych.errors import Finding, InvalidTrace
from diptych.workload.arrivals import WINDOWS, ArrivalStats, gap_step
from diptych.workload.checks import check
from diptych.workload.formats import Layout, detect
from diptych.workload.lengths import Lengths
from diptych.workload.profile import RateProfile, profile_of, window_of
from diptych.workload.reuse import MAX_TOUCHES, Reuse, measure_reuse
from diptych.workload.stage import Progress, connect, raise_sentence, sort_by_arrival, stage
from diptych.workload.stage import drop_empty as drop

EXACT_PAIRS = 100_000  # distinct (ISL, OSL) pairs kept as they are; above, cells of 1/64 octave, means kept
_FLOAT = NDArray[np.float64]
_INT = NDArray[np.int64]
_EXACT_BELOW, _CELLS_PER_OCTAVE = 64, 64


class Trace:
    """A validated trace, a context manager: its table goes with it.

    `requests` is how many rows count, `dropped` how many without tokens were left out.
    """

    def __init__(self, path: Path, name: str = "", columns: Mapping[str, str] | None = None, *, sort: bool = False,
                 drop_empty: bool = False, progress: Progress | None = None) -> None:  # fmt: skip
        """Read and validate a whole file.

        `columns` maps roles (isl, osl, arrival, hash_ids) to the file's columns; `sort` puts requests in order of arrival, which
        otherwise must be theirs; `drop_empty` leaves requests of zero tokens out. Raises `InvalidTrace` with all findings.
        """
        self.name = name or path.name
        self.layout: Layout = detect(path, self.name, columns)
        if not self.layout.isl:
            raise InvalidTrace(Finding(self.name, f"a {self.layout.format}, not a request trace", "rows of requests"))
        self._folder = tempfile.TemporaryDirectory(prefix="diptych-trace-")
        try:
            self._open(path, sort, drop_empty or self.layout.zero_is_failure, progress)
        except BaseException as error:
            self.close()
            raise_sentence(error, self.name)
            raise

    def _open(self, path: Path, sort: bool, drop_empty: bool, progress: Progress | None) -> None:
        folder = Path(self._folder.name)
        self._con = connect(path, folder)
        stage(self._con, path, folder, self.name, self.layout, progress)
        self.dropped = drop(self._con) if drop_empty else 0
        check(self._con, self.layout, path, self.name, sort)
        self.requests, self.reordered = self._row("SELECT count(*), count(*) FILTER (gap < 0) FROM request")
        if not self.requests:
            raise InvalidTrace(Finding(self.name, "empty trace: no request in it", "at least one request"))
        if self.reordered:
            sort_by_arrival(self._con)

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        raise_sentence(error, self.name)

    def close(self) -> None:
        """Drop the table and its files."""
        if hasattr(self, "_con"):
            self._con.close()
        self._folder.cleanup()

    def lengths(self, reuse: Reuse | None = None, cache_tokens: float = np.inf) -> Lengths:
        """The joint distribution of prompt, cached prefix and answer lengths.

        With `reuse`, one point per request whose prefix met an LRU cache of `cache_tokens`. Without, one per distinct pair up
        to `EXACT_PAIRS`, else cells 1/64 octave wide (one token below 64) that hold their means: totals exact, no quantile
        off by over 1.1 %.
        """
        if reuse is not None:
            isl, osl = self._per_request()
            return Lengths(isl, osl, np.minimum(reuse.cached(cache_tokens), isl), np.full(len(isl), 1 / len(isl)))
        pairs = self._row("SELECT count(*) FROM (SELECT DISTINCT isl, osl FROM request LIMIT ?)", [EXACT_PAIRS + 1])[0]
        group = "isl, osl" if pairs <= EXACT_PAIRS else f"{_cell('isl')}, {_cell('osl')}"
        query = f"""SELECT sum(isl) / count(*) AS mean_isl, sum(osl) / count(*) AS mean_osl, count(*) AS n
                    FROM request GROUP BY {group} ORDER BY 1, 2, 3"""  # noqa: S608
        columns = self._con.execute(query).fetchnumpy()
        isl, osl = _floats(columns["mean_isl"]), _floats(columns["mean_osl"])
        return Lengths(isl, osl, np.zeros(len(isl)), _floats(columns["n"]) / self.requests)

    def rows(self) -> tuple[_FLOAT | None, _INT, _INT, tuple[tuple[int, ...], ...] | None]:
        """(arrival, isl, osl, prefix hashes) of every request in order of arrival; None for what the file does not have."""
        rows = self._con.execute(f"SELECT t, isl, osl FROM request ORDER BY {self._order}").fetchnumpy()  # noqa: S608
        isl, osl = (np.asarray(rows[name], np.float64).astype(np.int64) for name in ("isl", "osl"))
        return (
            _floats(rows["t"]) if self.layout.arrival else None,
            isl,
            osl,
            self._hashes() if self.layout.blocks else None,
        )

    def parts(self, size: int = 16384) -> Iterator[tuple[_FLOAT | None, _INT, _INT]]:
        """(arrival, isl, osl) of so many requests at a time, in order of arrival, the rest staying on disk."""
        rows = self._con.execute(f"SELECT t, isl, osl FROM request ORDER BY {self._order}")  # noqa: S608
        while few := rows.fetchmany(size):
            times, isl, osl = zip(*few, strict=True)
            yield _floats(times) if self.layout.arrival else None, np.array(isl, np.int64), np.array(osl, np.int64)

    def span(self) -> tuple[float, float]:
        """The first and the last arrival, as the file has them (s)."""
        first, last = self._row("SELECT min(t), max(t) FROM request")
        return float(first), float(last)

    def _hashes(self) -> tuple[tuple[int, ...], ...]:
        rows = self._con.execute(f"SELECT blocks FROM request ORDER BY {self._order}").fetchall()  # noqa: S608
        return tuple(tuple(blocks or ()) for (blocks,) in rows)

    def arrivals(self) -> ArrivalStats | None:
        """Burstiness of the arrivals, or None when the file has none or they span no time."""
        if not self.layout.arrival or self.requests < 2:
            return None
        first, last = self._row("SELECT min(t), max(t) FROM request")
        if not last > first:
            return None
        mean, spread, zeros = self._row("SELECT avg(gap), stddev_pop(gap), count(*) FILTER (gap = 0) FROM request")
        fano = tuple((float(width), self._fano(width, first, last)) for width in WINDOWS)
        return ArrivalStats(self.requests, last - first, spread / mean, fano, self._peak(first, last),
                            zeros / (self.requests - 1), self._step(), self._profile(first, last))  # fmt: skip

    def reuse(self) -> Reuse | None:
        """Prefix reuse by the trace's block hashes, or None without them or with more than `MAX_TOUCHES` of them."""
        touches = (self.layout.blocks and self._row("SELECT sum(len(blocks)) FROM request")[0]) or 0
        if not touches or touches > MAX_TOUCHES:
            return None
        query = f"SELECT coalesce(len(blocks), 0) AS n FROM request ORDER BY {self._order}"  # noqa: S608
        counts = np.asarray(self._con.execute(query).fetchnumpy()["n"], np.int64)
        query = f"SELECT unnest(blocks) AS id FROM (SELECT blocks FROM request ORDER BY {self._order})"  # noqa: S608
        ids = np.asarray(self._con.execute(query).fetchnumpy()["id"], np.uint64)
        return measure_reuse(ids, counts, self._per_request()[0])

    @property
    def _order(self) -> str:
        return "t, row" if self.layout.arrival else "row"

    def _per_request(self) -> tuple[_FLOAT, _FLOAT]:
        """ISL and OSL of every request in order of arrival, shape (requests,) each."""
        rows = self._con.execute(f"SELECT isl, osl FROM request ORDER BY {self._order}").fetchnumpy()  # noqa: S608
        return _floats(rows["isl"]), _floats(rows["osl"])

    def _row(self, query: str, parameters: list[object] | None = None) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._con.execute(query, parameters or []).fetchone()
        return row

    def _windows(self, width: float, first: float) -> str:
        return f"SELECT floor((t - {first!r}) / {width!r})::BIGINT AS k, count(*) AS n FROM request GROUP BY k"  # noqa: S608

    def _fano(self, width: float, first: float, last: float) -> float:
        """Variance over mean of the counts in windows from the first arrival on; the last one may be partial."""
        windows = int((last - first) // width) + 1
        squares = self._row(f"SELECT sum(n * n) FROM ({self._windows(width, first)})")[0]  # noqa: S608
        mean = self.requests / windows
        return float(squares / windows / mean - mean)

    def _peak(self, first: float, last: float) -> float:
        """Busiest whole minute over the average one; 1 when the trace spans less than a minute."""
        whole = int((last - first) // 60.0)
        if not whole:
            return 1.0
        query = f"SELECT max(n), sum(n) FROM ({self._windows(60.0, first)}) WHERE k < {whole}"  # noqa: S608
        busiest, total = self._row(query)
        return float(busiest * whole / total)

    def _profile(self, first: float, last: float) -> RateProfile | None:
        """The swing of the rate over whole windows; empty ones count."""
        width = window_of(self.requests / (last - first))
        whole = int((last - first) // width)
        if whole < 2:
            return None
        query = f"""SELECT floor((t - {first!r}) / {width!r})::BIGINT AS k, count(*) AS n, sum(isl) AS isl, sum(osl) AS osl
                    FROM request GROUP BY k HAVING k < {whole}"""  # noqa: S608
        rows = self._con.execute(query).fetchnumpy()
        requests, prompts, answers = (
            np.bincount(np.asarray(rows["k"], np.int64), weights=_floats(rows[name]), minlength=whole)
            for name in ("n", "isl", "osl")
        )
        return profile_of(requests, width, prompts, answers, self._gaps_inside(width, first))

    def _gaps_inside(self, width: float, first: float) -> float:
        """Coefficient of variation of the gaps inside windows, cut where the window begins, by requests."""
        inside = f"least(gap, t - {first!r} - {width!r} * floor((t - {first!r}) / {width!r}))"
        query = f"""SELECT sum(n * s / m / m) / sum(n) FROM (
                        SELECT count(*) AS n, avg({inside}) AS m, var_pop({inside}) AS s FROM request
                        GROUP BY floor((t - {first!r}) / {width!r})) WHERE m > 0"""  # noqa: S608
        squared = self._row(query)[0]
        return float(np.sqrt(squared)) if squared else 1.0

    def _step(self) -> float:
        rows = self._con.execute("""SELECT min(gap), count(*) FROM request WHERE gap > 0
                                    GROUP BY floor(16 * log2(gap)) ORDER BY 1""").fetchall()
        return gap_step(rows)


def _cell(role: str) -> str:
    octaves = f"floor({_CELLS_PER_OCTAVE} * log2({role} / {_EXACT_BELOW}))"
    return f"CASE WHEN {role} < {_EXACT_BELOW} THEN {role} ELSE {_EXACT_BELOW} + {octaves} END"


def _floats(column: ArrayLike) -> _FLOAT:
    return np.asarray(column, np.float64)
