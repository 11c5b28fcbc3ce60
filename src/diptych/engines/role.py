"""One role as its engine was told to run it: the settings of a launch command or manifest, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.design.axes import Role
from diptych.engines.engine import READ, Engine, Launcher, Version

NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Connector:
    """How vLLM was told to move KV: `--kv-transfer-config`. `fields` are its top level as written, `extra` its free dictionary.

    `children` are those of a MultiConnector, in order: load from the first that has tokens, save to all.
    """

    name: str
    role: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    children: tuple[Connector, ...] = ()

    def all(self) -> tuple[Connector, ...]:
        """This connector and those inside it."""
        return (self, *(inner for child in self.children for inner in child.all()))


@dataclass(frozen=True, slots=True)
class EnvValue:
    """An environment variable: its text, or where the cluster takes it from ('status.podIP', 'secret hf-token/token')."""

    text: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class RoleConfig:
    """The settings of one role's engine. What was not said is None (or the engine's own word, such as 'auto').

    Names and values are the engine's; `written` keeps each setting as the user spelled it and `places` where, both by field name
    (or by the engine's flag for those under `options`). `options` holds the engine's other flags by long name without dashes.
    """

    role: Role
    engine: Engine
    version: Version | None = None
    launcher: Launcher = Launcher.PLAIN
    name: str = ""
    replicas: int = 1
    model: str = ""
    served_name: str = ""
    revision: str = ""
    tokenizer: str = ""
    dtype: str = "auto"
    quantization: str = ""
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: bool = False
    dcp: int = 1
    pcp: int = 1
    attention_backend: str = ""
    speculative: Mapping[str, Any] = field(default_factory=dict)
    prefix_caching: bool | None = None
    hybrid_kv_manager: bool | None = None
    max_seqs: int | None = None
    max_batched_tokens: int | None = None
    max_model_len: int | None = None
    connector: Connector | None = None
    gpu: str = ""
    gpus_per_worker: int | None = None
    nodes_per_worker: int = 1
    host: str = ""
    port: int | None = None
    node: str = ""
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def release(self) -> Version:
        """The version named, or the one whose source the rules were read from."""
        return self.version or READ[self.engine]

    def place(self, setting: str) -> str:
        """Where a setting was written, for a finding: 'prefill --block-size', 'manifest.yaml:41', or where it should be."""
        return self.places.get(setting) or f"{self.name or self.role} {_spelled(setting, self.engine)} (not set)"

    def env_text(self, name: str, default: str = "") -> str:
        """An environment variable's text; empty when it comes from the cluster."""
        return self.env[name].text if name in self.env else default


_WITHOUT_FLAG = frozenset({"engine", "version", "router"})
_FLAGS: Mapping[Engine, Mapping[str, str]] = {
    Engine.VLLM: {
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
        "dp": "data-parallel-size",
        "dcp": "decode-context-parallel-size",
        "pcp": "prefill-context-parallel-size",
        "connector": "kv-transfer-config",
        "hybrid_kv_manager": "disable-hybrid-kv-cache-manager",
        "speculative": "speculative-config",
    },
    Engine.SGLANG: {
        "tp": "tp-size",
        "pp": "pp-size",
        "dp": "dp-size",
        "dcp": "dcp-size",
        "pcp": "attn-cp-size",
        "block_size": "page-size",
        "model": "model-path",
    },
}
"""Flags that are called otherwise than the field that they set."""


def _spelled(setting: str, engine: Engine) -> str:
    """A setting as its user would write it: the flag, or the environment variable. TensorRT-LLM's are keys of a file.

    >>> _spelled("tp", Engine.VLLM), _spelled("block_size", Engine.SGLANG), _spelled("VLLM_KV_CACHE_LAYOUT", Engine.VLLM)
    ('--tensor-parallel-size', '--page-size', 'VLLM_KV_CACHE_LAYOUT')
    """
    if setting.isupper() or setting in _WITHOUT_FLAG or engine not in _FLAGS:
        return setting
    return f"--{_FLAGS[engine].get(setting, setting.replace('_', '-'))}"


def whole(value: Any, default: int) -> int:
    """A setting as a whole number, also where it was written as text; `default` for what is none, of which its reader complains.

    >>> whole(8, 1), whole("8", 1), whole("eight", 1), whole(None, 1), whole(True, 1)
    (8, 8, 1, 1, 1)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()) else default
