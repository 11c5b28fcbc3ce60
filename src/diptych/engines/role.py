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
        return self.places.get(setting) or f"{self.name or self.role} {setting} (not set)"

    def env_text(self, name: str, default: str = "") -> str:
        """An environment variable's text; empty when it comes from the cluster."""
        return self.env[name].text if name in self.env else default


def whole(value: Any, default: int) -> int:
    """A setting as a whole number, also where it was written as text; `default` for what is none, of which its reader complains.

    >>> whole(8, 1), whole("8", 1), whole("eight", 1), whole(None, 1), whole(True, 1)
    (8, 8, 1, 1, 1)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()) else default
