"""Token mixers of a Hugging Face config: GQA, MLA, windows, compressed attention, linear attention, Mamba-2."""

from __future__ import annotations

from dataclasses import replace

from diptych.catalog.config_fields import Fields
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Attention, StateSpace
from diptych.errors import Finding

Mixer = Attention | StateSpace | None

_LAYER_TYPES = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
}
_GATED_QUERY = ("qwen3_next", "qwen3_5")  # their q_proj also holds an output gate
_LLAMA4_GLOBAL_EVERY = 4  # no_rope_layer_interval: every fourth layer attends to all tokens


def mixers(fields: Fields, layers: int) -> list[Mixer]:
    """One mixer per layer."""
    if fields.has("compress_ratios"):
        return _compressed(fields, layers)
    kinds = attention_kinds(fields, layers)
    made = {kind: _mixer(fields, kind) for kind in dict.fromkeys(kinds)}
    found = [made[kind] for kind in kinds]
    shares = fields.sequence("indexer_types", layers)
    if shares is None:
        return found
    return [_without_index(mixer) if kind == "shared" else mixer for mixer, kind in zip(found, shares, strict=True)]


def _without_index(mixer: Mixer) -> Mixer:
    """A layer that reuses the top-k of an earlier one (GLM-5.2): sparse reads, no index of its own."""
    return replace(mixer, index_heads=0, index_head_dim=0) if isinstance(mixer, Attention) else mixer


def attention_kinds(fields: Fields, layers: int) -> list[str]:
    """'full', 'sliding', 'chunked', 'linear' or 'mamba' for every layer, from whichever field the family uses."""
    for name in ("layer_types", "layers_block_type"):
        types = fields.sequence(name, layers)
        if types is not None:
            return _named_kinds(fields, name, [str(kind) for kind in types])
    pattern = fields.sequence("hybrid_layer_pattern", layers)  # MiMo: 1 is a window
    if pattern is not None:
        return ["sliding" if flag else "full" for flag in pattern]
    if fields.has("linear_attn_config"):  # Kimi Linear: layers are counted from 1
        full = set(fields.mapping("linear_attn_config").get("full_attn_layers") or ())
        return ["full" if index + 1 in full else "linear" for index in range(layers)]
    if fields.has("full_attention_interval") and fields.has("linear_num_value_heads"):
        return _every(layers, fields.count("full_attention_interval"), "linear")
    if fields.has("attention_chunk_size") and fields.text("model_type").startswith("llama4"):
        return _every(layers, _LLAMA4_GLOBAL_EVERY, "chunked")
    return _window_kinds(fields, layers)


def _named_kinds(fields: Fields, name: str, types: list[str]) -> list[str]:
    unknown = sorted(set(types) - set(_LAYER_TYPES))
    if unknown:
        fields.findings.append(Finding(fields.where, f"{name} names {', '.join(unknown)}", ", ".join(_LAYER_TYPES)))
    return [_LAYER_TYPES.get(kind, "full") for kind in types]


def _every(layers: int, interval: int, otherwise: str) -> list[str]:
    return ["full" if (index + 1) % interval == 0 else otherwise for index in range(layers)]


def _window_kinds(fields: Fields, layers: int) -> list[str]:
    family = fields.text("model_type")
    if not fields.has("sliding_window"):
        return ["full"] * layers
    if fields.has("sliding_window_pattern", "_sliding_window_pattern"):
        return _every(layers, fields.count("sliding_window_pattern", "_sliding_window_pattern"), "sliding")
    if family.startswith("gemma3"):
        return _every(layers, 6, "sliding")
    if family == "gemma2":
        return _every(layers, 2, "sliding")
    if family.startswith("qwen"):
        if not fields.flag("use_sliding_window"):
            return ["full"] * layers
        first = fields.count("max_window_layers", default=0, minimum=0)
        return ["full" if index < first else "sliding" for index in range(layers)]
    return ["sliding" if fields.flag("use_sliding_window", default=True) else "full"] * layers


def _mixer(fields: Fields, kind: str) -> Mixer:
    if kind == "mamba":
        return mamba2(fields)
    if kind == "linear":
        return _kimi_delta(fields) if fields.has("linear_attn_config") else _gated_delta(fields)
    window = None
    if kind == "sliding":
        window = fields.count("sliding_window", "sliding_window_size")
    elif kind == "chunked":
        window = fields.count("attention_chunk_size")
    return _latent(fields, window) if fields.has("kv_lora_rank") else grouped(fields, kind, window)


def _latent(fields: Fields, window: int | None) -> Attention:
    """MLA, with DeepSeek's sparse index when the config names one."""
    nope, rope = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim", minimum=0)
    sparse = fields.has("index_topk")
    return Attention(
        heads=fields.count("num_attention_heads"),
        kv_heads=1,
        head_dim=nope + rope,
        v_head_dim=fields.count("v_head_dim"),
        window=window,
        latent_rank=fields.count("kv_lora_rank"),
        rope_dim=rope,
        nope_dim=nope,
        q_rank=fields.count("q_lora_rank", default=0, minimum=0),
        index_topk=fields.count("index_topk") if sparse else None,
        index_head_dim=fields.count("index_head_dim", default=0) if sparse else 0,
        index_heads=fields.count("index_n_heads", default=0) if sparse else 0,
        gated_output=fields.flag("mla_use_output_gate"),
    )


def grouped(fields: Fields, kind: str, window: int | None) -> Attention:
    """GQA, MHA or MQA. MiMo and Gemma 4 give windowed and global layers heads of their own."""
    heads = fields.count("num_attention_heads", "n_head", "n_heads")
    kv_heads = fields.count("num_key_value_heads", "num_kv_heads", "n_head_kv", default=_kv_default(fields, heads))
    head_dim = _head_dim(fields, heads)
    value_dim = fields.count("v_head_dim", default=head_dim)
    if kind == "sliding" and fields.has("swa_num_key_value_heads"):
        heads = fields.count("swa_num_attention_heads", default=heads)
        kv_heads = fields.count("swa_num_key_value_heads")
        head_dim = fields.count("swa_head_dim", default=head_dim)
        value_dim = fields.count("swa_v_head_dim", default=value_dim)
    shared = kind == "full" and fields.flag("attention_k_eq_v")
    if kind == "full" and fields.has("global_head_dim", "num_global_key_value_heads"):
        kv_heads = fields.count("num_global_key_value_heads", default=kv_heads)
        head_dim = value_dim = fields.count("global_head_dim", default=head_dim)
    if heads % kv_heads:
        _bad_heads(fields, heads, kv_heads)
    gated = fields.flag("attn_output_gate", default=fields.text("model_type").startswith(_GATED_QUERY))
    return Attention(heads, kv_heads, head_dim, value_dim, window, gated_output=gated, tied_projection=shared)


def _kv_default(fields: Fields, heads: int) -> int:
    return 1 if fields.flag("multi_query") else heads


def _head_dim(fields: Fields, heads: int) -> int:
    if fields.has("head_dim", "attention_head_dim"):
        return fields.count("head_dim", "attention_head_dim")
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    return max(1, hidden // heads)


def _bad_heads(fields: Fields, heads: int, kv_heads: int) -> None:
    finding = Finding(fields.where, f"{heads} attention heads over {kv_heads} KV heads", "a multiple of the KV heads")
    if finding not in fields.findings:
        fields.findings.append(finding)


def _compressed(fields: Fields, layers: int) -> list[Mixer]:
    """DeepSeek-V4: one shared KV vector per token, compressed 4 or 128 to 1; 0 is a plain window.

    The uncompressed window that the compressed layers also keep (128 tokens a layer) is left out: it does not grow.
    The top-k of the index counts compressed entries, so it is multiplied by the ratio to be in tokens.
    """
    ratios = [int(ratio) for ratio in fields.sequence("compress_ratios", layers) or [0] * layers]
    made = {ratio: _compressed_layer(fields, ratio) for ratio in dict.fromkeys(ratios)}
    return [made[ratio] for ratio in ratios]


def _compressed_layer(fields: Fields, ratio: int) -> Attention:
    head_dim = fields.count("head_dim")
    indexed = ratio == 4 and fields.has("index_topk")
    return Attention(
        heads=fields.count("num_attention_heads"),
        kv_heads=fields.count("num_key_value_heads"),
        head_dim=head_dim,
        v_head_dim=head_dim,
        window=fields.count("sliding_window") if ratio == 0 else None,
        q_rank=fields.count("q_lora_rank", default=0, minimum=0),
        index_topk=fields.count("index_topk") * ratio if indexed else None,
        index_head_dim=fields.count("index_head_dim", default=0) if indexed else 0,
        index_heads=fields.count("index_n_heads", default=0) if indexed else 0,
        compress=max(1, ratio),
        key_is_value=True,
        o_rank=fields.count("o_lora_rank", default=0, minimum=0),
        o_groups=fields.count("o_groups", default=1),
    )


def _state(recurrent: int, convolution: int, parameters: int, dtype: Dtype) -> StateSpace:
    """State whose convolution part is 16-bit, counted in elements of the recurrent part's format."""
    return StateSpace(recurrent + convolution * 2.0 / dtype.bytes, float(parameters), dtype)


def _state_dtype(fields: Fields) -> Dtype:
    """The named format of the state, or the model's own as engines default to."""
    named = fields.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "torch_dtype", "dtype", default="bfloat16")
    return {"float32": Dtype.FP32, "float16": Dtype.FP16}.get(named, Dtype.BF16)


def _gated_delta(fields: Fields) -> StateSpace:
    """Gated DeltaNet (Qwen3-Next, Qwen3.5): a key by value matrix per value head and a short convolution."""
    hidden, kernel = fields.count("hidden_size"), fields.count("linear_conv_kernel_dim")
    value_heads, key_dim = fields.count("linear_num_value_heads"), fields.count("linear_key_head_dim")
    value_dim = fields.count("linear_value_head_dim")
    keys, values = fields.count("linear_num_key_heads") * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    parameters = hidden * (channels + values + 2 * value_heads) + channels * kernel + values * hidden
    recurrent = value_heads * key_dim * value_dim
    return _state(recurrent, channels * (kernel - 1), parameters, _state_dtype(fields))


def _kimi_delta(fields: Fields) -> StateSpace:
    """Kimi Delta Attention: a square matrix per head; the decay gate of rank `head_dim`, the output gate too unless full."""
    config = Fields(fields.mapping("linear_attn_config"), f"{fields.where} linear_attn_config", fields.findings)
    hidden, heads = fields.count("hidden_size"), config.count("num_heads")
    head_dim, kernel = config.count("head_dim"), config.count("short_conv_kernel_size", default=4)
    width = heads * head_dim
    low_rank = hidden * head_dim + head_dim * width
    gates = low_rank + (hidden * width if config.flag("use_full_rank_gate") else low_rank) + hidden * heads
    parameters = 4 * hidden * width + gates + 3 * width * kernel
    return _state(heads * head_dim * head_dim, 3 * width * (kernel - 1), parameters, _state_dtype(fields))


def mamba2(fields: Fields) -> StateSpace:
    """A Mamba-2 layer: heads x head_dim x state, and a short convolution over x, B and C."""
    hidden, state = fields.count("hidden_size"), fields.count("ssm_state_size", "mamba_d_state")
    heads, head_dim = fields.count("mamba_num_heads", "mamba_n_heads"), fields.count("mamba_head_dim", "mamba_d_head")
    groups = fields.count("n_groups", "mamba_n_groups", default=1)
    kernel = fields.count("conv_kernel", "mamba_d_conv", default=4)
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    parameters = hidden * (inner + channels + heads) + channels * kernel + inner * hidden
    return _state(inner * state, channels * (kernel - 1), parameters, _state_dtype(fields))
