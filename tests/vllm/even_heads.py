"""A small random Llama whose heads two ranks can share: SmolLM2 has nine query and three KV heads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from diptych.runtime.model_files import demo_model

HEADS, KV_HEADS, DIM, LAYERS, WIDE = 4, 2, 64, 4, 512
SPREAD = 0.05


def make(folder: Path) -> Path:
    """Write it, with the demo model's tokenizer."""
    source = demo_model()
    config = json.loads((source / "config.json").read_text())
    vocabulary, hidden = config["vocab_size"], HEADS * DIM
    config |= {"hidden_size": hidden, "intermediate_size": WIDE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
               "num_key_value_heads": KV_HEADS, "head_dim": DIM}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.json"):
        if file.name not in ("config.json", "model.safetensors.index.json"):
            shutil.copy(file, folder / file.name)
    (folder / "config.json").write_text(json.dumps(config))
    random = torch.Generator().manual_seed(20261129)

    def weights(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * SPREAD

    found = {"model.embed_tokens.weight": weights(vocabulary, hidden) * 10, "model.norm.weight": torch.ones(hidden)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.self_attn.q_proj.weight": weights(HEADS * DIM, hidden),
            f"{at}.self_attn.k_proj.weight": weights(KV_HEADS * DIM, hidden),
            f"{at}.self_attn.v_proj.weight": weights(KV_HEADS * DIM, hidden),
            f"{at}.self_attn.o_proj.weight": weights(hidden, HEADS * DIM),
            f"{at}.mlp.gate_proj.weight": weights(WIDE, hidden),
            f"{at}.mlp.up_proj.weight": weights(WIDE, hidden),
            f"{at}.mlp.down_proj.weight": weights(hidden, WIDE),
            f"{at}.input_layernorm.weight": torch.ones(hidden),
            f"{at}.post_attention_layernorm.weight": torch.ones(hidden),
        }
    save_file(found, folder / "model.safetensors")
    return folder
