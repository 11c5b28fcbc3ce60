"""A design as an engine's settings, and what an engine cannot be told."""

import pytest

from diptych.catalog.catalog import Catalog
from diptych.design.axes import Role
from diptych.design.text import parse_design
from diptych.engines.backends import backends, shared_backend
from diptych.engines.engine import Engine, Launcher
from diptych.engines.handling import refusals
from diptych.engines.of_design import BLOCK, How, deployment_of, needs_checkpoint

CATALOG = Catalog.load()
MODEL = CATALOG.model("Qwen3-32B")


def design_of(text, model=MODEL):
    return parse_design(text, CATALOG, model)


def roles_of(text, model=MODEL, **how):
    deployment = deployment_of(design_of(text, model), How(**{"engine": Engine.VLLM, **how}))
    return deployment.of(Role.PREFILL)[0], deployment.of(Role.DECODE)[0]


def choices(text, engine=Engine.VLLM, launcher=Launcher.PLAIN, model=MODEL):
    design = design_of(text, model)
    prefill, decode = (design.pool(role).members[0].worker for role in (Role.PREFILL, Role.DECODE))
    return [refusal.choice for refusal in refusals(engine, launcher, prefill, decode, design.boundary)]


def test_each_role_keeps_its_own_hardware_and_both_keep_one_kv():
    prefill, decode = roles_of("3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, pull")
    assert (prefill.gpu, prefill.tp, prefill.replicas) == ("H100-SXM-80GB", 2, 3)
    assert (decode.tp, decode.replicas, decode.gpus_per_worker) == (4, 5, 4)
    assert prefill.kv_cache_dtype == decode.kv_cache_dtype == "fp8_e4m3"
    assert prefill.block_size == decode.block_size
    assert prefill.attention_backend == decode.attention_backend == "FLASH_ATTN"
    assert prefill.connector.name == decode.connector.name == "NixlConnector"
    assert (prefill.connector.role, decode.connector.role) == ("kv_producer", "kv_consumer")
    assert decode.connector.fields["kv_load_failure_policy"] == "recompute"
    assert prefill.model == decode.model == "Qwen/Qwen3-32B"


def test_a_push_has_its_own_connector():
    prefill, decode = roles_of("1xH100 -> 1xH20, kv=fp8, link=rdma-400g, push")
    assert prefill.connector.name == decode.connector.name == "NixlPushConnector"


def test_sixteen_bit_kv_is_spelled_auto_where_it_is_the_models_own_format():
    prefill, decode = roles_of("1xH100 -> 1xH20, kv=bf16, link=rdma-400g, pull")
    assert prefill.kv_cache_dtype == decode.kv_cache_dtype == "auto"
    assert prefill.dtype == decode.dtype == "bfloat16"


def test_weights_of_a_role_are_made_while_loading_or_come_from_its_own_checkpoint_at_one_path():
    prefill, decode = roles_of("1xH100:w=fp8 -> 1xA100:tp4:w=int4, kv=bf16, link=rdma-400g, pull",
                               checkpoints={Role.DECODE: "Qwen/Qwen3-32B-AWQ"})  # fmt: skip
    assert prefill.quantization == "fp8"
    assert decode.quantization == ""
    assert prefill.model == decode.model == "/models/Qwen3-32B"
    assert needs_checkpoint(design_of("1xA100:tp4:w=int4").pools[0].members[0].worker)
    assert not needs_checkpoint(design_of("1xH100:tp2:w=fp8").pools[0].members[0].worker)


def test_sglang_is_told_its_mode_and_where_to_meet():
    prefill, decode = roles_of("1xH100 -> 1xH20, kv=fp8, link=rdma-400g, push", engine=Engine.SGLANG)
    assert prefill.options["disaggregation-mode"] == "prefill"
    assert prefill.options["disaggregation-bootstrap-port"] == 8998
    assert decode.options["disaggregation-mode"] == "decode"
    assert prefill.connector is None


def test_kv_below_hbm_is_a_second_connector():
    prefill, decode = roles_of("1xH100:tier=dram -> 1xH20, kv=fp8, link=rdma-400g, pull")
    assert [child.name for child in prefill.connector.children] == ["NixlConnector", "OffloadingConnector"]
    assert prefill.connector.extra["connectors"][1]["kv_connector_extra_config"]["cpu_bytes_to_use"] == 64 * 2**30
    assert decode.connector.children == ()


def test_a_colocated_design_needs_no_connector():
    (pool,) = deployment_of(design_of("4xH100:tp2"), How(Engine.VLLM)).roles
    assert pool.connector is None
    assert pool.env == {}
    assert pool.attention_backend == ""


@pytest.mark.parametrize(
    ("text", "engine", "launcher", "word"),
    [
        ("1xH100:kv=bf16 -> 1xH20:kv=fp8, link=rdma-400g, pull", Engine.VLLM, Launcher.PLAIN, "KV bf16 → "),
        ("1xH100 -> 1xH20, kv=fp8, link=rdma-400g, pull", Engine.SGLANG, Launcher.PLAIN, "ownership pull"),
        ("1xH100 -> 1xH20, kv=fp8, link=rdma-400g, push, layerwise", Engine.VLLM, Launcher.PLAIN, "overlap layerwise"),
        ("1xH100 -> 1xH20, kv=fp8, link=rdma-400g, local=500, pull", Engine.VLLM, Launcher.PLAIN, "prompts under 500"),
        ("1xH100:tier=dram -> 1xH20, kv=fp8, link=rdma-400g, push", Engine.SGLANG, Launcher.PLAIN, "KV residency dram"),
    ],
)  # fmt: skip
def test_what_an_engine_cannot_express_is_refused(text, engine, launcher, word):
    found = choices(text, engine, launcher)
    assert any(choice.startswith(word) for choice in found), found


@pytest.mark.parametrize("launcher", [Launcher.DYNAMO, Launcher.LLM_D, Launcher.KSERVE])
def test_routers_that_decide_by_length_take_a_conditional_design(launcher):
    assert choices("1xH100 -> 1xH20, kv=fp8, link=rdma-400g, local=500, pull", launcher=launcher) == []


@pytest.mark.parametrize(
    ("names", "kv", "model", "backend"),
    [
        (("H100", "H20"), "fp8", "Qwen3-32B", "FLASH_ATTN"),
        (("H100", "L40S"), "fp8", "Qwen3-32B", "FLASHINFER"),  # 8-bit KV under FlashAttention is Hopper's alone
        (("H100", "A100"), "bf16", "Qwen3-32B", "FLASH_ATTN"),
        (("H100", "MI300X"), "bf16", "Qwen3-32B", "TRITON_ATTN"),
        (("H100", "B200"), "fp8", "DeepSeek-V3", "FLASHMLA"),
    ],
)
def test_two_generations_share_a_backend(names, kv, model, backend):
    sides = [
        (CATALOG.accelerator(name), CATALOG.accelerator("H100").fp8_format if kv == "fp8" else kv) for name in names
    ]
    assert shared_backend(CATALOG.model(model), *sides).name == backend


def test_vendors_without_a_common_backend_have_none():
    sides = [(CATALOG.accelerator("H100"), "bf16"), (CATALOG.accelerator("Gaudi3"), "bf16")]
    assert shared_backend(MODEL, *sides) is None


def test_the_block_that_is_written_suits_every_backend():
    multiples = {backend.block for attention in ("gqa", "mla") for backend in backends(attention)}
    assert multiples
    assert all(BLOCK % multiple == 0 for multiple in multiples)
