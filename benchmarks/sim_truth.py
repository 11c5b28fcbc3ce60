"""Write docs/validation.md and its plots: what was measured or published beside what the simulator says.

Every table row and plot is computed anew from `tests/data` by the same code that the tests use; the pool sizing alone takes
minutes of both cores. Run: .venv/bin/python benchmarks/sim_truth.py [--quick]   (--quick keeps the pool sizing that is there)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "published"), str(HERE)]

import truth_distserve as distserve  # noqa: E402
import truth_paper as paper  # noqa: E402
import truth_splitwise as splitwise  # noqa: E402
import truth_vllm as vllm  # noqa: E402
from svg_plot import MEASURED, SIMULATED, Plot, cdf, row  # noqa: E402

from diptych.perf.measured import MeasuredTable  # noqa: E402
from diptych.perf.model import PerfModel  # noqa: E402
from diptych.perf.roofline import default_perf  # noqa: E402

PLOTS = HERE.parent / "docs" / "validation"
SIZING = PLOTS / "splitwise_sizing.md"  # kept by --quick
Cells = Iterable[object]


def table(header: Cells, rows: Iterable[Cells]) -> str:
    """A Markdown table."""
    header = list(header)
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def against(what: str, published: float, ours: float, fitted: str) -> list[str]:
    return [what, f"{published:.4g}", f"{ours:.4g}", f"{ours / published - 1:+.1%}", fitted]


def draw(name: str, plots: list[Plot]) -> str:
    (PLOTS / f"{name}.svg").write_text(row(plots), encoding="utf-8")
    return f"![{plots[0].title}](validation/{name}.svg)\n"


# --- vLLM -------------------------------------------------------------------------------------------------------------

CASES: tuple[tuple[vllm.Run, PerfModel, slice, str, bool], ...] = (
    (vllm.RTX4090, vllm.kernels(), slice(None), "nothing: published kernel table", True),
    (vllm.PRO8B, vllm.calibrated({}), slice(None), "nothing: shipped curves, no calibration", True),
    (vllm.PRO8B, default_perf(), slice(None), "nothing here: shipped calibration (data-centre GPUs)", False),
    (vllm.PRO8B, vllm.fitted(vllm.PRO8B), slice(vllm.HALF, None), "2 factors on requests 1–150", False),
    (vllm.DENSE, vllm.fitted(vllm.DENSE), slice(vllm.HALF, None), "2 factors on requests 1–150", True),
    (vllm.SPARSE, vllm.fitted(vllm.SPARSE), slice(vllm.HALF, None), "2 factors on requests 1–150", True),
)


def vllm_page() -> str:
    rows, plots = [], []
    for run, perf, part, fitted, drawn in CASES:
        seen, ours = vllm.measured(run), vllm.simulated(run, perf)
        for name in ("ttft", "tpot", "e2e"):
            a, b = seen[name][part], ours[name][part]
            tail = np.quantile(b, 0.9) / np.quantile(a, 0.9) - 1
            rows.append([*against(f"{run.name}: {name.upper()} mean, s", a.mean(), b.mean(), fitted), f"{tail:+.1%}"])
        if not drawn:
            continue
        plots.append(
            draw(f"vllm_{len(plots)}", [_cdfs(run, name, seen, ours, part) for name in ("ttft", "tpot", "e2e")])
        )
    return (
        table(["vLLM 0.19, ShareGPT at 10/s", "measured", "simulated", "error", "fitted on", "p90 error"], rows)
        + "\n"
        + "\n".join(plots)
    )


def _cdfs(run: vllm.Run, name: str, seen: object, ours: object, part: slice) -> Plot:
    plot = Plot(f"{run.name}: {name.upper()}", "s", "share of requests", y_range=(0.0, 1.02))
    return plot.line("measured", cdf(seen[name][part]), MEASURED).line("simulated", cdf(ours[name][part]))  # type: ignore[index]


# --- DistServe --------------------------------------------------------------------------------------------------------


def distserve_page() -> str:
    published = float(distserve.PROFILE["readme"]["requests_per_second_per_gpu"])
    found = [distserve.its_search(seed) for seed in range(30)]
    beds = distserve.PROFILE["testbed"]["runs"]
    replays = [distserve.replayed(bed["requests_per_second"]) for bed in beds]
    rows = [
        against(
            f"testbed at {bed['requests_per_second']:g}/s: {name.upper()} mean, s",
            bed[f"{name}_ms"] / 1e3,
            ours,
            "nothing",
        )
        for bed, pair in zip(beds, replays, strict=True)
        for name, ours in zip(("ttft", "tpot"), pair, strict=True)
    ]
    rows += [
        against(
            "highest rate in the long run (20,000 requests), its GPU's memory",
            published,
            distserve.sustained(20_000),
            "nothing",
        ),
        against("its own search on 300 requests, mean of 30 seeds", published, float(np.mean(found)), "nothing"),
    ]
    rates = np.arange(1.0, 1.85, 0.05)
    curves = [
        distserve.percentiles(distserve.run(rate, 10_000, 1, distserve.PROFILE["kv_tokens_tp1"])) for rate in rates
    ]
    plots = [
        *(
            Plot(f"DistServe testbed: mean {name.upper()}", "requests/s", "s")
            .dots("measured", [(bed["requests_per_second"], bed[f"{name}_ms"] / 1e3) for bed in beds])
            .line("simulated", [(bed["requests_per_second"], pair[i]) for bed, pair in zip(beds, replays, strict=True)])
            for i, name in enumerate(("ttft", "tpot"))
        ),
        Plot("DistServe example: TTFT p90", "requests/s per GPU", "s", y_range=(0.0, 0.3))
        .line("simulated", [(r, min(c[0], 0.3)) for r, c in zip(rates, curves, strict=True)])
        .limit("objective", [(1.0, distserve.TTFT), (1.8, distserve.TTFT)])
        .limit("published 1.56", [(1.56, 0.0), (1.56, 0.3)]),
        Plot("DistServe example: TPOT p90", "requests/s per GPU", "s", y_range=(0.0, 0.2))
        .line("simulated", [(r, min(c[1], 0.2)) for r, c in zip(rates, curves, strict=True)])
        .limit("objective", [(1.0, distserve.TPOT), (1.8, distserve.TPOT)])
        .limit("published 1.56", [(1.56, 0.0), (1.56, 0.2)]),
    ]
    spread = ", ".join(f"{value:g} ({found.count(value)}×)" for value in sorted(set(found)))
    text = (
        f"\nIts search of 300 requests, by seed: {spread}. 1.5625 means that 1.5625 held and 1.71875 did not, once.\n\n"
    )
    return (
        table(
            ["OPT-13B, prefill TP2 + decode TP1, A100", "measured or published", "simulated", "error", "fitted on"],
            rows,
        )
        + text
        + draw("distserve", plots)
    )


# --- Splitwise --------------------------------------------------------------------------------------------------------


def splitwise_table() -> str:
    rows, plots = [], []
    for hardware, name in (("a100-80gb", "A100"), ("h100-80gb", "H100")):
        for model in ("llama2-70b", "bloom-176b"):
            runs = splitwise.runs(model, hardware)
            order = np.random.default_rng(0).permutation(len(runs))
            fit = MeasuredTable.fit(runs[i] for i in order[len(runs) // 5 :])
            held = [runs[i] for i in order[: len(runs) // 5]]
            worker = splitwise.worker(splitwise.A100)
            ours = [float(fit.decode(worker, run.batch, run.prompt + run.output / 2).seconds) for run in held]
            prompt = [float(fit.prefill(worker, run.prompt, 0, run.batch).seconds) for run in held]
            errors = [abs(a / run.step - 1) for a, run in zip(ours, held, strict=True)]
            prompts = [abs(a / run.prefill - 1) for a, run in zip(prompt, held, strict=True)]
            both = np.mean(errors + prompts)
            rows.append(
                [f"{model} TP8, {name}", len(held), f"{np.mean(prompts):.1%}", f"{np.mean(errors):.1%}", f"{both:.1%}"]
            )
            if model == "llama2-70b":
                top = max(run.step for run in held) * 1.05
                plot = Plot(f"Decode step, {model} {name}", "measured, s", "simulated, s", (0.0, top), (0.0, top))
                plots.append(
                    plot.limit("equal", [(0.0, 0.0), (top, top)]).dots(
                        "held-out run", [(run.step, a) for run, a in zip(held, ours, strict=True)], SIMULATED
                    )
                )
    return (
        table(["held-out fifth", "runs", "prompt time MAPE", "decode a+bB+cS MAPE", "both"], rows)
        + "\n"
        + draw("splitwise_table", plots)
    )


def _sweep(job: tuple[int, str, str]) -> splitwise.Sweep:
    index, trace, model = job
    found = splitwise.sweep(splitwise.KINDS[index], trace, model)
    kind = found.kind
    return splitwise.Sweep(
        splitwise.Kind(kind.name, kind.prefill, kind.decode, _nothing, kind.grid), trace, found.peaks
    )


def _nothing(prefill: int) -> int:
    raise AssertionError("only the peaks travel")


def splitwise_sizing() -> str:
    jobs = [(i, trace, model) for model in ("published", "measured") for trace in ("code", "conv") for i in range(4)]
    with ProcessPoolExecutor() as pool:
        found = dict(zip(jobs, pool.map(_sweep, jobs), strict=True))
    rows, plots = [], []
    for trace in ("code", "conv"):
        plot = Plot(
            f"Splitwise, {trace}: peak by prefill machines (dots: the paper's splits)", "prefill machines", "requests/s"
        )
        for index, (kind, colour) in enumerate(
            zip(splitwise.KINDS, ("#1f5fa8", "#2c8a4b", "#8e44ad", "#d68910"), strict=True)
        ):
            prefill, decode = splitwise.PUBLISHED[trace, kind.name]
            looked, honest = found[index, trace, "published"], found[index, trace, "measured"]
            ours = min((p for p, rate in looked.peaks.items() if rate == looked.best), key=lambda p: abs(p - prefill))
            fair = [f"{p}P{kind.rest(p)}T" for p, rate in honest.peaks.items() if rate == honest.best]
            rows.append([
                f"Splitwise-{kind.name}, {trace}", f"{prefill}P{decode}T", f"{ours}P{kind.rest(ours)}T",
                f"{ours / prefill - 1:+.0%}", looked.best, f"{looked.peaks[prefill] / looked.best - 1:+.0%}",
                ", ".join(fair), honest.best,
            ])  # fmt: skip
            plot.line(kind.name, sorted(looked.peaks.items()), colour).dots(
                "", [(prefill, looked.peaks[prefill])], colour
            )
        plots.append(plot)
    ratio = found[3, "conv", "published"].best / found[0, "conv", "published"].best
    header = [
        "one power budget",
        "published split",
        "simulated split",
        "prefill error",
        "peak, req/s",
        "published split's peak",
        "split with measured decode",
        "its peak",
    ]
    text = f"\nSplitwise-HA over Splitwise-AA, conversation: published 1.18×, simulated {ratio:.2f}×.\n\n"
    return table(header, rows) + text + draw("splitwise_sizing", plots)


# --- the design-space paper -------------------------------------------------------------------------------------------


def paper_page() -> str:
    rows, measured, simulated, names = [], [], [], []
    for number, case in enumerate((*paper.CASES, paper.FP8_KV)):
        rate = paper.served(paper.run(case, 1.0))
        tpot = float(np.quantile(paper.run(case, 0.1).requests.tpot, 0.99))
        rows.append(against(f"{case.name}: requests/s at 1.0 offered", case.served, rate, "nothing"))
        rows.append(against(f"{case.name}: TPOT p99, s", case.tpot_p99, tpot, "nothing"))
        measured.append((number + 0.5, case.served))
        simulated.append((number + 0.5, rate))
        names.append(case.name)
    calm = float(np.quantile(paper.run(paper.CASES[0], 0.1).requests.ttft, 0.5))
    rows.append(against("BF16: TTFT p50 at 0.1 requests/s, s", 3.35, calm, "nothing"))
    gain = paper.served(paper.run(paper.FP8_KV, 2.0)) / paper.served(paper.run(paper.CASES[0], 2.0))
    plot = Plot("Tables 6 and 7: served at 1.0 offered", "", "requests/s", (0.0, 4.0), (0.0, 1.0), tuple(names))
    plot.bars("published", measured, MEASURED).bars("simulated", simulated, SIMULATED)
    text = f"\nFP8 KV over BF16 KV, both saturated: {gain:.2f}× (published knee 1.32×, by the bytes 2×).\n\n"
    return (
        table(["Qwen3-32B, 4P4D, 4096/512", "published", "simulated", "error", "fitted on"], rows)
        + text
        + draw("design_space_paper", [plot])
    )


def own_page() -> str:
    """What `measured_beside_simulated.py` wrote last: that takes a quiet machine, and is not measured again here."""
    text = (HERE / "measured_beside_simulated.md").read_text(encoding="utf-8")
    return text.partition("\n\n")[2]


def main(quick: bool) -> None:
    PLOTS.mkdir(exist_ok=True)
    if not quick:
        SIZING.write_text(splitwise_sizing(), encoding="utf-8")
    sizing = SIZING.read_text(encoding="utf-8")
    page = (
        (HERE / "sim_truth_page.md")
        .read_text(encoding="utf-8")
        .format(
            vllm=vllm_page(),
            own=own_page(),
            distserve=distserve_page(),
            table=splitwise_table(),
            sizing=sizing,
            paper=paper_page(),
        )
    )
    (HERE.parent / "docs" / "validation.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main("--quick" in sys.argv)
