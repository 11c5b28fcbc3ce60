"""A GGUF file written as an ordinary checkpoint: config.json, safetensors in bf16, tokenizer.json, chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from diptych.errors import Finding, InvalidInput
from diptych.runtime.engines.torch.gguf_file import FACTORS, GgufCheckpoint

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_CONTROL = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL
_PRE_TOKENIZERS = {"smollm": True, "gpt-2": False}
"""Byte-level BPEs and whether they split digits first (llama.cpp, `llama-vocab.cpp`)."""


def convert(gguf: Path, target: Path) -> None:
    """Write the checkpoint into the empty directory `target`.

    Raises:
        InvalidInput: no whole GGUF file, another family, rotary factors that a config cannot say, or an unknown tokenizer.
    """
    checkpoint = GgufCheckpoint.open(gguf)
    if FACTORS in checkpoint.tensors:
        raise InvalidInput(
            Finding(f"{gguf}: {FACTORS}", "lists rotary factors", "a model without: serve this one as GGUF")
        )
    tokenizer = tokenizer_of(checkpoint.fields, str(gguf))
    tokenizer.save(str(target / "tokenizer.json"))
    _write(target / "tokenizer_config.json", _tokenizer_config(checkpoint))
    (target / "chat_template.jinja").write_text(str(checkpoint.fields.get("tokenizer.chat_template", "")), "utf-8")
    _write(target / "config.json", _config(checkpoint))
    _write(target / "generation_config.json", {"eos_token_id": sorted(checkpoint.shape.eos)})
    save_file(_tensors(checkpoint), target / "model.safetensors", metadata={"format": "pt"})


def tokenizer_of(fields: Mapping[str, Any], where: str) -> Tokenizer:
    """The byte-level BPE that a GGUF file's metadata describes. Raises InvalidInput for another kind."""
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        expected = f"gpt2 with {' or '.join(_PRE_TOKENIZERS)}"
        raise InvalidInput(Finding(f"{where}: tokenizer.ggml.model", f"is {kind} with {pre}", expected))
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    levels: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if _PRE_TOKENIZERS[pre]:
        levels.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(levels)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _tokenizer_config(checkpoint: GgufCheckpoint) -> dict[str, Any]:
    fields = checkpoint.fields
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {ours: fields.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": checkpoint.shape.max_context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
        "chat_template": str(fields.get("tokenizer.chat_template", "")),
        **{name: tokens[int(number)] for name, number in ids.items() if number is not None},
    }


def _config(checkpoint: GgufCheckpoint) -> dict[str, Any]:
    """What the reader made of the metadata, with epsilon as it was written before it became a float32."""
    return {
        "architectures": [ARCHITECTURES[checkpoint.shape.family]],
        "torch_dtype": "bfloat16",
        **checkpoint.config,
        "rms_norm_eps": float(f"{checkpoint.shape.epsilon:.6g}"),
        "head_dim": checkpoint.shape.head_dim,
        "bos_token_id": checkpoint.fields.get("tokenizer.ggml.bos_token_id"),
    }


def _tensors(checkpoint: GgufCheckpoint) -> dict[str, torch.Tensor]:
    dims = {name: tuple(int(size) for size in each.shape[::-1]) for name, each in checkpoint.tensors.items()}
    return {name: checkpoint.tensor(name, dims[name]).to(torch.bfloat16).contiguous() for name in sorted(dims)}


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
