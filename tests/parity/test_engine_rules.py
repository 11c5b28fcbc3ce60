"""The planner's view of an engine and the generator's are one: what has no objection can be written, what has one cannot."""

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.deploy.generate.generate import generate
from diptych.deploy.generate.request import Request
from diptych.deploy.generate.target import Target
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Representation
from diptych.design.design import Design, Member, Pool
from diptych.engines.objections import objections

CATALOG = Catalog.load()
MODELS = ("Qwen3-32B", "Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-120b")
NAMES = ("H100", "H20", "L40S", "A100", "T4", "B200", "MI300X", "RTX-PRO-6000-SE")


@st.composite
def workers(draw, model):
    accelerator = CATALOG.accelerator(draw(st.sampled_from(NAMES)))
    wide = Dtype.BF16 if accelerator.peak_flops.get(Dtype.BF16) else Dtype.FP16
    weights = draw(st.sampled_from((wide, Dtype.FP8))) if model.native.is_16bit else model.native
    kv = draw(st.sampled_from((wide, Dtype.FP8, Dtype.INT8)))
    sizes = Parallelism(tp=draw(st.sampled_from((1, 2, 3, 4, 8))), pp=draw(st.sampled_from((1, 1, 1, 2))))
    return Worker(model, accelerator, Precision(weights, wide, kv), sizes)


@st.composite
def designs(draw):
    model = CATALOG.model(draw(st.sampled_from(MODELS)))
    prefill, decode = draw(workers(model)), draw(workers(model))
    wire = draw(st.sampled_from((prefill.precision.kv, decode.precision.kv)))
    codec = Codec.RAW if prefill.precision.kv == wire == decode.precision.kv else Codec.CAST
    boundary = Boundary(
        Placement.DISAGGREGATED,
        CATALOG.link(draw(st.sampled_from(("rdma-400g", "tcp-25g", "efa")))),
        Representation(codec, wire),
        draw(st.sampled_from(Ownership)),
        draw(st.sampled_from(Overlap)),
    )
    pools = (Pool(Role.PREFILL, (Member(prefill, 1),)), Pool(Role.DECODE, (Member(decode, 1),)))
    return Design(pools, boundary)


@given(designs(), st.sampled_from(((Target.VLLM, ""), (Target.VLLM, "diptych"), (Target.SGLANG, ""))))
@settings(max_examples=300)
def test_no_objection_means_that_it_can_be_written(design, how):
    target, connector = how
    prefill, decode = (pool.members[0].worker for pool in design.pools)
    found = list(objections(prefill, decode, design.boundary, target.engine, connector=connector))
    made = generate(Request(design, prefill.model, target, connector=connector), CATALOG)
    assert bool(found) == made.is_refused, (found, made.refused, made.broken)
