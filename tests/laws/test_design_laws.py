"""parse(format(design)) == design, for designs of every shape."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Overlap, Ownership, Placement, Side
from diptych.design.design import Design, Member, Pool
from diptych.design.text import format_design, parse_design
from diptych.design.written import usual_form
from diptych.errors import InvalidDesign

CATALOG = Catalog.load()
MODEL = CATALOG.model("Mixtral-8x7B")
SIZES = st.sampled_from([1, 2, 4, 8])
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12).map(str.strip)


@st.composite
def members(draw: st.DrawFn) -> Member:
    accelerator = draw(st.sampled_from(CATALOG.planable))
    if draw(st.booleans()):
        accelerator = replace(accelerator, nic_bandwidth=draw(st.floats(1.0, 1e12)))
    precision = Precision(*(draw(st.sampled_from(Dtype)) for _ in range(3)))
    shape = Parallelism(*(draw(SIZES) for _ in range(4)))
    limits = draw(st.integers(0, 4096)), draw(st.integers(0, 1 << 20))
    engine = draw(st.sampled_from(["vllm", "sglang", "trtllm", "my engine: x=1"]))
    worker = Worker(MODEL, accelerator, precision, shape, engine, *limits, draw(st.sampled_from(TierKind)))
    return Member(worker, draw(st.integers(1, 9999)), draw(st.floats(0, 1e6)), draw(NAMES))


@st.composite
def designs(draw: st.DrawFn) -> Design:
    pools = [tuple(draw(st.lists(members(), min_size=1, max_size=3))) for _ in range(draw(st.integers(1, 2)))]
    if len(pools) == 1:
        return Design((Pool(Role.COLOCATED, pools[0]),))
    made, used = (pool[0].worker.precision.kv for pool in pools)
    form = usual_form(made, used, draw(st.sampled_from([None, *Dtype])))
    if form.converts_at is not None:
        form = replace(form, converts_at=draw(st.sampled_from(Side)))
    local = draw(st.sampled_from([0, 0, 777]))
    places = [Placement.CONDITIONAL] if local else [Placement.DISAGGREGATED, Placement.SAME_NODE]
    link = draw(st.sampled_from(list(CATALOG.links.values())))
    boundary = Boundary(draw(st.sampled_from(places)), link, form, draw(st.sampled_from(Ownership)),
                        draw(st.sampled_from(Overlap)), local)  # fmt: skip
    return Design((Pool(Role.PREFILL, pools[0]), Pool(Role.DECODE, pools[1])), boundary)


@settings(deadline=None)
@given(designs())
def test_a_design_written_and_read_again_is_itself(design: Design) -> None:
    text = format_design(design, CATALOG)
    assert parse_design(text, CATALOG, MODEL) == design, text


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_design_or_findings(text: str) -> None:
    with suppress(InvalidDesign):
        parse_design(text, CATALOG, MODEL)
