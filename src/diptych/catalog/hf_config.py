"""A Hugging Face `config.json`, or a directory that holds one, as a `Model`.

Families are told apart by the fields they use, so an unknown architecture with the ordinary fields works too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diptych.catalog.config_fields import Fields
from diptych.catalog.dtype import Dtype
from diptych.catalog.hf_attention import Mixer, grouped, mamba2, mixers
from diptych.catalog.hf_feedforward import Feedforward, experts, feedforwards, is_gated
from diptych.catalog.model import Attention, LayerGroup, Mlp, Model, StateSpace
from diptych.catalog.provenance import Provenance
from diptych.errors import Finding, InvalidCatalog

MAX_CONFIG_BYTES = 4 * 2**20
MAX_LAYERS = 10_000

_LAYER_COUNT = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_LAYER_LISTS = (
    "layers_block_type",
    "layer_types",
    "hybrid_override_pattern",
    "block_configs",
)  # their length counts as well
_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}

_TIED_BY_DEFAULT = ("gemma", "gpt2", "cohere", "opt", "bloom")  # a config.json leaves out what its class defaults to


def read_hf_config(path: Path | str, name: str = "") -> Model:
    """Read `path` (a config.json or its directory). A `hf_quant_config.json` beside it names the stored format.

    Raises:
        InvalidCatalog: missing or oversized file, not JSON, or not a model's config; every finding at once.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    config = _read_json(file, "a directory with a config.json" if path.is_dir() else "a Hugging Face config.json")
    beside = file.with_name("hf_quant_config.json")
    if beside.is_file():
        config = {**config, "quantization_config": _read_json(beside, "a quantization config").get("quantization", {})}
    return model_from_config(config, name or file.resolve().parent.name, str(file))


def _read_json(file: Path, expected: str) -> Mapping[str, Any]:
    try:
        size = file.stat().st_size
        if not file.is_file():
            raise InvalidCatalog(Finding(str(file), "not a file", expected))
        if size > MAX_CONFIG_BYTES:
            raise InvalidCatalog(Finding(str(file), f"{size:,} bytes", f"at most {MAX_CONFIG_BYTES:,}"))
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCatalog(Finding(str(file), error.strerror or str(error), expected)) from error
    except json.JSONDecodeError as error:
        raise InvalidCatalog(Finding(f"{file}:{error.lineno}", f"not JSON: {error.msg}", expected)) from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidCatalog(Finding(str(file), f"not JSON: {type(error).__name__}", expected)) from error
    if not isinstance(loaded, dict):
        raise InvalidCatalog(Finding(str(file), f"a JSON {type(loaded).__name__}", "a JSON object"))
    return loaded


def model_from_config(
    config: Mapping[str, Any],
    name: str,
    where: str,
    *,
    published_parameters: float | None = None,
    aliases: tuple[str, ...] = (),
    provenance: Provenance | None = None,
) -> Model:
    """A `Model` from the fields of a config; a nested `text_config` is used when there is one.

    Raises:
        InvalidCatalog: what is missing or makes no sense, all findings at once.
    """
    fields = Fields(_language_part(config), where)
    if not fields.has(*_LAYER_COUNT, *_LAYER_LISTS):
        problem = "no num_hidden_layers: not the config of a language model"
        raise InvalidCatalog(Finding(where, problem, "a Hugging Face config.json of a decoder-only model"))
    layers = _layer_groups(fields)
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    vocab = fields.count("vocab_size")
    context = fields.count("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", default=131072)
    if fields.findings:
        raise InvalidCatalog(dict.fromkeys(fields.findings))
    family = fields.text("model_type", default="model")
    return Model(
        name=name,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        tied_embeddings=fields.flag("tie_word_embeddings", default=family.startswith(_TIED_BY_DEFAULT)),
        max_context=context,
        native=native_dtype(fields.raw),
        tokenizer=f"{family.removesuffix('_text')}:{vocab}",
        published_parameters=published_parameters,
        aliases=aliases,
        provenance=provenance,
    )


def _language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's fields, over those of the wrapper (quantisation and tying often stay outside)."""
    inner = config.get("text_config") or config.get("llm_config") or config.get("language_config")
    if not isinstance(inner, Mapping):
        return config
    outer = {key: config[key] for key in ("quantization_config", "tie_word_embeddings", "torch_dtype") if key in config}
    return {**outer, **inner}


def _layer_groups(fields: Fields) -> tuple[LayerGroup, ...]:
    listed = next(
        (len(fields.raw[name]) for name in _LAYER_LISTS if isinstance(fields.raw.get(name), (str, list))), None
    )
    count = fields.count(*_LAYER_COUNT, default=listed)
    if count > MAX_LAYERS:
        fields.findings.append(Finding(fields.where, f"{count} layers", f"at most {MAX_LAYERS}"))
        return ()
    if fields.has("block_configs"):
        pairs = _searched_blocks(fields, count)
    elif fields.has("hybrid_override_pattern"):
        pairs = _pattern_blocks(fields, count, fields.text("hybrid_override_pattern"))
    elif fields.text("model_type") == "nemotron_h":
        types = fields.sequence("layers_block_type", count) or []
        pairs = _pattern_blocks(fields, count, "".join(_LETTERS.get(str(kind), "?") for kind in types))
    else:
        pairs = list(zip(mixers(fields, count), feedforwards(fields, count), strict=True))
    counts: dict[tuple[Mixer, Feedforward], int] = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    return tuple(LayerGroup(number, mixer, mlp) for (mixer, mlp), number in counts.items())


def _pattern_blocks(fields: Fields, count: int, pattern: str) -> list[tuple[Mixer, Feedforward]]:
    """Nemotron-H: one letter per layer, M Mamba-2, * attention, - dense, E experts. A layer is a mixer or an MLP, not both."""
    unknown = sorted(set(pattern) - set("M*-E"))
    if len(pattern) != count or unknown:
        problem = f"the layer pattern has {len(pattern)} letters for {count} layers" + (
            f" and unknown ones: {''.join(unknown)}" if unknown else ""
        )
        fields.findings.append(Finding(fields.where, problem, "one of M, *, -, E per layer"))
        return []
    made: dict[str, tuple[Mixer, Feedforward]] = {}
    for letter in dict.fromkeys(pattern):
        made[letter] = _pattern_block(fields, letter)
    return [made[letter] for letter in pattern]


def _pattern_block(fields: Fields, letter: str) -> tuple[Mixer, Feedforward]:
    if letter == "M":
        return mamba2(fields), None
    if letter == "*":
        return grouped(fields, "full", None), None
    return None, experts(fields) if letter == "E" else Mlp(fields.count("intermediate_size"), is_gated(fields))


def _searched_blocks(fields: Fields, count: int) -> list[tuple[Mixer, Feedforward]]:
    """Nemotron-NAS (DeciLM): a block of its own for every layer."""
    blocks = fields.sequence("block_configs", count) or []
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    pairs: list[tuple[Mixer, Feedforward]] = []
    for index, block in enumerate(blocks):
        where = f"{fields.where} block_configs[{index}]"
        raw = block if isinstance(block, Mapping) else {}
        attention = Fields(_part(raw, "attention"), f"{where}.attention", fields.findings)
        feedforward = Fields(_part(raw, "ffn"), f"{where}.ffn", fields.findings)
        pairs.append((_searched_mixer(attention, heads, hidden), _searched_mlp(feedforward, hidden)))
    return pairs


def _part(block: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = block.get(name)
    return part if isinstance(part, Mapping) else {}


def _searched_mixer(block: Fields, heads: int, hidden: int) -> Mixer:
    if block.flag("no_op"):
        return None
    if block.flag("replace_with_linear"):
        return StateSpace(0.0, float(hidden * hidden))
    head_dim = max(1, hidden // heads)
    kv_heads = max(1, heads // block.count("n_heads_in_group"))
    window = block.count("window_length") if block.has("window_length") else None
    return Attention(heads, kv_heads, head_dim, head_dim, window)


def _searched_mlp(block: Fields, hidden: int) -> Feedforward:
    """Width 2·mult·hidden/3, rounded up to a multiple of 256 (DeciLM)."""
    if block.flag("no_op"):
        return None
    if block.flag("replace_with_linear"):
        return Mlp(hidden // 2, gated=False)  # two matrices of half the width: hidden² parameters
    width = int(2 * block.number("ffn_mult", 4.0) * hidden / 3)
    return Mlp(-(-width // 256) * 256)


_STORED = {"bfloat16": Dtype.BF16, "float16": Dtype.FP16, "float32": Dtype.FP32, "half": Dtype.FP16}
_FIXED_METHODS = {"fp8": Dtype.FP8, "fbgemm_fp8": Dtype.FP8, "mxfp4": Dtype.FP4, "nvfp4": Dtype.FP4, "awq": Dtype.INT4}


def native_dtype(config: Mapping[str, Any]) -> Dtype:
    """The format of most of the stored weights, from `quantization_config` and `torch_dtype`."""
    if config.get("expert_dtype") in ("fp4", "mxfp4", "nvfp4"):  # DeepSeek-V4: experts narrower than the rest
        return Dtype.FP4
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        found = _quantized(quantization)
        if found:
            return found
    return _STORED.get(str(config.get("torch_dtype") or config.get("dtype")).removeprefix("torch."), Dtype.BF16)


def _quantized(quantization: Mapping[str, Any]) -> Dtype | None:
    method = str(quantization.get("quant_method") or "").lower()
    algorithm = str(quantization.get("quant_algo") or "").lower()
    if "fp4" in algorithm or "fp4" in method:
        return Dtype.FP4
    if "w4a16" in algorithm or "int4" in algorithm:
        return Dtype.INT4
    if "fp8" in algorithm:
        return Dtype.FP8
    if method in _FIXED_METHODS:
        return _FIXED_METHODS[method]
    groups = quantization.get("config_groups")
    if isinstance(groups, Mapping):
        return _by_bits([group.get("weights") for group in groups.values() if isinstance(group, Mapping)])
    if quantization.get("load_in_4bit"):
        return Dtype.INT4
    if quantization.get("load_in_8bit"):
        return Dtype.INT8
    return _by_bits([{"num_bits": quantization.get("bits"), "type": "int"}])


def _by_bits(weights: list[Any]) -> Dtype | None:
    """The narrowest of the groups: it holds the bulk of the weights."""
    named = {(4, "int"): Dtype.INT4, (4, "float"): Dtype.FP4, (8, "int"): Dtype.INT8, (8, "float"): Dtype.FP8}
    found = [
        named[key]
        for part in weights
        if isinstance(part, Mapping) and (key := (part.get("num_bits"), part.get("type", "int"))) in named
    ]
    return min(found, key=lambda dtype: dtype.bytes, default=None)
