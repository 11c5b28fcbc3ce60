"""How long a plan takes, and how many designs it answers for. Run: `python benchmarks/plan_speed.py [--markdown]`.

The whole catalog is put into one book: every accelerator that the catalog describes completely, at its cheapest offer of any
book, or, when nobody offers it, at an assumed 0.4 USD per hour and 100 dense 16-bit TFLOPS; servers of eight (fewer where the
scale-up link joins fewer). So every accelerator may take both roles, in every pair. CPU seconds are of one process; nothing is
kept between cases. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import dataclass

from diptych.catalog.catalog import Catalog
from diptych.catalog.offer import Offer, PriceBook
from diptych.perf.roofline import Roofline
from diptych.planner.planning import plan
from diptych.workload.load import load_workload


@dataclass(frozen=True)
class Case:
    """One question to time."""

    model: str
    workload: str
    rate: float
    slo: str
    prices: str


CASES = (
    Case("Llama-3.1-70B", "azure2023_conv.csv.gz", 20.0, "ttft_p90<2s, tpot_p90<50ms", "everything"),
    Case("Llama-3.1-8B", "azure2023_code.csv.gz", 50.0, "ttft_p90<1s, tpot_p90<40ms", "everything"),
    Case("Llama-3.1-70B", "mooncake_arxiv_first1000.jsonl.gz", 5.0, "ttft_p90<10s, tpot_p90<50ms", "everything"),
    Case("DeepSeek-V3", "azure2023_conv.csv.gz", 20.0, "ttft_p90<4s, tpot_p90<60ms", "everything"),
    Case("Llama-3.1-70B", "azure2023_conv.csv.gz", 20.0, "ttft_p90<2s, tpot_p90<50ms", "aws"),
    Case("Llama-3.1-70B", "azure2023_conv.csv.gz", 20.0, "ttft_p90<2s, tpot_p90<50ms", "azure"),
)


def everything(catalog: Catalog) -> PriceBook:
    """One provider that rents every accelerator of the catalog."""
    cheapest: dict[str, float] = {}
    for book in catalog.books.values():
        for offer in book:
            cheapest[offer.accelerator] = min(cheapest.get(offer.accelerator, 1e9), offer.usd_per_gpu_hour)
    offers = []
    for accelerator in catalog.planable:
        hourly = cheapest.get(accelerator.name, 0.4 * accelerator.peak_16bit / 1e14)
        gpus = max(min(8, accelerator.scaleup.world), 1)
        offers.append(Offer(accelerator.name, "everything", f"{accelerator.name}-x{gpus}", gpus, hourly * gpus, "one"))
    return PriceBook("everything", "assumed", tuple(offers))


def run(case: Case) -> dict[str, object]:
    """Time one case, everything built anew."""
    catalog, workload = Catalog.load(), load_workload(case.workload)
    book = everything(catalog) if case.prices == "everything" else catalog.book(case.prices)
    wall, cpu = time.perf_counter(), time.process_time()
    found = plan(case.model, workload, case.slo, catalog=catalog, prices=book, rate=case.rate, perf=Roofline())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "model": case.model,
        "workload": case.workload.split(".")[0],
        "prices": case.prices,
        "accelerators": len({offer.accelerator for offer in book}),
        "cartesian": found.space.cartesian,
        "considered": found.space.effective,
        "sized": found.space.sized,
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "answer": f"{found.best.label} ({found.verdict.answer})",
    }


def table(rows: list[dict[str, object]]) -> str:
    """The rows as a Markdown table."""
    head = "| model, workload | book (accelerators) | product of the axes | valid designs answered for | sized | wall s | CPU s |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {r['model']}, {r['workload']} | {r['prices']} ({r['accelerators']}) | {float(str(r['cartesian'])):.1e} "
        f"| {int(str(r['considered'])):,} | {int(str(r['sized'])):,} | {r['wall_s']} | {r['cpu_s']} |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--markdown", action="store_true", help="print a table before the JSON")
    arguments = parser.parse_args()
    rows = [run(case) for case in CASES]
    if arguments.markdown:
        print(table(rows))
    print(json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}))


if __name__ == "__main__":
    main()
