"""The spellings of public benchmark tables find their entry; what no config describes stays unresolved."""

from __future__ import annotations

import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.names import accelerator_key, model_keys

CATALOG = Catalog.load()

MODELS = {
    "gptj-99": "GPT-J-6B",
    "GPT-J 6B": "GPT-J-6B",
    "Falcon 180B": "Falcon-180B",
    "deepseek-ai/DeepSeek-R1": "DeepSeek-R1",
    "deepseek-ai/DeepSeek-R1-0528": "DeepSeek-R1",
    "DeepSeek-R1/V3": "DeepSeek-R1",
    "DeepSeek-V3/R1": "DeepSeek-V3",
    "llama2-70b-99": "Llama-2-70B",
    "llama2-70b-99.9": "Llama-2-70B",
    "llama2-70b-fp8_quark": "Llama-2-70B",
    "LLaMA 70B": "Llama-2-70B",
    "LLaMA 7B": "Llama-2-7B",
    "meta-llama/Llama-3.1-70B": "Llama-3.1-70B",
    "meta-llama/Llama-3.1-70B-Instruct": "Llama-3.1-70B",
    "nvidia/Llama-3.1-70B-Instruct-FP8": "Llama-3.1-70B",
    "Llama-3-70B": "Llama-3.1-70B",
    "Llama-3.3-70B": "Llama-3.1-70B",
    "llama3_1-70b-fp8_dyn": "Llama-3.1-70B",
    "llama3_1-70b-fp8_pre": "Llama-3.1-70B",
    "llama3_1-70b-fp8_trtllm": "Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "llama3.1-8b": "Llama-3.1-8B",
    "llama3_1-8b-edge": "Llama-3.1-8B",
    "llama3.1-405b": "Llama-3.1-405B",
    "llama3_1-405b_finetuned": "Llama-3.1-405B",
    "MiniMaxAI/MiniMax-M2.5": "MiniMax-M2.5",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "GPT-OSS-20B": "gpt-oss-20b",
    "mixtral-8x7b": "Mixtral-8x7B",
    "Mixtral 8x7B": "Mixtral-8x7B",
    "Mistral 7B": "Mistral-7B-v0.2",
    "Qwen/Qwen3-32B-FP8": "Qwen3-32B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen3-32B",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B",
    "Qwen3-235B-A22B-Instruct-2507": "Qwen3-235B-A22B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "Qwen3-30B-A3B",
    "moonshotai/Kimi-K2.5": "Kimi-K2.5",
    "zhipuai/GLM-5": "GLM-5",
    "zai-org/GLM-5.2-FP8": "GLM-5.2",
    "zai-org/GLM-4.6": "GLM-4.6",
    "Llama-4-Maverick": "Llama-4-Maverick-17B-128E",
    "- Qwen/Qwen3.5-35B-A3B": "Qwen3.5-35B-A3B",
}

UNRESOLVED_MODELS = (
    "Qwen/Qwen3.5-9B",
    "zai-org/GLM-4.5-Air",
    "qwen3-vl-235b-a22b",  # its load is images
    "llama3_1-405b_pruned",  # another shape
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
    "Llama-3.1-70B-Fast",
    "",
    "/",
)

ACCELERATORS = {
    "H100-SXM": "H100-SXM-80GB",
    "NVIDIA H100-SXM-80GB": "H100-SXM-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM-80GB",
    "h100_sxm": "H100-SXM-80GB",
    "NVIDIA H100-PCIe-80GB": "H100-PCIe-80GB",
    "NVIDIA H100-NVL-94GB": "H100-NVL-94GB",
    "NVIDIA H200": "H200-SXM-141GB",
    "NVIDIA H200-SXM-141GB-CTS": "H200-SXM-141GB",
    "Virtualized NVIDIA H200-SXM-141GB": "H200-SXM-141GB",
    "NVIDIA H200-NVL-141GB": "H200-NVL-141GB",
    "A100-SXM-80GB": "A100-SXM4-80GB",
    "A100-PCIE-80GB": "A100-PCIe-80GB",
    "B200": "B200-SXM",
    "b200_sxm": "B200-SXM",
    "NVIDIA B200-SXM-180GB": "B200-SXM",
    "NVIDIA B300-SXM-270GB": "B300-SXM",
    "gb200": "GB200",
    "NVIDIA GB300": "GB300",
    "NVIDIA GH200 Grace Hopper Superchip 96GB": "GH200-96GB",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-SE",
    "NVIDIA L40S": "L40S",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "AMD Instinct MI300X 192GB HBM3": "MI300X",
    "AMD Instinct MI300X-NPS1-SPX-192GB-750W": "MI300X",
    "AMD MI300X-NPS1-SPX-192GB-750W": "MI300X",
    "AMD Instinct MI325X 256GB HBM3e": "MI325X",
    "AMD Instinct MI350X": "MI350X",
    "AMD Instinct MI355X 288GB HBM3e (x87)": "MI355X",
    "AMD Instinct MI355X 288GB HBM3e (Power Cap 1000 W)": "MI355X",
    "Intel(R) Arc Pro(R) B60": "Arc-Pro-B60",
    "[MAXSUN] MS-Intel Arc Pro B60 Dual 48G Turbo": "Arc-Pro-B60",
    "DGX-Spark-GB10": "DGX-Spark-GB10",
}

UNRESOLVED_ACCELERATORS = (
    "N/A",
    "",
    "Ascend-910B",
    "NVIDIA GH200 Grace Hopper Superchip 144GB",
    "RTX-PRO-6000",
    "Intel(R) Arc Pro(R) B70",
    "NVIDIA Jetson AGX Thor 128G",
    "MI300X+MI325X",
    "AMD Instinct MI325X 256GB HBM3E (x16), AMD Instinct MI300X 192GB HBM3 (x8)",
)


@pytest.mark.parametrize(("spelling", "name"), MODELS.items())
def test_model_spellings(spelling: str, name: str) -> None:
    found = CATALOG.find_model(spelling)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("spelling", UNRESOLVED_MODELS)
def test_models_without_a_known_shape_stay_unresolved(spelling: str) -> None:
    assert CATALOG.find_model(spelling) is None


@pytest.mark.parametrize(("spelling", "name"), ACCELERATORS.items())
def test_accelerator_spellings(spelling: str, name: str) -> None:
    found = CATALOG.find_accelerator(spelling)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("spelling", UNRESOLVED_ACCELERATORS)
def test_accelerators_not_in_the_catalog_stay_unresolved(spelling: str) -> None:
    assert CATALOG.find_accelerator(spelling) is None


def test_suffixes_are_dropped_one_by_one() -> None:
    assert model_keys("a/Qwen3-32B-Instruct-FP8") == ("qwen332binstructfp8", "qwen332binstruct", "qwen332b")
    assert model_keys("Instruct") == ("instruct",)


def test_vendor_and_memory_words_are_dropped() -> None:
    assert accelerator_key("NVIDIA L40S") == accelerator_key("L40S 48GB GDDR6").removesuffix("48gb") == "l40s"
