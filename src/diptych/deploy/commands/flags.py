"""The flags that each program takes, as data: names, aliases and what follows them, of the releases named in each table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from diptych.errors import did_you_mean


class Kind(StrEnum):
    """What follows a flag."""

    SWITCH = "switch"  # nothing
    BOOLEAN = "boolean"  # nothing, and --no-NAME turns it off
    INT = "int"
    FLOAT = "float"
    STR = "str"
    JSON = "json"
    LIST = "list"  # several words
    APPEND = "append"  # several words, and the flag may be repeated
    OPTIONAL = "optional"  # a word or nothing


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag by its long name without dashes. `program` is the table it comes from; `server` marks the HTTP server's own."""

    name: str
    kind: Kind
    program: str
    choices: tuple[str, ...] = ()
    env: str = ""
    server: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """A spelling resolved: the flag, and whether the spelling turns it off. Several candidates: an ambiguous abbreviation."""

    flags: tuple[Flag, ...]
    off: bool = False


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of one program by every spelling it accepts.

    `separator` is what a parser turns the other one into: vLLM dashes, trtllm-serve underscores; others take what is written.
    `dotted` programs take `--json.key value` and pair `--enable-x` with `--disable-x` (vLLM's parser). Some take a model first.
    """

    program: str
    release: str
    spellings: Mapping[str, Flag]
    removed: Mapping[str, str]
    separator: str = ""
    dotted: bool = False
    takes_model: bool = False

    def match(self, spelling: str) -> Match | None:
        """What a spelling such as '--tensor-parallel-size', '-tp' or '--no-enable-x' stands for; None is unknown."""
        name = self.normal(spelling)
        if name in self.spellings:
            return Match((self.spellings[name],))
        return self._negated(name) or self._abbreviated(name)

    def normal(self, spelling: str) -> str:
        """The spelling as the table has it."""
        if self.separator and spelling.startswith("--") and spelling not in self.spellings:
            return "--" + spelling[2:].replace("-" if self.separator == "_" else "_", self.separator)
        return spelling

    def instead(self, spelling: str) -> str | None:
        """What replaced a flag that an older release took."""
        return self.removed.get(self.normal(spelling).lstrip("-"))

    def hint(self, spelling: str) -> str:
        """The nearest known spellings."""
        return did_you_mean(self.normal(spelling), [name for name in self.spellings if name.startswith("--")])

    def _negated(self, name: str) -> Match | None:
        for prefix, positive in (("--no-", "--"), ("--disable-", "--enable-"), ("--enable-", "--disable-")):
            flag = self.spellings.get(positive + name.removeprefix(prefix)) if name.startswith(prefix) else None
            if flag is not None and flag.kind is Kind.BOOLEAN and (prefix == "--no-" or self.dotted):
                return Match((flag,), off=True)
        return None

    def _abbreviated(self, name: str) -> Match | None:
        """argparse takes any beginning of one flag's long name."""
        if not name.startswith("--") or len(name) < 4:
            return None
        found = {flag.name: flag for spelling, flag in self.spellings.items() if spelling.startswith(name)}
        return Match(tuple(found.values())) if found else None


_PROGRAMS: Mapping[str, tuple[str, tuple[str, ...], str, bool]] = {
    "vllm": ("vLLM", ("vllm",), "-", True),
    "sglang": ("SGLang", ("sglang",), "", False),
    "trtllm-serve": ("trtllm-serve", ("trtllm_serve",), "_", False),
    "dynamo.vllm": ("dynamo.vllm", ("dynamo_vllm", "vllm"), "-", True),
    "dynamo.sglang": ("dynamo.sglang", ("dynamo_sglang", "sglang"), "", False),
    "dynamo.trtllm": ("dynamo.trtllm", ("dynamo_trtllm",), "", True),
    "dynamo.frontend": ("dynamo.frontend", ("dynamo_frontend",), "", False),
    "vllm-router": ("vllm-router", ("vllm_router",), "", False),
    "sglang_router": ("sglang_router", ("sglang_router",), "", False),
}


@cache
def flag_table(program: str) -> FlagTable:
    """The table of a program: 'vllm', 'sglang', 'trtllm-serve', 'dynamo.vllm', 'dynamo.frontend', 'vllm-router', ..."""
    title, names, separator, dotted = _PROGRAMS[program]
    tables = {name: _load(name) for name in names}
    launched = program.startswith("dynamo.")
    spellings: dict[str, Flag] = {}
    for name, table in tables.items():
        for spelling, flag in _spellings(name, table):
            if not (launched and flag.server):
                spellings.setdefault(spelling, flag)
    if program == "dynamo.trtllm":
        spellings["--trtllm"] = Flag("trtllm", Kind.JSON, program)  # --trtllm.KEY VALUE, an override of its YAML
    removed = {flag: instead for name in names for flag, instead in _load("removed").get(name, {}).items()}
    first = tables[names[0]]
    return FlagTable(
        title, first["version"], spellings, removed, separator, dotted, program in ("vllm", "trtllm-serve")
    )


def _spellings(program: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Flag]]:
    for name, row in table["flags"].items():
        choices = tuple(row.get("choices", ()))
        flag = Flag(name, Kind(row["kind"]), program, choices, row.get("env", ""), row.get("group") == "server")
        for spelling in (f"--{name}", *row.get("aliases", ())):
            yield spelling, flag


@cache
def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        (files("diptych.deploy") / "data" / "flags" / f"{name}.json").read_text("utf-8")
    )
    return loaded
