"""Random questions small enough to answer by trying everything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from toy_perf import ToyPerf

from diptych.catalog.accelerator import Accelerator, ScaleUp
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.model import Attention, LayerGroup, Mlp, Model
from diptych.catalog.offer import Offer, PriceBook
from diptych.metrics.slo import SLO
from diptych.planner.ask import Ask, ask
from diptych.planner.pins import Pins
from diptych.workload.lengths import Lengths
from diptych.workload.profile import RateProfile, profile_of
from diptych.workload.workload import Arrivals, Workload

MODEL = Model("toy-2B", 2048, 32000, (LayerGroup(24, Attention(16, 4, 128, 128), Mlp(8192)),), max_context=65536)
LINKS = (
    Link("net-25g", LinkKind.TCP, 3.1e9, 5e-4, 0.9),
    Link("net-100g", LinkKind.ROCE, 12.5e9, 2e-4, 0.9),
    Link("inside", LinkKind.PCIE, 30e9, 2e-5, 0.8, same_server=True),
)


@dataclass(frozen=True)
class Draw:
    """The numbers a question is made of."""

    accelerators: tuple[tuple[float, float, float, int, bool], ...]
    prices: tuple[tuple[int, int, float, float], ...]
    lengths: tuple[tuple[float, float, float], ...]
    rate: float
    slo: str
    cv: float = 1.0
    shapes: tuple[str, str] = ("tp1", "tp1")
    swing: tuple[tuple[float, float, float], ...] = ()


floats = st.floats
accelerator = st.tuples(floats(3e13, 1e15), floats(3e11, 4e12), st.sampled_from([12e9, 16e9, 40e9]), st.sampled_from([1, 2]),
                        st.booleans())  # fmt: skip
price = st.tuples(
    st.integers(0, 1), st.sampled_from([1, 2, 4]), floats(0.3, 8.0), st.sampled_from([4e8, 3.1e9, 12.5e9])
)
length = st.tuples(floats(50, 6000), floats(2, 400), floats(0.0, 0.6))
window = st.tuples(floats(100, 1000), floats(0.5, 2.0), floats(0.5, 2.0))
"""Requests of a window, and how much longer than usual its prompts and answers are."""
slos = st.builds(
    lambda ttft, tpot, extra, whole: (
        f"ttft_p90<{ttft:.3f}s, tpot_{extra}<{tpot * 1000:.1f}ms" + (f", e2e_p90<{whole:.3f}s" if whole else "")
    ),
    floats(0.1, 4.0), floats(0.008, 0.08), st.sampled_from(["p50", "p90", "mean", "p99"]),
    st.one_of(st.just(0.0), floats(0.2, 8.0)),
)  # fmt: skip
draws = st.builds(
    Draw, st.tuples(accelerator, accelerator), st.lists(price, min_size=1, max_size=3).map(tuple),
    st.lists(length, min_size=1, max_size=3).map(tuple), floats(0.3, 12.0), slos, st.sampled_from([0.5, 1.0, 2.0]),
    st.tuples(st.sampled_from(["tp1", "tp2"]), st.sampled_from(["tp1", "tp2"])),
    st.one_of(st.just(()), st.lists(window, min_size=2, max_size=6).map(tuple)),
)  # fmt: skip


def catalog_of(draw: Draw) -> Catalog:
    """Two accelerators, three links."""
    made = [
        Accelerator(
            f"toy{i}", "toy" if same else f"maker{i}", memory, bandwidth, {Dtype.BF16: flops, Dtype.FP8: 2 * flops},
            ScaleUp("NVLink", 1e11, world), 3e10, 12.5e9, 300.0,
        )
        for i, (flops, bandwidth, memory, world, same) in enumerate(draw.accelerators)
    ]  # fmt: skip
    offers = tuple(
        Offer(f"toy{which}", "cloud", f"i{number}", gpus, usd * gpus, "here", "2026-01-01", "on-demand", nic)
        for number, (which, gpus, usd, nic) in enumerate(draw.prices)
    )
    return Catalog({a.name: a for a in made}, {link.name: link for link in LINKS}, {}, {MODEL.name: MODEL},
                   {"book": PriceBook("book", "2026-01-01", offers)})  # fmt: skip


def workload_of(draw: Draw) -> Workload:
    isl, osl, hit = (np.array(values, dtype=float) for values in zip(*draw.lengths, strict=True))
    weight = np.full(len(isl), 1 / len(isl))
    arrivals = Arrivals(draw.rate, draw.cv, profile=_profile(draw))
    return Workload("drawn", Lengths(isl, osl, np.floor(isl * hit), weight), arrivals, len(isl))


def _profile(draw: Draw) -> RateProfile | None:
    if not draw.swing:
        return None
    count, prompt, answer = np.array(draw.swing).T
    return profile_of(count, 60.0, count * prompt, count * answer, draw.cv)


def question(draw: Draw, catalog: Catalog | None = None, **given: object) -> Ask:
    """The drawn question."""
    pins = Pins(
        prefill_precision="w=bf16 a=bf16", decode_precision="w=bf16 a=bf16 kv=bf16",
        prefill_parallelism=draw.shapes[0], decode_parallelism=draw.shapes[1],
    )  # fmt: skip
    options: dict[str, object] = {"rate": draw.rate, "prices": "book", "pins": pins, **given}
    return ask(
        MODEL, workload_of(draw), SLO.parse(draw.slo), catalog=catalog or catalog_of(draw), perf=ToyPerf(), **options
    )  # type: ignore[arg-type]
