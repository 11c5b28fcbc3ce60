"""A role's settings as its engine's command line: the other direction of `deploy.commands`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping

from diptych.design.axes import Role
from diptych.engines.engine import Engine, Launcher
from diptych.engines.of_design import RANK_PORT
from diptych.engines.role import RoleConfig

Flag = tuple[str, *tuple[str | int, ...]]


def program(config: RoleConfig) -> tuple[str, ...]:
    """What starts the engine, up to its first flag."""
    if config.launcher is Launcher.DYNAMO:
        return ("python3", "-m", f"dynamo.{config.engine}")
    if config.engine is Engine.SGLANG:
        return ("python3", "-m", "sglang.launch_server")
    return ("vllm", "serve", config.model)


def arguments(config: RoleConfig, without: Collection[str] = ()) -> tuple[str, ...]:
    """The engine's flags: not the address to listen on, nor those named in `without`, which a launcher writes itself."""
    return tuple(str(word) for words in _flags(config) if words[0] not in without for word in words)


def command(config: RoleConfig, host: str, port: str, taken: Mapping[str, str]) -> str:
    """The whole command for a script, a flag to a line. `host`, `port` and `taken` values are shell text and may expand."""
    lines = [" ".join(shlex.quote(word) for word in program(config))]
    for flag, *values in _flags(config):
        name = flag.removeprefix("--")
        shown = [taken[name]] if name in taken else [_word(str(value)) for value in values]
        lines.append(" ".join((flag, *shown)))
    return " \\\n  ".join((*lines, f"--host {host} --port {port}"))


def _word(text: str) -> str:
    """A word for a shell, quoted but for what the script works out for itself: its host's address and its ranks' port."""
    open_ = text.replace(f'"port":{RANK_PORT}', '"port":$rank_port')
    pieces = _OPEN.split(open_)
    return "".join(f'"{piece}"' if _OPEN.fullmatch(piece) else shlex.quote(piece) for piece in pieces if piece)


_OPEN = re.compile(r"(\$HOST_IP|\$rank_port)")


def _flags(config: RoleConfig) -> Iterator[Flag]:
    return _sglang(config) if config.engine is Engine.SGLANG else _vllm(config)


def _vllm(config: RoleConfig) -> Iterator[Flag]:
    if config.launcher is Launcher.DYNAMO:
        yield "--model", config.model
        if config.role is not Role.COLOCATED:
            yield "--disaggregation-mode", str(config.role)
    yield "--served-model-name", config.served_name
    yield "--dtype", config.dtype
    if config.quantization:
        yield "--quantization", config.quantization
    yield from _sizes(config, ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"))
    if config.ep:
        yield ("--enable-expert-parallel",)
    yield "--kv-cache-dtype", config.kv_cache_dtype
    if config.block_size:
        yield "--block-size", config.block_size
    if config.attention_backend:
        yield "--attention-backend", config.attention_backend
    if config.max_seqs:
        yield "--max-num-seqs", config.max_seqs
    if config.max_batched_tokens:
        yield "--max-num-batched-tokens", config.max_batched_tokens
    if config.connector:
        yield "--kv-transfer-config", json.dumps(dict(config.connector.fields), separators=(",", ":"))
    yield from _others(config)


def _sglang(config: RoleConfig) -> Iterator[Flag]:
    yield "--model-path", config.model
    yield "--served-model-name", config.served_name
    yield "--dtype", config.dtype
    if config.quantization:
        yield "--quantization", config.quantization
    yield from _sizes(config, ("--tp-size", "--pp-size", "--dp-size"))
    if config.ep:
        yield "--ep-size", config.tp
    yield "--kv-cache-dtype", config.kv_cache_dtype
    if config.block_size:
        yield "--page-size", config.block_size
    if config.max_seqs:
        yield "--max-running-requests", config.max_seqs
    if config.max_batched_tokens:
        yield "--chunked-prefill-size", config.max_batched_tokens
    yield ("--enable-metrics",)
    yield from _others(config)


def _sizes(config: RoleConfig, flags: tuple[str, str, str]) -> Iterator[Flag]:
    """TP always, so that a reader sees it; PP and DP where they are more than one."""
    yield flags[0], config.tp
    for flag, size in zip(flags[1:], (config.pp, config.dp), strict=True):
        if size > 1:
            yield flag, size


def _others(config: RoleConfig) -> Iterator[Flag]:
    """The engine's further flags; True stands for a flag without a value."""
    for name, value in config.options.items():
        yield (f"--{name}",) if value is True else (f"--{name}", value)
