"""Feed-forward parts of a Hugging Face config: dense, plain or gated, and mixtures of experts."""

from __future__ import annotations

from diptych.catalog.config_fields import Fields
from diptych.catalog.model import Experts, Mlp

Feedforward = Mlp | Experts | None

_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "experts_per_token", "moe_top_k")
_PLAIN = ("relu2", "relu", "gelu", "gelu_new", "gelu_fast")  # two matrices, unless the family gates them
_GATED_GELU = ("gemma", "gemma2", "gemma3", "gemma4")


def feedforwards(fields: Fields, layers: int) -> list[Feedforward]:
    """One feed-forward part per layer."""
    is_moe = moe_layers(fields, layers)
    dense = None if all(is_moe) else _dense(fields)
    sparse = experts(fields) if any(is_moe) else None
    return [sparse if moe else dense for moe in is_moe]


def moe_layers(fields: Fields, layers: int) -> list[bool]:
    """Which layers are mixtures of experts."""
    if not fields.has(*_EXPERTS) or fields.count(*_EXPERTS, minimum=0) <= 1:
        return [False] * layers
    named = fields.sequence("moe_layer_freq", layers) if isinstance(fields.raw.get("moe_layer_freq"), list) else None
    if named is not None:
        return [bool(flag) for flag in named]
    types = fields.sequence("mlp_layer_types", layers)  # GLM-5.2
    if types is not None:
        return [kind == "sparse" for kind in types]
    if fields.has("interleave_moe_layer_step"):  # Llama 4
        step = fields.count("interleave_moe_layer_step")
        return [(index + 1) % step == 0 for index in range(layers)]
    first = fields.count("first_k_dense_replace", default=0, minimum=0)
    step = fields.count("moe_layer_freq", "decoder_sparse_step", default=1)
    dense = fields.indices("mlp_only_layers", layers)
    offset = 1 if fields.has("decoder_sparse_step") else 0  # Qwen counts from 1, DeepSeek from 0
    return [index >= first and (index + offset) % step == 0 and index not in dense for index in range(layers)]


def is_gated(fields: Fields) -> bool:
    """Whether the feed-forward part has a gate matrix, judged by its activation and family."""
    activation = fields.text("hidden_act", "mlp_hidden_act", "activation_function", "hidden_activation", default="silu")
    if fields.text("model_type").removesuffix("_text") in _GATED_GELU:
        return True
    return activation not in _PLAIN


def _dense(fields: Fields) -> Mlp:
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    names = ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    default = 4 * hidden if fields.has("n_embd") else None  # GPT-2 and GPT-J leave it out when it is 4·hidden
    return Mlp(fields.count(*names, default=default), gated=is_gated(fields))


def experts(fields: Fields) -> Experts:
    """The mixture: routed experts, and what is always on (shared experts, Gemma 4's parallel dense part)."""
    narrow = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    intermediate = fields.count(*narrow)
    return Experts(
        count=fields.count(*_EXPERTS),
        per_token=fields.count(*_PER_TOKEN),
        intermediate=intermediate,
        shared_intermediate=_shared(fields, intermediate),
        gated=is_gated(fields),
        latent=fields.count("moe_latent_size", "routed_expert_hidden_size", default=0, minimum=0),
    )


def _shared(fields: Fields, intermediate: int) -> int:
    given = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
    named = (*given, "share_expert_dim")
    if fields.has(*named):
        return fields.count(*named, minimum=0)
    if fields.text("model_type").startswith("llama4"):
        return fields.count("intermediate_size")
    if fields.flag("enable_moe_block"):  # Gemma 4: a dense part beside the experts
        return fields.count("intermediate_size")
    return fields.count("n_shared_experts", "num_shared_experts", default=0, minimum=0) * intermediate
