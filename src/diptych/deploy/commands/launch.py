"""Which program a command starts, seen through what it is wrapped in: env, nohup, numactl, docker run, bash -c, uv run, sudo."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from diptych.deploy.commands.statements import Statement, Word, env_value, statements
from diptych.engines.engine import Version, version
from diptych.engines.role import EnvValue
from diptych.errors import Finding, InvalidInput

MAX_NESTING = 8
MAX_WITHIN = 2**17
"""Texts within texts: how deep (`bash -c` in `docker run` in ...), and how many characters of them in all."""


class _Nesting:
    """What may still be read of texts within a command; a text that unfolds itself runs out of it."""

    def __init__(self) -> None:
        self.left = MAX_WITHIN

    def enter(self, text: str, where: str) -> None:
        self.left -= len(text) + 1
        if self.left < 0:
            raise InvalidInput(
                Finding(where, f"more than {MAX_WITHIN:,} characters of commands within commands", "a launch command")
            )


@dataclass(frozen=True, slots=True)
class Launch:
    """A program of flags.py (or a proxy script) with its own arguments and environment. `image` is the container's, if in one."""

    program: str
    words: tuple[Word, ...]
    where: str
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    env_places: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    name: str = ""


MODULES: Mapping[str, str] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm-cli",
    "sglang.launch_server": "sglang",
    "sglang_router.launch_router": "sglang_router",
    "sglang_router": "sglang_router",
    "vllm_router.launch_router": "vllm-router",
    "vllm_router": "vllm-router",
    "dynamo.vllm": "dynamo.vllm",
    "dynamo.sglang": "dynamo.sglang",
    "dynamo.trtllm": "dynamo.trtllm",
    "dynamo.frontend": "dynamo.frontend",
    "tensorrt_llm.commands.serve": "trtllm-serve",
}
"""Modules that `python -m` starts."""

PROXIES = ("proxy", "router")
"""Python files whose name has one of these words are taken for a proxy between the roles."""

ENGINE_IMAGES = {
    "vllm-openai": "vllm",
    "sglang": "sglang",
    "vllm-runtime": "dynamo.vllm",
    "sglang-runtime": "dynamo.sglang",
    "llm-d-cuda": "vllm",
}
"""What stands in the name of an engine's public image; only vllm-openai starts its server by itself."""

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
_WRAPPERS = frozenset(
    [
        "env",
        "nohup",
        "exec",
        "sudo",
        "time",
        "nice",
        "ionice",
        "numactl",
        "taskset",
        "timeout",
        "setsid",
        "stdbuf",
        "tini",
        "dumb-init",
        "catchsegv",
        "uv",
        "uvx",
        "poetry",
        "pipenv",
        "conda",
        "micromamba",
        "srun",
        "mpirun",
        "mpiexec",
        "nsys",
        "rocprof",
        "docker",
        "podman",
        "nerdctl",
        "singularity",
        "apptainer",
        "xargs",
        "doas",
        "stdbuf",
        "screen",
        "tmux",
        "ray",
    ]
)
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def launches(statement: Statement) -> Iterator[Launch]:
    """The known programs that a command starts; nothing for `cd`, `sleep` and the like. Raises InvalidInput at an open quote."""
    yield from _launches(statement, 0, _Nesting())


def _launches(statement: Statement, depth: int, nesting: _Nesting) -> Iterator[Launch]:
    words = statement.words
    if not words or depth > MAX_NESTING:
        return
    head = _base(words[0].text)
    if head == "eval":
        yield from _evaluated(statement, depth, nesting)
    elif head in _SHELLS:
        yield from _in_shell(statement, depth, nesting)
    elif head in _CONTAINERS:
        yield from _in_container(statement, depth, nesting)
    elif head in _WRAPPERS:
        yield from _wrapped(statement, depth, nesting)
    elif (found := _program(words)) is not None:
        name, rest = found
        yield Launch(name, rest, words[0].where, statement.env, statement.env_places)


def is_engine_image(image: str) -> str:
    """The program behind a public engine image ('vllm/vllm-openai:v0.33.0' → 'vllm'); empty for others."""
    name = image.rsplit("@", 1)[0].rsplit("/", 1)[-1].partition(":")[0]
    matching = [part for part in ENGINE_IMAGES if name == part or name.startswith(part + "-")]
    return ENGINE_IMAGES[max(matching, key=len)] if matching else ""


def image_version(image: str) -> Version | None:
    """The engine's release by an image's tag: its own ('vllm/vllm-openai:v0.33.0'), or what a release of Dynamo brings."""
    name, _, tag = image.rsplit("@", 1)[0].rsplit("/", 1)[-1].partition(":")
    match = re.match(r"v?(\d+\.\d+(?:\.\d+)?)", tag)
    if match is None:
        return None
    runtime = re.fullmatch(r"(vllm|sglang|tensorrtllm)-runtime(-.*)?", name)
    if runtime is not None:
        brought = _dynamo_engines().get(match[1], {}).get(runtime[1].replace("tensorrtllm", "trtllm"))
        return version(brought) if brought else None
    own = is_engine_image(image) in ("vllm", "sglang") and "llm-d" not in image
    return version(match[1]) if own else None


@cache
def _dynamo_engines() -> dict[str, dict[str, str]]:
    text = (files("diptych.deploy") / "data" / "dynamo_engines.json").read_text("utf-8")
    loaded: dict[str, dict[str, str]] = json.loads(text)
    return loaded


def started_by(image: str, words: tuple[Word, ...], where: str) -> tuple[Word, ...]:
    """Arguments after an image with no command: what the image's own entry point makes of them."""
    if is_engine_image(image) == "vllm" and "vllm-openai" in image and (not words or words[0].text.startswith("-")):
        return (Word("python3", where), Word("-m", where), Word("vllm.entrypoints.openai.api_server", where), *words)
    return words


def _base(text: str) -> str:
    return text.rsplit("/", 1)[-1]


def _program(words: tuple[Word, ...]) -> tuple[str, tuple[Word, ...]] | None:
    head = _base(words[0].text)
    following = words[1].text if len(words) > 1 else ""
    if head == "vllm" and following == "serve":
        return "vllm", words[2:]
    if head == "sglang" and following == "serve":
        return "sglang", words[2:]
    if head in ("vllm-router", "sglang_router", "sglang-router", "smg"):
        is_launch = following == "launch"
        return ("vllm-router" if head == "vllm-router" else "sglang_router"), words[1 + is_launch :]
    if head == "trtllm-serve":
        if following in ("disaggregated", "mm_embedding_serve", "grpc", "disaggregated_mpi_worker"):
            return None
        return "trtllm-serve", words[1 + (following == "serve") :]
    return _python(words) if re.fullmatch(r"python(3(\.\d+)?)?", head) else None


def _python(words: tuple[Word, ...]) -> tuple[str, tuple[Word, ...]] | None:
    at = 1
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "-m":
        at += 2 if words[at].text in ("-W", "-X") else 1
    if at + 1 < len(words) and words[at].text == "-m":
        name = MODULES.get(words[at + 1].text)
        if name == "vllm-cli":
            return ("vllm", words[at + 3 :]) if words[at + 2 : at + 3] and words[at + 2].text == "serve" else None
        return None if name is None else (name, words[at + 2 :])
    if at < len(words) and words[at].text.endswith(".py") and any(part in _base(words[at].text) for part in PROXIES):
        return _base(words[at].text), words[at + 1 :]
    return None


def _in_shell(statement: Statement, depth: int, nesting: _Nesting) -> Iterator[Launch]:
    """`bash -c TEXT`: the text is read as a script that sees the command's environment."""
    words = statement.words
    at = next((i for i, word in enumerate(words[1:], 1) if re.fullmatch(r"-\w*c", word.text)), None)
    if at is None or at + 1 >= len(words):
        return
    text = words[at + 1]
    nesting.enter(text.text, text.where)
    name, _, line = text.where.rpartition(":")
    lines = line.isdigit()
    for inner in statements(
        text.text, name if lines else text.where, int(line) if lines else 1, lines, _known(statement)
    ):
        merged = replace(
            inner,
            env={**statement.env, **inner.env},
            env_places={**statement.env_places, **inner.env_places},
        )
        yield from _launches(merged, depth + 1, nesting)


def _evaluated(statement: Statement, depth: int, nesting: _Nesting) -> Iterator[Launch]:
    """`eval TEXT`: a text that was put together before, read where it is run."""
    where = statement.words[0].where
    text = " ".join(word.text for word in statement.words[1:])
    nesting.enter(text, where)
    for inner in statements(text, where, lines=False, env=_known(statement)):
        yield from _launches(inner, depth + 1, nesting)


def _known(statement: Statement) -> dict[str, Word]:
    """The variables of a command's environment that a text within it may use."""
    places = statement.env_places
    return {name: Word(value.text, places.get(name, "")) for name, value in statement.env.items() if value.text}


def _wrapped(statement: Statement, depth: int, nesting: _Nesting) -> Iterator[Launch]:
    """Skip a wrapper's own words up to what it starts; `A=b` on the way goes into the environment."""
    env, places = dict(statement.env), dict(statement.env_places)
    for at, word in enumerate(statement.words[1:], 1):
        if (assigned := _ASSIGNED.fullmatch(word.text)) is not None:
            env[assigned[1]] = env_value(Word(assigned[2], word.where, word.known))
            places[assigned[1]] = word.where
            continue
        rest = statement.words[at:]
        if _base(word.text) in _WRAPPERS | _SHELLS or _program(rest) is not None:
            yield from _launches(Statement(rest, env, places), depth + 1, nesting)
            return


_WITHOUT_VALUE = frozenset(
    [
        "--rm",
        "-d",
        "--detach",
        "-i",
        "-t",
        "-it",
        "-ti",
        "--init",
        "--privileged",
        "--interactive",
        "--tty",
        "--read-only",
        "--no-healthcheck",
        "--oom-kill-disable",
        "-P",
        "--publish-all",
        "--sig-proxy",
        "-itd",
        "-dit",
        "-idt",
    ]
)


def _in_container(statement: Statement, depth: int, nesting: _Nesting) -> Iterator[Launch]:
    """`docker run OPTIONS IMAGE ARGUMENTS`: its -e variables, its name, and what the image starts."""
    words = statement.words
    start = next((i + 1 for i, word in enumerate(words) if word.text in ("run", "create")), None)
    if start is None:
        return
    options: dict[str, list[Word]] = {}
    at = start
    while at < len(words) and words[at].text.startswith("-"):
        name, equals, value = words[at].text.partition("=")
        if equals:
            options.setdefault(name, []).append(Word(value, words[at].where, words[at].known))
        elif name not in _WITHOUT_VALUE and at + 1 < len(words):
            at += 1
            options.setdefault(name, []).append(words[at])
        at += 1
    if at >= len(words):
        return
    env, places = dict(statement.env), dict(statement.env_places)
    for word in (*options.get("-e", ()), *options.get("--env", ())):
        variable, equals, value = word.text.partition("=")
        env[variable] = env_value(Word(value, word.where, word.known)) if equals else EnvValue(source=f"${variable}")
        places[variable] = word.where
    image, where = words[at].text, words[at].where
    entry = tuple(options.get("--entrypoint", ()))
    arguments = (*entry, *words[at + 1 :]) if entry else started_by(image, words[at + 1 :], where)
    named = options.get("--name", [Word("", where)])[-1].text
    for launch in _launches(Statement(arguments, env, places), depth + 1, nesting):
        yield replace(launch, image=launch.image or image, name=launch.name or named)


def version_of(launch: Launch) -> Version | None:
    """The engine's release that a launch names: its image's tag."""
    try:
        return image_version(launch.image) if launch.image else None
    except InvalidInput:
        return None
