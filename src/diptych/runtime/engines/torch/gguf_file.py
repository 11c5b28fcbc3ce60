"""A GGUF file as a checkpoint: its metadata as a config, its tensors dequantised under their Hugging Face names.

llama.cpp stores q and k of the Llama family with the rotary pairs side by side; here they are put back half by half.
Names and the permutation: gguf-py `tensor_mapping.py`, `convert_hf_to_gguf.py: LlamaModel.permute`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from gguf import GGUFReader, dequantize

from diptych.errors import Finding, InvalidInput
from diptych.runtime.engines.torch.checkpoint import checked
from diptych.runtime.engines.torch.shape import Shape, shape_of

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONFIG = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """One GGUF file. `tensors` are its own, by the names they have elsewhere."""

    place: Path
    shape: Shape
    config: Mapping[str, Any]
    fields: Mapping[str, Any]
    tensors: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> GgufCheckpoint:
        """Raises InvalidInput: no whole GGUF file, or of a family that this engine does not compute."""
        try:
            reader = GGUFReader(path)
            fields = {name: each.contents() for name, each in reader.fields.items()}
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise InvalidInput(Finding(str(path), f"cannot be read: {str(error)[:100]}", "a whole GGUF file")) from None
        tensors = dict(_renamed(reader.tensors))
        config = _config(fields, tensors)
        return cls(path, shape_of(config, str(path)), config, fields, tensors)

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def tensor(self, name: str, dims: tuple[int, ...]) -> torch.Tensor:
        stored = self.tensors.get(name)
        if stored is None:
            raise InvalidInput(Finding(str(self.place), f"lacks the tensor {name}", f"one of {list(dims)}"))
        values = torch.from_numpy(np.array(dequantize(stored.data, stored.tensor_type), np.float32))
        values = checked(values, dims, f"{self.place}: {name}")
        if self.shape.family == "llama" and name.endswith(
            ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
        ):
            values = halves(values, self.shape.heads if "q_proj" in name else self.shape.kv_heads)
        return values

    def digest(self) -> str:
        whole = xxhash.xxh3_128()
        for name in sorted(self.tensors):
            whole.update(np.ascontiguousarray(self.tensors[name].data).data.cast("B"))
        return whole.hexdigest()

    def frequency_factors(self) -> torch.Tensor | None:
        stored = self.tensors.get(FACTORS)
        return None if stored is None else torch.from_numpy(np.array(stored.data, np.float32))


def halves(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of `heads` heads with rotary pairs side by side, as rows with the first of every pair before the second."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(values.shape).contiguous()


def _renamed(tensors: Any) -> Iterator[tuple[str, Any]]:
    for tensor in tensors:
        stem, _, kind = tensor.name.rpartition(".")
        if tensor.name == FACTORS:
            yield FACTORS, tensor
        elif stem in _OUTER:
            yield f"{_OUTER[stem]}.{kind}", tensor
        elif stem.startswith("blk."):
            _, layer, inner = stem.split(".", 2)
            if inner in _INNER:
                yield f"model.layers.{layer}.{_INNER[inner]}.{kind}", tensor


def _config(fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    family = str(fields.get("general.architecture"))
    found = {ours: fields[f"{family}.{theirs}"] for theirs, ours in _CONFIG.items() if f"{family}.{theirs}" in fields}
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is not None:
        found["vocab_size"] = int(embedding.shape[-1])
    eos, eot = fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id")
    found["eos_token_id"] = sorted({int(each) for each in (eos, eot) if each is not None})
    tied = "lm_head.weight" not in tensors
    return {"model_type": family, "tie_word_embeddings": tied, "hidden_act": "silu", **found}
