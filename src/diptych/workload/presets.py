"""Named workloads, each from a real, sourced distribution. What is measured and what is assumed is said per preset."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.workload.arrivals import ArrivalStats
from diptych.workload.compress import compress
from diptych.workload.distributions import independent, read_quantiles
from diptych.workload.formats import detect
from diptych.workload.lengths import Lengths
from diptych.workload.trace import Trace
from diptych.workload.workload import Arrivals, Workload

DATA = Path(str(resources.files("diptych.workload"))) / "data"
_AZURE = "Azure/AzurePublicDataset @b469a113, CC-BY-4.0 (Splitwise, ISCA 2024)"
_MOONCAKE = "kvcache-ai/Mooncake @3b5a5941 FAST25-release, Apache-2.0"
_SERVEGEN = "alibaba/ServeGen @f891d118, Apache-2.0"
SOURCES: Mapping[str, str] = {
    "azure2023_conv.csv.gz": _AZURE,
    "azure2023_code.csv.gz": _AZURE,
    "mooncake_arxiv_first1000.jsonl.gz": "kvcache-ai/Mooncake by a copy in wxsms/dynamo @2a6da14c, Apache-2.0",
    "servegen_length_quantiles.csv.gz": _SERVEGEN,
}
BUNDLED = tuple(SOURCES)


@dataclass(frozen=True, slots=True)
class Preset:
    """A named workload: where its lengths and arrivals come from, how, and what is assumed beyond them."""

    name: str
    title: str
    source: str
    derived: str
    assumed: str
    lengths: Callable[[], Lengths]
    arrivals: Callable[[], Arrivals]
    requests: int


def _bundled(name: str) -> Callable[[], Lengths]:
    return lambda: _read(name)[0]


def _measured(name: str) -> Callable[[], Arrivals]:
    def arrivals() -> Arrivals:
        stats = _read(name)[1]
        assert stats is not None, f"{name} has arrivals"
        return stats.arrivals()

    return arrivals


@cache
def _read(name: str) -> tuple[Lengths, ArrivalStats | None]:
    with Trace(DATA / name) as trace:
        return trace.lengths(), trace.arrivals()


@cache
def _points() -> Mapping[str, Lengths]:
    """The compressed joint distributions of `preset_points.csv`, by preset."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    with (DATA / "preset_points.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            point = tuple(float(row[column]) for column in ("isl", "osl", "cached", "weight"))
            rows.setdefault(row["preset"], []).append(point)
    tables = {name: np.array(points).T for name, points in rows.items()}
    return {
        name: Lengths(isl, osl, cached, weight / weight.sum()) for name, (isl, osl, cached, weight) in tables.items()
    }


def _servegen(model: str) -> Callable[[], Lengths]:
    def lengths() -> Lengths:
        path = DATA / "servegen_length_quantiles.csv.gz"
        table = read_quantiles(path, path.name, detect(path, path.name))[model]
        return independent(table["input_tokens"], table["output_tokens"])

    return lengths


def _agent_lengths() -> Lengths:
    """Mooncake's first 1,000 requests stretched to the published means of its tool-and-agent trace, 59 % of a prompt cached."""
    shape = compress(_read("mooncake_arxiv_first1000.jsonl.gz")[0], 256)
    isl, osl = shape.isl * (8596 / shape.mean_isl), shape.osl * (182 / shape.mean_osl)
    return Lengths(isl, osl, 0.59 * isl, shape.weight)


def _poisson(rate: float) -> Callable[[], Arrivals]:
    return lambda: Arrivals(rate, note="Poisson arrivals assumed" if rate else "no rate in the source: give one")


def _offline() -> Arrivals:
    return Arrivals(0.0, offline=True, note="offline: requests wait in a queue, no latency to keep")


PRESETS: Mapping[str, Preset] = {
    row.name: row
    for row in (
        Preset("chat", "conversation", _AZURE, "azure2023_conv.csv.gz as measured, 2023-11-16 18:15 to 19:14 UTC",
               "no prefix reuse: the trace has no hashes", _bundled(BUNDLED[0]), _measured(BUNDLED[0]), 19366),
        Preset("codegen", "code completion", _AZURE, "azure2023_code.csv.gz as measured, 2023-11-16 18:17 to 19:14 UTC",
               "no prefix reuse: the trace has no hashes", _bundled(BUNDLED[1]), _measured(BUNDLED[1]), 8819),
        Preset("summarisation", "papers to abstracts", "microsoft/vidur @7d475133 data/processed_traces, MIT",
               "28,257 arXiv-summarisation lengths (Llama-2 tokenizer, at most 4K in all), 256 points",
               "Poisson arrivals; no prefix reuse", lambda: _points()["summarisation"], _poisson(0.0), 28257),
        Preset("rag", "long retrieved context, short answer", _MOONCAKE,
               "mooncake_synthetic: long-document and chat sets put together by its authors, 3,993 requests, 256 points",
               "that trace stands for retrieval; prefixes meet a cache that never forgets",
               lambda: _points()["rag"], _poisson(3.9069), 3993),
        Preset("creative", "short in, long out", _SERVEGEN, "deepseek-r1 quantiles over 1.4 M requests of one day",
               "reasoning answers stand for long writing; ISL and OSL independent; Poisson at the mean rate; no prefix reuse",
               _servegen("deepseek-r1"), _poisson(16.0147), 1383669),
        Preset("agent", "tool use, long shared prefixes", _MOONCAKE,
               "tool-and-agent trace as published: 23,608 requests in an hour, means 8,596 in and 182 out, 59 % cacheable",
               "shape of the first 1,000 requests of the older Mooncake trace; 59 % of every prompt cached; Poisson",
               _agent_lengths, _poisson(6.558), 23608),
        Preset("batch", "offline", _SERVEGEN, "m-large quantiles: clients with 63 % of 2.4e8 requests of two weeks",
               "ISL and OSL independent; no prefix reuse; no latency to keep", _servegen("m-large"), _offline, 236892826),
    )
}  # fmt: skip


def preset(name: str, where: str = "--workload") -> Workload:
    """A preset's workload. Raises `InvalidInput` for an unknown name.

    >>> round(preset("chat").lengths.mean_isl, 1)
    1154.7
    """
    if name not in PRESETS:
        raise InvalidInput(
            Finding(where, f"unknown preset {name!r}", ", ".join(PRESETS), did_you_mean(name, list(PRESETS)))
        )
    row = PRESETS[name]
    notes = (f"preset {name}: {row.derived}", f"assumed: {row.assumed}")
    return Workload(f"preset:{name}", row.lengths(), row.arrivals(), row.requests, row.source, notes)
