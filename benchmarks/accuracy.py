"""Write benchmarks/accuracy.md: how far `diptych validate` is off on the published rows in tests/data/benchmarks.

Run: .venv/bin/python benchmarks/accuracy.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from diptych.catalog.catalog import Catalog
from diptych.perf.roofline import default_perf
from diptych.planner.accuracy import METRICS, Accuracy, Errors, accuracy
from diptych.planner.benchmark_rows import Kind, read_table
from diptych.planner.validate import Prediction, predict, unanswered

HERE = Path(__file__).parent
DATA = HERE.parent / "tests/data/benchmarks"
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "output": "output tok/s"}
FITTED = {Kind.CLOSED, Kind.OFFLINE, Kind.STATIC, Kind.FIRST_TOKEN}

HEAD = """# Accuracy on published results

Every row of `tests/data/benchmarks`, predicted by the shipped model and put beside what was published. Errors are
|predicted/measured − 1|: median and 90th percentile; *ratio* is the median predicted/measured; *in band* the share of rows whose
truth lies within the error band that the prediction stated. Written by `benchmarks/accuracy.py`; `diptych validate` prints the
same for anyone's table.

What is fitted to what: `perf/data/calibration.json` (a few named parameters per engine and architecture, none per model or
row) is fitted to load tests against colocated workers, offline, static-batch and first-token rows. Disaggregated, MLPerf and
GPUStack rows are never fitted to, except for the handoff and cold-start seconds of `perf/data/overheads.json`, medians of 9 to
154 disaggregated rows per engine. Errors on whole (model, accelerator) groups that the calibration has not seen are in the
second table. The error bands of `planner/data/bands.json` are the 90th percentile of these same rows by kind.
"""

PEER = """
## Beside AIConfigurator 0.12.0 on the same corpus

AIConfigurator's figures are of random rows of the corpus (1,225 tried, and all 274 disaggregated ones that carry worker counts);
ours of the sample in `silicon_sample_aiconfigurator.csv.gz`. Neither is out of sample: its
TTFT factor for vLLM was fitted on this corpus, our calibration on the colocated rows of this sample.

| | AIConfigurator | diptych |
| --- | --- | --- |
| rows answered | {peer_answered} | {answered} |
| TPOT, median error | 16.6 % | {tpot} |
| TTFT, median error | 49.6 % | {ttft} |
| disaggregated TPOT, median error | 24.9 % | {apart_tpot} |
| disaggregated TTFT, median ratio | 0.27 | {apart_ratio} |
{bands}
"""
PEER_BANDS = {"2-8": 0.66, "9-32": 0.46, "33-128": 0.23, "129-512": 0.19, ">512": 0.07}


def main() -> None:
    """Predict both tables and write the page."""
    catalog, perf = Catalog.load(), default_perf()
    text = HEAD
    for name in ("benchmarks_unified.csv.gz", "silicon_sample_aiconfigurator.csv.gz"):
        table = read_table(DATA / name)
        answers = predict(table.rows, catalog, perf)
        without = unanswered(table.unread, answers)
        found = accuracy(answers.predictions, without)
        if table.layout == "unified":
            text += _unified(answers.predictions, found)
        else:
            text += _peer(answers.predictions, found)
    (HERE / "accuracy.md").write_text(text, encoding="utf-8")


def _unified(predictions: Sequence[Prediction], found: Accuracy) -> str:
    total = found.answered + sum(found.unanswered.values())
    groups = {
        "all answered rows": found.overall,
        "kinds the calibration is fitted to": _of(predictions, fitted=True),
        "kinds it is not fitted to": _of(predictions, fitted=False),
        **{f"answered {name}": errors for name, errors in found.groups["answer"].items()},
    }
    text = f"\n{found.answered} of {total} rows are answered, {found.assumed} of them under stated assumptions.\n\n"
    text += _table(groups) + _held_out()
    for grouping in ("mode", "accelerator", "model", "concurrency", "basis"):
        ordered = sorted(
            found.groups[grouping].items(), key=lambda item: -max((e.count for e in item[1].values()), default=0)
        )
        text += f"\n## By {grouping}\n\n" + _table(dict(ordered))
    lines = [f"| {count} | {reason} |" for reason, count in found.unanswered.items()]
    return text + "\n## Without an answer\n\n| rows | because |\n| ---: | --- |\n" + "\n".join(lines) + "\n"


def _of(predictions: Sequence[Prediction], fitted: bool) -> Mapping[str, Errors]:
    chosen = [p for p in predictions if _is_fitted(p) is fitted]
    return accuracy(chosen, ()).overall


def _is_fitted(p: Prediction) -> bool:
    return p.row.kind in FITTED and not p.row.source.startswith(("MLPerf", "GPUStack"))


def _held_out() -> str:
    """What the calibration's own fit reports of groups it held out."""
    path = files("diptych.perf").joinpath("data/calibration.json")
    quality = json.loads(path.read_text(encoding="utf-8")).get("quality", {}) if path.is_file() else {}
    seen, held = quality.get("in_sample", {}), quality.get("held_out_groups", {})
    if not held:
        return "\n## Held-out groups\n\nThe shipped calibration carries no held-out errors.\n"
    lines = [
        "| | rows | in sample: median | ratio | held out: median | p90 | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [_held_row(name, row, seen.get(name, {})) for name, row in held.items()]
    note = "Five folds, each fitted without the rows of its (model, accelerator) groups."
    return f"\n## Held-out groups\n\n{note}\n\n" + "\n".join(lines) + "\n"


def _held_row(name: str, row: Mapping[str, float], seen: Mapping[str, float]) -> str:
    inside = f"{seen['median']:.1%} | {seen['ratio']:.2f}" if seen else "| "
    return f"| {name} | {row['n']} | {inside} | {row['median']:.1%} | {row['p90']:.0%} | {row['ratio']:.2f} |"


def _table(groups: Mapping[str, Mapping[str, Errors]]) -> str:
    head = "| |" + "".join(f" {TITLES[m]} rows | median | p90 | ratio | in band |" for m in METRICS)
    lines = [head, "| --- |" + " ---: | ---: | ---: | ---: | ---: |" * len(METRICS)]
    for name, errors in groups.items():
        lines.append(f"| {name} |" + "".join(_cells(errors.get(metric)) for metric in METRICS))
    return "\n".join(lines) + "\n"


def _cells(error: Errors | None) -> str:
    if error is None:
        return " | | | | |"
    return f" {error.count} | {error.median:.1%} | {error.p90:.0%} | {error.ratio:.2f} | {error.within_band:.0%} |"


def _peer(predictions: Sequence[Prediction], found: Accuracy) -> str:
    total = found.answered + sum(found.unanswered.values())
    apart = found.groups["mode"].get("disagg", {})
    bands = found.groups["mode and concurrency"]
    lines = [
        f"| disaggregated TTFT ratio, concurrency {band} | {theirs} | {bands[key]['ttft'].ratio:.2f} |"
        for band, theirs in PEER_BANDS.items()
        if (key := f"disagg {band}") in bands
    ]
    return PEER.format(
        peer_answered=f"{640 / 1225:.0%}", answered=f"{found.answered / total:.0%}", tpot=f"{found.overall['tpot'].median:.1%}",
        ttft=f"{found.overall['ttft'].median:.1%}", apart_tpot=f"{apart['tpot'].median:.1%}",
        apart_ratio=f"{apart['ttft'].ratio:.2f}", bands="\n".join(lines),
    ) + "\n## The silicon sample by accelerator\n\n" + _table(found.groups["accelerator"])  # fmt: skip


if __name__ == "__main__":
    main()
