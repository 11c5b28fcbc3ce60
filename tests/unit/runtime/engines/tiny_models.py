"""Random checkpoints of a few layers, and what `transformers` answers with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)

VOCABULARY = 500
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS = ("llama", "llama-mha-biased", "llama3-rope", "qwen2", "qwen3")


def model_of(kind: str) -> PreTrainedModel:
    """A random model of one kind, always the same."""
    torch.manual_seed(3)
    match kind:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).eval()
        case "llama-mha-biased":
            sizes = {**SIZES, "num_key_value_heads": 4}
            model = LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=True, mlp_bias=True)).eval()
            return _with_random_biases(model)
        case "llama3-rope":
            return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)).eval()
        case "qwen2":
            return _with_random_biases(Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval())
        case _:
            return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)).eval()


def _with_random_biases(model: PreTrainedModel) -> PreTrainedModel:
    for name, values in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(values, std=0.3)
    return model


def saved(kind: str, place: Path) -> tuple[Path, PreTrainedModel]:
    """The model of a kind as a checkpoint in a directory of its own below `place`."""
    model = model_of(kind)
    model.save_pretrained(place / kind)
    return place / kind, model


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """What `transformers` generates, whatever the end token."""
    found = model.generate(
        torch.tensor([list(prompt)]),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return found[0, len(prompt) :].tolist()
