"""What a checkpoint's config.json says, as far as the computation needs it, and what it may not say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diptych.errors import Finding, InvalidInput, did_you_mean

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_KINDS = ("default", "linear", "llama3")
MAX_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary embedding: base, and how long contexts stretch its frequencies. `numbers` are the config's, by name."""

    theta: float = 10_000.0
    kind: str = "default"
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """The scaling as one string, "" for none."""
        if self.kind == "default":
            return ""
        return f"{self.kind}:" + ",".join(f"{name}={value:g}" for name, value in sorted(self.numbers.items()))


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder of attention and gated feed-forward layers. `attention_bias` is on q, k and v; `output_bias` on o."""

    family: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    epsilon: float
    rope: Rope
    max_context: int
    tied: bool
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    eos: frozenset[int] = frozenset()

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised head by head before the rotary embedding."""
        return self.family == "qwen3"


def read_shape(directory: Path) -> Shape:
    """The shape in `directory`'s config.json, with the ends of answers from generation_config.json where it has them.

    Raises:
        InvalidInput: every field that is missing, of the wrong kind, or asks for what this engine does not compute.
    """
    config = read_json(directory / "config.json")
    generation = directory / "generation_config.json"
    extra = read_json(generation) if generation.exists() else {}
    return shape_of(config, str(directory / "config.json"), extra.get("eos_token_id"))


def shape_of(config: Mapping[str, Any], where: str, eos: Any = None) -> Shape:
    """The shape that a parsed config.json describes; `where` names it in findings. Raises InvalidInput."""
    reader = _Reader(config, where)
    reader.findings.extend(_unsupported(config, where))
    family = str(config.get("model_type"))
    heads = reader.whole("num_attention_heads")
    hidden = reader.whole("hidden_size")
    head_dim = reader.whole("head_dim", hidden // heads if heads else 0)
    kv_heads = reader.whole("num_key_value_heads", heads)
    biased = family == "qwen2" or bool(config.get("attention_bias", False))
    shape = Shape(
        family=family,
        vocabulary=reader.whole("vocab_size"),
        hidden=hidden,
        layers=reader.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=reader.whole("intermediate_size"),
        epsilon=reader.number("rms_norm_eps", 1e-6),
        rope=reader.rope(),
        max_context=reader.whole("max_position_embeddings", 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        attention_bias=biased,
        output_bias=biased and family != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
        eos=_ends(eos if eos is not None else config.get("eos_token_id")),
    )
    if kv_heads and heads % kv_heads:
        reader.say("num_key_value_heads", f"is {kv_heads}", f"a divisor of the {heads} attention heads")
    if head_dim % 2:
        reader.say("head_dim", f"is {head_dim}", "an even number, as the rotary embedding turns pairs")
    if reader.findings:
        raise InvalidInput(reader.findings)
    return shape


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint. Raises InvalidInput."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InvalidInput(Finding(str(path), "is too large", f"at most {MAX_CONFIG_BYTES:,} bytes"))
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            Finding(str(path), f"cannot be read: {error.strerror}", "a file of the checkpoint")
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(Finding(str(path), f"is not JSON: {str(error)[:100]}", "a JSON object")) from None
    if not isinstance(found, dict):
        raise InvalidInput(Finding(str(path), f"is a JSON {type(found).__name__}", "a JSON object"))
    return found


class _Reader:
    """Fields of one config, with a finding for each that cannot be used."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where
        self.findings: list[Finding] = []

    def say(self, name: str, problem: str, expected: str, hint: str = "") -> None:
        self.findings.append(Finding(f"{self.where}: {name}", problem, expected, hint))

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            self.say(name, "is missing" if value is None else f"is {str(value)[:40]!r}", "a whole number, 1 or more")
            return 0
        return value

    def number(self, name: str, default: float) -> float:
        value = self.config.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.say(name, f"is {str(value)[:40]!r}", "a positive number")
            return default
        return float(value)

    def rope(self) -> Rope:
        """Both ways of writing it: `rope_theta` beside `rope_scaling`, or all in `rope_parameters`."""
        given = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        if not isinstance(given, dict):
            self.say("rope_scaling", f"is a {type(given).__name__}", "an object")
            return Rope()
        theta = _Reader({**self.config, **given}, self.where).number("rope_theta", 10_000.0)
        kind = str(given.get("rope_type") or given.get("type") or "default")
        if kind not in ROPE_KINDS:
            self.say(
                "rope_scaling.rope_type", f"is {kind[:40]!r}", ", ".join(ROPE_KINDS), did_you_mean(kind, ROPE_KINDS)
            )
        needs = {"linear": ("factor",), "llama3": _LLAMA3}.get(kind, ())
        inner = _Reader(given, f"{self.where}: rope_scaling")
        numbers = {name: inner.number(name, 0.0) for name in needs}
        self.findings.extend(inner.findings)
        return Rope(theta, kind, numbers)


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _ends(value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(each for each in values if isinstance(each, int) and not isinstance(each, bool) and each >= 0)


def _unsupported(config: Mapping[str, Any], where: str) -> Iterator[Finding]:
    family = config.get("model_type")
    if family not in FAMILIES:
        said = "is missing" if family is None else f"is {str(family)[:40]!r}"
        hint = did_you_mean(str(family)[:40], FAMILIES)
        yield Finding(f"{where}: model_type", said, f"one of {', '.join(FAMILIES)}", hint)
    if config.get("hidden_act", "silu") != "silu":
        yield Finding(f"{where}: hidden_act", f"is {str(config['hidden_act'])[:40]!r}", "silu")
    if config.get("quantization_config"):
        expected = "plain weights: this engine quantises them itself (int8)"
        yield Finding(f"{where}: quantization_config", "describes weights that are quantised already", expected)
    kinds = config.get("layer_types") or ()
    if config.get("use_sliding_window") or any(kind != "full_attention" for kind in kinds):
        yield Finding(
            f"{where}: use_sliding_window", "asks for attention through a window", "full attention in every layer"
        )
