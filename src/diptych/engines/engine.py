"""The engines that are known, and their versions: what is true of one release need not be of the next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from diptych.errors import Finding, InvalidInput, did_you_mean


class Engine(StrEnum):
    """What runs the model. Dynamo, KServe and llm-d launch one of these; they are a `Launcher`."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


class Launcher(StrEnum):
    """What starts the engine and routes to it."""

    PLAIN = "plain"
    DYNAMO = "dynamo"
    KSERVE = "kserve"
    LLM_D = "llm-d"
    PRODUCTION_STACK = "production-stack"


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A release as numbers: 0.33 is 0.33.0, and a suffix such as rc1 is left out of comparisons."""

    parts: tuple[int, int, int]

    def __str__(self) -> str:
        return ".".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class Versions:
    """A half-open range of releases, `first` <= v < `end`; None is open."""

    first: Version | None = None
    end: Version | None = None

    def __contains__(self, version: Version) -> bool:
        return (self.first is None or version >= self.first) and (self.end is None or version < self.end)

    def __str__(self) -> str:
        if self.first is None and self.end is None:
            return "every version"
        parts = [f"from {self.first}"] if self.first else []
        return " ".join([*parts, f"before {self.end}"] if self.end else parts)


EVERY = Versions()

READ = {
    Engine.VLLM: Version((0, 33, 0)),
    Engine.SGLANG: Version((0, 5, 23)),
    Engine.TRTLLM: Version((1, 3, 0)),
}
"""The release of each engine whose source the rules were read from: assumed where none is named."""

_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:\.?(?:post|rc|dev|a|b)\d*)*(?:\+.*)?")


def version(text: str, where: str = "version") -> Version:
    """Read '0.33', 'v0.33.1' or '0.3.13.post1'; raises InvalidInput."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(Finding(where, f"{text!r} is not a version", "numbers such as 0.33 or 0.33.1"))
    major, minor, patch = (int(part or 0) for part in match.groups())
    return Version((major, minor, patch))


def known_version(text: str, engine: Engine, where: str = "version") -> Version:
    """A release that someone names, of the line that was read or an earlier one. Raises InvalidInput.

    A later release of an image or a running server is no mistake: `check` says of it that it was not read.
    """
    named = version(text, where)
    if named.parts[:2] > READ[engine].parts[:2]:
        problem = f"{engine} {named} is not known: its rules were read from the source of {READ[engine]}"
        raise InvalidInput(Finding(where, problem, "that release or an earlier one"))
    return named


def engine_at(text: str, where: str = "--engine") -> tuple[Engine, Version]:
    """Read 'vllm@0.33' or 'sglang'; the release that was read stands for a missing one. Raises InvalidInput."""
    name, _, release = text.partition("@")
    try:
        engine = Engine(name.strip().casefold())
    except ValueError:
        known = [str(engine) for engine in Engine]
        finding = Finding(where, f"unknown engine {name!r}", hint=did_you_mean(name, known))
        raise InvalidInput(finding) from None
    return engine, known_version(release, engine, where) if release else READ[engine]
