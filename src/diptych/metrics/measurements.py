"""What a run showed: requests as columns, series over time, workers, links, cost. The same shape simulated or real."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.metrics.gaps import TokenGaps
from diptych.metrics.record import Outcome, RequestRecord

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TIMES = ("arrival", "prefill_start", "first_token", "moved", "decode_start", "finish")
COUNTS = ("id", "isl", "osl", "retries", "outcome", "prefill_worker", "decode_worker")


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """Requests by column, each of shape (n,), in order of id. Times are seconds, NaN where nothing happened."""

    id: Ints
    arrival: Floats
    prefill_start: Floats
    first_token: Floats
    moved: Floats
    decode_start: Floats
    finish: Floats
    isl: Ints
    osl: Ints
    retries: Ints
    outcome: Ints
    prefill_worker: Ints
    decode_worker: Ints

    def __len__(self) -> int:
        return len(self.id)

    @property
    def finished(self) -> NDArray[np.bool_]:
        return np.equal(self.outcome, int(Outcome.FINISHED))

    @property
    def ttft_prefill(self) -> Floats:
        """See `RequestRecord.ttft_prefill`."""
        return self.first_token - self.arrival

    @property
    def ttft(self) -> Floats:
        """See `RequestRecord.ttft`."""
        return np.where(np.isnan(self.decode_start), self.first_token, self.decode_start) - self.arrival

    @property
    def tpot(self) -> Floats:
        """See `RequestRecord.tpot`."""
        steps = np.where(self.osl > 1, self.osl - 1.0, np.nan)
        return (self.e2e - self.ttft) / steps

    @property
    def e2e(self) -> Floats:
        """See `RequestRecord.e2e`."""
        return self.finish - self.arrival

    def __iter__(self) -> Iterator[RequestRecord]:
        columns = {name: getattr(self, name).tolist() for name in TIMES + COUNTS}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            row["outcome"] = Outcome(row["outcome"])
            yield RequestRecord(**row)


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """One worker over the run. `seconds` it was paid for, `busy` of them in steps; `energy` J; `preemptions` of sequences."""

    index: int
    role: str
    accelerator: str
    accelerators: int
    seconds: float
    busy: float
    steps: int
    preemptions: int
    usd: float
    energy: float
    kv_blocks: int
    kv_held: int  # at the end: 0 unless something leaked


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One direction of a worker's port: bytes moved and what could have been in the time."""

    name: str
    bytes: int
    bandwidth: float


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Samples over time (s): `values` by name, each of shape (len(time),)."""

    time: Floats
    values: Mapping[str, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """A whole run. `duration` (s) from the first arrival to the last event; `limits` is what bound, most often first."""

    name: str
    requests: RequestColumns
    series: Series
    workers: tuple[WorkerUse, ...]
    links: tuple[LinkUse, ...]
    duration: float
    arrived: int
    usd: float
    energy: float
    seed: int
    limits: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)
    gaps: TokenGaps | None = None
    counts: Mapping[str, int] = field(default_factory=dict)  # how often what happened beside the ordinary

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self.requests)

    def to_json(self) -> dict[str, Any]:
        """Everything but the requests, ready for `json.dumps`."""
        return {
            "name": self.name,
            "duration_s": self.duration,
            "arrived": self.arrived,
            "finished": int(self.requests.finished.sum()),
            "usd": self.usd,
            "energy_j": self.energy,
            "seed": self.seed,
            "limits": list(self.limits),
            "notes": list(self.notes),
            "counts": dict(self.counts),
            "itl": None if self.gaps is None else self.gaps.to_json(),
            "workers": [asdict(worker) for worker in self.workers],
            "links": [asdict(link) for link in self.links],
            "series": {"time_s": _plain(self.series.time)} | {k: _plain(v) for k, v in self.series.values.items()},
        }

    def jsonl(self) -> Iterator[str]:
        """One JSON object per request, a line each, null where nothing happened."""
        for row in self._rows():
            yield json.dumps(row, allow_nan=False)

    def csv(self) -> str:
        """The same rows as CSV."""
        out = io.StringIO()
        writer = csv.DictWriter(
            out, ["id", *TIMES, *COUNTS[1:], "ttft_prefill", "ttft", "tpot", "e2e"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(self._rows())
        return out.getvalue()

    def _rows(self) -> Iterator[dict[str, Any]]:
        for record in self.requests:
            derived = {name: getattr(record, name) for name in ("ttft_prefill", "ttft", "tpot", "e2e")}
            row = {name: getattr(record, name) for name in ("id", *TIMES, *COUNTS[1:])} | derived
            row["outcome"] = record.outcome.name.lower()
            yield {key: None if value != value else value for key, value in row.items()}


def _plain(values: Floats) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
