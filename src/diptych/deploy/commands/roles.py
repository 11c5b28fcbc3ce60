"""A launched engine as a `RoleConfig`: which flag sets which field of each engine, and what a role is read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diptych.deploy.commands.arguments import Arguments, Given, parse_arguments
from diptych.deploy.commands.config_file import words_of_config
from diptych.deploy.commands.flags import FlagTable, flag_table
from diptych.deploy.commands.launch import Launch, version_of
from diptych.deploy.commands.statements import Word, placed
from diptych.deploy.commands.trtllm import trtllm_settings
from diptych.deploy.commands.variables import with_variables
from diptych.deploy.notes import Notes
from diptych.deploy.secrets import HIDDEN, hidden, is_secret, without_user
from diptych.deploy.typed import SIZES
from diptych.design.axes import Role
from diptych.engines.engine import Engine, Launcher
from diptych.engines.role import Connector, EnvValue, RoleConfig

ENGINES: Mapping[str, tuple[Engine, Launcher]] = {
    "vllm": (Engine.VLLM, Launcher.PLAIN),
    "sglang": (Engine.SGLANG, Launcher.PLAIN),
    "trtllm-serve": (Engine.TRTLLM, Launcher.PLAIN),
    "dynamo.vllm": (Engine.VLLM, Launcher.DYNAMO),
    "dynamo.sglang": (Engine.SGLANG, Launcher.DYNAMO),
    "dynamo.trtllm": (Engine.TRTLLM, Launcher.DYNAMO),
}
"""Programs that run a model, with what runs it and what starts it."""

FIELDS: Mapping[Engine, Mapping[str, str]] = {
    Engine.VLLM: {
        "model": "model",
        "served-model-name": "served_name",
        "revision": "revision",
        "tokenizer": "tokenizer",
        "dtype": "dtype",
        "quantization": "quantization",
        "kv-cache-dtype": "kv_cache_dtype",
        "block-size": "block_size",
        "tensor-parallel-size": "tp",
        "pipeline-parallel-size": "pp",
        "data-parallel-size": "dp",
        "enable-expert-parallel": "ep",
        "decode-context-parallel-size": "dcp",
        "prefill-context-parallel-size": "pcp",
        "attention-backend": "attention_backend",
        "enable-prefix-caching": "prefix_caching",
        "disable-hybrid-kv-cache-manager": "hybrid_kv_manager",
        "max-num-seqs": "max_seqs",
        "max-num-batched-tokens": "max_batched_tokens",
        "max-model-len": "max_model_len",
        "host": "host",
        "port": "port",
    },
    Engine.SGLANG: {
        "model-path": "model",
        "served-model-name": "served_name",
        "revision": "revision",
        "tokenizer-path": "tokenizer",
        "dtype": "dtype",
        "quantization": "quantization",
        "kv-cache-dtype": "kv_cache_dtype",
        "page-size": "block_size",
        "tp-size": "tp",
        "pp-size": "pp",
        "dp-size": "dp",
        "dcp-size": "dcp",
        "attn-cp-size": "pcp",
        "attention-backend": "attention_backend",
        "disable-radix-cache": "prefix_caching",
        "max-running-requests": "max_seqs",
        "chunked-prefill-size": "max_batched_tokens",
        "context-length": "max_model_len",
        "host": "host",
        "port": "port",
    },
    Engine.TRTLLM: {
        "model": "model",
        "served-model-name": "served_name",
        "revision": "revision",
        "tokenizer": "tokenizer",
        "torch-dtype": "dtype",
        "kv-block-size": "block_size",
        "tensor_parallel_size": "tp",
        "tensor-parallel-size": "tp",
        "pipeline_parallel_size": "pp",
        "pipeline-parallel-size": "pp",
        "context_parallel_size": "pcp",
        "max_batch_size": "max_seqs",
        "max-batch-size": "max_seqs",
        "max_num_tokens": "max_batched_tokens",
        "max-num-tokens": "max_batched_tokens",
        "max_seq_len": "max_model_len",
        "max-seq-len": "max_model_len",
        "host": "host",
        "port": "port",
    },
}
"""Long flag name → field of `RoleConfig`. What is not here is kept under `options`."""

_INVERTED = frozenset({"disable-hybrid-kv-cache-manager", "disable-radix-cache"})


@dataclass(frozen=True, slots=True)
class Reading:
    """How a text is read: the role that the caller knows it for, and the directory of files that it may name (None: none)."""

    role: Role | None = None
    base: Path | None = None


def role_config(launch: Launch, reading: Reading, notes: Notes) -> RoleConfig:
    """The settings of one engine's command. What it would refuse is added to `notes`."""
    engine, launcher = ENGINES[launch.program]
    table = flag_table(launch.program)
    arguments = _arguments(launch, table, reading, notes)
    if launch.program == "dynamo.vllm":
        _without_connector_flag(arguments, notes)
    config = RoleConfig(
        role=Role.COLOCATED,
        engine=engine,
        version=version_of(launch),
        launcher=launcher,
        name=launch.name,
        env={name: _hidden(name, value) for name, value in launch.env.items()},
        places={name: placed(where, name) for name, where in launch.env_places.items()},
    )
    config = _with_fields(config, arguments, launch, notes)
    if engine is Engine.TRTLLM:
        config = trtllm_settings(config, arguments, reading.base, notes)
    elif engine is Engine.SGLANG:
        config = _sglang(config, arguments)
    else:
        config = _vllm(config, arguments, notes)
    return replace(config, role=reading.role or _role_of(config))


def _arguments(launch: Launch, table: FlagTable, reading: Reading, notes: Notes) -> Arguments:
    arguments = parse_arguments(launch.words, table)
    config = arguments.given.get("config")
    if config is not None and launch.program in ("vllm", "sglang", "dynamo.sglang"):
        path = Word(config.text, config.where, config.known)
        arguments = parse_arguments((*words_of_config(path, reading.base, table, notes), *launch.words), table)
    arguments = with_variables(arguments, launch, table)
    notes.mistakes += arguments.notes.mistakes
    notes.unknown += arguments.notes.unknown
    stray = _stray(arguments, launch)
    if stray:
        many = "a word that belongs" if len(stray) == 1 else f"{len(stray)} words that belong"
        notes.mistake(stray[0].where, f"{many} to no flag", "a flag before it, or its quotes")
    return arguments


def _stray(arguments: Arguments, launch: Launch) -> list[Word]:
    """Words that are neither a flag's value nor the model that some programs take first."""
    return arguments.positionals[1:] if flag_table(launch.program).takes_model else arguments.positionals


def _without_connector_flag(arguments: Arguments, notes: Notes) -> None:
    """Dynamo 1.6.1 parses `--connector` for all its engines, and its vLLM worker then refuses it (`_reject_connector_flag`)."""
    given = arguments.given.pop("connector", None)
    if given is not None:
        notes.mistake(given.place, "--connector is refused by dynamo.vllm", "--kv-transfer-config")


def _hidden(name: str, value: EnvValue) -> EnvValue:
    if value.text and is_secret(name):
        return EnvValue(source=HIDDEN)
    return EnvValue(text=hidden(name, value.text), source=value.source)


_QUIET = frozenset({"host", "port", "served_name", "config", "kv-transfer-config", "extra-engine-args"})
"""Not worth a word when they are set outside: addresses and names, and what has a note of its own."""


def _with_fields(config: RoleConfig, arguments: Arguments, launch: Launch, notes: Notes) -> RoleConfig:
    fields = FIELDS[config.engine]
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    written: dict[str, str] = {}
    places = dict(config.places)
    for name, given in arguments.given.items():
        setting = fields.get(name, name)
        places[setting] = given.place
        if name in fields:
            written[setting] = given.text
        if setting in SIZES and isinstance(given.value, int) and given.value < 1:
            notes.mistake(given.place, f"--{name} is {given.value}", "1 or more")
        elif given.value is not None and name in fields:
            values[setting] = _field_value(name, given)
        elif given.value is not None:
            options[name] = given.value
        elif not given.known and setting not in _QUIET:
            notes.not_known(given.place, f"--{name} is {given.text}, which is set outside this text", "its value")
    if arguments.positionals and flag_table(launch.program).takes_model:
        model = arguments.positionals[0]
        written["model"], places["model"] = without_user(model.text), model.where
        if model.known:
            values["model"] = without_user(model.text)
        else:
            notes.not_known(model.where, f"the model is {model.text}, which is set outside this text", "its name")
    return replace(config, **values, options=options, written=written, places=places)


def _field_value(name: str, given: Given) -> Any:
    if name in _INVERTED:
        return not given.value
    return given.value[0] if isinstance(given.value, tuple) and given.value else given.value


# ---- what each engine says in a way of its own -------------------------------------------------------------------------


def _vllm(config: RoleConfig, arguments: Arguments, notes: Notes) -> RoleConfig:
    options = dict(config.options)
    transfer = arguments.given.get("kv-transfer-config")
    connector = None
    places, written = dict(config.places), dict(config.written)
    if transfer is not None:
        options.pop("kv-transfer-config", None)
        places["connector"], written["connector"] = transfer.place, transfer.text
        connector = _connector(transfer, notes)
    attention = arguments.value("attention-config")
    backend = config.attention_backend
    if not backend and isinstance(attention, Mapping) and attention.get("backend"):
        backend = str(attention["backend"])
        places["attention_backend"] = arguments.given["attention-config"].place
    return replace(
        config,
        connector=connector,
        attention_backend=backend,
        speculative=_speculative(arguments, places),
        options=options,
        places=places,
        written=written,
    )


def _connector(given: Given, notes: Notes) -> Connector:
    """The connector; one without a name where it cannot be told."""
    if isinstance(given.value, Mapping):
        return connector_of(given.value)
    if not given.known:
        notes.not_known(given.place, "--kv-transfer-config is set outside this text", "its JSON")
    elif given.value is not None:
        notes.mistake(given.place, "--kv-transfer-config is not a JSON object", '{"kv_connector": ..., "kv_role": ...}')
    return Connector("")


def connector_of(fields: Mapping[str, Any]) -> Connector:
    """A `--kv-transfer-config` object; the children of a MultiConnector are under `connectors` of its extra configuration."""
    extra = fields.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, Mapping) else {}
    inner = extra.get("connectors")
    children = [child for child in inner if isinstance(child, Mapping)] if isinstance(inner, list) else []
    return Connector(
        name=str(fields.get("kv_connector") or ""),
        role=str(fields.get("kv_role") or ""),
        fields=dict(fields),
        extra=dict(extra),
        children=tuple(connector_of(child) for child in children),
    )


def _speculative(arguments: Arguments, places: dict[str, str]) -> dict[str, Any]:
    given = arguments.value("speculative-config")
    found = dict(given) if isinstance(given, Mapping) else {}
    for flag, key in (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens")):
        if (value := arguments.value(flag)) is not None:
            found[key] = value
    for flag in ("speculative-config", "spec-method"):
        if flag in arguments.given:
            places["speculative"] = arguments.given[flag].place
    return found


_SGLANG_SPECULATIVE = {
    "speculative-algorithm": "method",
    "speculative-draft-model-path": "model",
    "speculative-num-draft-tokens": "num_speculative_tokens",
    "speculative-num-steps": "num_steps",
    "speculative-draft-kv-cache-dtype": "kv_cache_dtype",
}


def _sglang(config: RoleConfig, arguments: Arguments) -> RoleConfig:
    speculative = {
        key: arguments.value(flag) for flag, key in _SGLANG_SPECULATIVE.items() if arguments.value(flag) is not None
    }
    places = dict(config.places)
    if speculative:
        first = next(flag for flag in _SGLANG_SPECULATIVE if flag in arguments.given)
        places["speculative"] = arguments.given[first].place
    ranks = arguments.value("ep-size", 1)
    if "ep-size" in arguments.given:
        places["ep"] = arguments.given["ep-size"].place
    return replace(config, speculative=speculative, ep=ranks > 1, places=places)


_VLLM_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


def _role_of(config: RoleConfig) -> Role:
    """What the settings say that this engine does: its disaggregation mode, its connector's role, its server role."""
    mode = str(config.options.get("disaggregation-mode") or config.options.get("server_role") or "").casefold()
    named = {"prefill": Role.PREFILL, "decode": Role.DECODE, "context": Role.PREFILL, "generation": Role.DECODE}
    if mode in named:
        return named[mode]
    if mode in ("agg", "pd", "null") or config.connector is None:
        return Role.COLOCATED
    roles = [_VLLM_ROLES[each.role] for each in config.connector.all() if each.role in _VLLM_ROLES]
    return roles[0] if roles else Role.COLOCATED
