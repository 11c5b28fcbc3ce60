"""TensorRT-LLM's settings beside its flags: the YAML of `--config` or `--extra-engine-args`, and overrides of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diptych.deploy import bounded_json
from diptych.deploy.commands.arguments import Arguments, Given, merged
from diptych.deploy.commands.config_file import documents_below
from diptych.deploy.commands.statements import Word
from diptych.deploy.notes import Notes
from diptych.deploy.safe_yaml import Node
from diptych.deploy.typed import of_their_types
from diptych.engines.role import RoleConfig

FILES = ("config", "extra-engine-args")
OVERRIDES = ("override-engine-args", "trtllm")
_FIELDS = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "context_parallel_size": "pcp",
    "max_batch_size": "max_seqs",
    "max_num_tokens": "max_batched_tokens",
    "max_seq_len": "max_model_len",
    "dtype": "dtype",
    "attn_backend": "attention_backend",
}
_CACHE = {"tokens_per_block": "block_size", "dtype": "kv_cache_dtype"}


def trtllm_settings(config: RoleConfig, arguments: Arguments, base: Path | None, notes: Notes) -> RoleConfig:
    """The role with the engine's own configuration laid over its flags, as the engine does."""
    for name in FILES:
        given = arguments.given.get(name)
        document = _document(given, base, notes) if given is not None else None
        if document is not None:
            config = with_engine_args(config, document.plain, places_of(document))
    for name in OVERRIDES:
        given = arguments.given.get(name)
        value = _override(given, notes) if given is not None and given.known else None
        if given is not None and value is not None:
            config = with_engine_args(config, value, dict.fromkeys((*value, *_CACHE), given.place))
    return config


def with_engine_args(config: RoleConfig, extra: Mapping[str, Any], places: Mapping[str, str]) -> RoleConfig:
    """The role with TensorRT-LLM's settings by their own names; `kv_cache_config` gives block size and KV dtype too.

    `places` has the place of each setting by name, those inside `kv_cache_config` included.
    """
    cache = extra.get("kv_cache_config")
    inner = cache if isinstance(cache, Mapping) else {}
    found = {_FIELDS[name]: value for name, value in extra.items() if name in _FIELDS and value is not None}
    found |= {setting: inner[name] for name, setting in _CACHE.items() if inner.get(name) is not None}
    found = of_their_types(found)
    named = {_FIELDS.get(name, name): places[name] for name in extra if name in places}
    named |= {setting: places[name] for name, setting in _CACHE.items() if setting in found and name in places}
    options = merged(config.options, {name: value for name, value in extra.items() if name not in _FIELDS})
    written = {name: str(value) for name, value in found.items()}
    return replace(
        config,
        **found,
        options=options,
        written={**config.written, **written},
        places={**config.places, **named},
    )


def _document(given: Given, base: Path | None, notes: Notes) -> Node | None:
    word = Word(given.text, given.where, given.known)
    documents = documents_below(base, word, f"--{given.flag.name}", notes)
    return documents[0] if documents and isinstance(documents[0].value, dict) else None


def places_of(document: Node) -> dict[str, str]:
    """The place of each of the engine's settings by name, those of `kv_cache_config` included."""
    own = {name: node.where for name, node in document.entries().items() if name != "dtype"}
    return own | {name: node.where for name, node in document.entries("kv_cache_config").items()}


def _override(given: Given, notes: Notes) -> Mapping[str, Any] | None:
    value = given.value
    if isinstance(value, str):
        try:
            value = bounded_json.loads(value)
        except ValueError:
            value = None
    if isinstance(value, Mapping):
        return value
    notes.mistake(given.place, f"--{given.flag.name} is not a JSON object", "the engine's settings as JSON")
    return None
