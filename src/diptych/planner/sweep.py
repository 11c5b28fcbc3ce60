"""Thousands of simulations: designs × rates × seeds on every core, into one file that a second run completes.

A point is plain text and numbers, so it can be run anywhere: in this process, in processes of this machine, on a Ray cluster. Its
key is a digest of all it says and of the version that ran it; points whose key the file already holds are not run again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.design.text import parse_design
from diptych.errors import DiptychError, Finding, InvalidInput, Unsupported
from diptych.metrics.slo import SLO
from diptych.perf.model import PerfModel
from diptych.perf.roofline import default_perf
from diptych.planner.demand import Asked, Demand, Rate, demand
from diptych.planner.fleet import priced
from diptych.planner.judge import judge
from diptych.planner.policy_text import parse_policy
from diptych.planner.simulated import simulated
from diptych.planner.soundness import soundness
from diptych.simulator.faults import parse_changes

Progress = Callable[[int, int, str], None]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation, as text. `catalog` names files laid over the built-in catalog; empty texts leave the default."""

    model: str
    design: str
    workload: str
    rate: str = ""
    seed: int = 0
    requests: int = 0
    duration: float = 0.0
    concurrency: int = 0
    slo: str = ""
    prices: str = ""
    faults: tuple[str, ...] = ()
    policy: str = ""
    catalog: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A digest of everything this point says, and of the version that would run it."""
        text = json.dumps([asdict(self), metadata.version("diptych")], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_point(point: Point) -> Row:
    """Simulate one point: its summary, or the sentences of what was wrong with it."""
    row: Row = {
        "key": point.key,
        "point": asdict(point) | {"faults": list(point.faults), "catalog": list(point.catalog)},
    }
    try:
        return row | {"summary": _summary(point)}
    except InvalidInput as error:
        return row | {"error": [str(finding) for finding in error.findings]}
    except DiptychError as error:
        return row | {"error": [str(error)]}


def _summary(point: Point) -> Mapping[str, Any]:
    catalog = _catalog(point.catalog)
    slo = SLO.parse(point.slo) if point.slo else SLO()
    design = parse_design(point.design, catalog, catalog.model(point.model), "design")
    notes = soundness(design, "design")
    if point.prices:
        design = priced(design, catalog.book(point.prices))
    policy, words = parse_policy([point.policy] if point.policy else (), catalog, slo)
    judged = judge(
        design, _demand(point), _perf(), slo, seed=point.seed, faults=parse_changes(point.faults), policy=policy,
        concurrency=point.concurrency or None, notes=notes,
    )  # fmt: skip
    seen = simulated(judged, catalog, faults=point.faults, policy=words, concurrency=point.concurrency or None)
    return seen.to_dict()


@lru_cache(maxsize=4)
def _catalog(files: tuple[str, ...]) -> Catalog:
    return Catalog.load(*files)


@lru_cache(maxsize=1)
def _perf() -> PerfModel:
    return default_perf()


def _demand(point: Point) -> Demand:
    rate = Rate.parse(point.rate) if point.rate else Rate(1.0) if point.concurrency else None
    return _requests(point.workload, Asked(rate, None, point.duration or None, point.requests or None, seed=point.seed))


@lru_cache(maxsize=8)
def _requests(workload: str, asked: Asked) -> Demand:
    return demand(workload, asked)


# --- running ----------------------------------------------------------------------------------------------------------


def sweep(
    points: Sequence[Point],
    out: Path,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Run the points that `out` does not hold yet and return the rows of all, in the order of `points`.

    Rows are appended to `out` as they come, so an interrupted sweep goes on where it stopped; at the end the file is put in
    order, beside and then renamed. `jobs` processes, by default one a core; `ray` is a cluster's address, 'local' starts one.

    Raises:
        InvalidInput: `out` holds something else.
        Unsupported: `ray` is given and not installed.
    """
    known = read_rows(out)
    waiting = [point for point in dict.fromkeys(points) if point.key not in known]
    total = len(points)
    if waiting:
        runner = _on_ray(waiting, ray) if ray else _on_cores(waiting, jobs or cores())
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as stream:
            for row in runner:
                stream.write(_line(row))
                stream.flush()
                known[row["key"]] = row
                if progress is not None:
                    progress(total - len(waiting) + _done(known, waiting), total, row["point"]["design"])
    rows = [known[point.key] for point in points]
    _put_in_order(out, rows, known)
    return rows


def _done(known: Mapping[str, Row], waiting: Iterable[Point]) -> int:
    return sum(point.key in known for point in waiting)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _on_cores(points: Sequence[Point], jobs: int) -> Iterator[Row]:
    """Rows as they are done, by `jobs` processes; a few points are queued at a time so that an interrupt is quick."""
    if jobs == 1 or len(points) == 1:
        yield from map(run_point, points)
        return
    context = multiprocessing.get_context("spawn")  # forked children would share DuckDB's threads
    with ProcessPoolExecutor(min(jobs, len(points)), mp_context=context) as pool:
        left = iter(points)
        running: set[Future[Row]] = set()
        try:
            for point in left:
                running.add(pool.submit(run_point, point))
                if len(running) >= 2 * jobs:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _on_ray(points: Sequence[Point], address: str) -> Iterator[Row]:
    """Rows as they are done, by the cores of a Ray cluster."""
    try:
        import ray
    except ImportError:
        raise Unsupported(
            "Ray is not installed; pip install 'diptych[ray]', or leave --ray out to use this machine"
        ) from None
    began = not ray.is_initialized()
    if began:
        ray.init(address=None if address == "local" else address, log_to_driver=False, include_dashboard=False)
    try:
        remote = ray.remote(run_point)
        running = [remote.remote(point) for point in points]
        while running:
            done, running = ray.wait(running, num_returns=1)
            yield from ray.get(done)
    finally:
        if began:
            ray.shutdown()


# --- the file ---------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> dict[str, Row]:
    """The rows of a result file by key; a last line cut short is dropped. Raises `InvalidInput` for any other file."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else [""]
    found: dict[str, Row] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            found[row["key"]] = row
        except (ValueError, KeyError, TypeError):
            if number == len(lines) and found:
                _cut(path, lines[:-1])
                break
            raise InvalidInput(
                Finding(f"{path}:{number}", "not a row of a sweep", "a new file, or one of this sweep")
            ) from None
    return found


def _cut(path: Path, lines: Sequence[str]) -> None:
    """A file without the line that an interrupt cut short."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _put_in_order(out: Path, rows: Sequence[Row], known: Mapping[str, Row]) -> None:
    """Rows in the order of the points, then those of earlier sweeps."""
    mine = {row["key"] for row in rows}
    text = "".join(
        _line(row)
        for row in [*{row["key"]: row for row in rows}.values(), *(r for k, r in known.items() if k not in mine)]
    )
    beside = out.with_name(f".{out.name}.sorted")
    beside.write_text(text, encoding="utf-8")
    beside.replace(out)


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"
