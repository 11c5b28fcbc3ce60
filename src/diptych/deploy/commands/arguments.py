"""A program's arguments matched with its flags: typed values with their places, and a finding for each that it would refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych.deploy import bounded_json
from diptych.deploy.commands.flags import Flag, FlagTable, Kind
from diptych.deploy.commands.statements import Word, placed
from diptych.deploy.notes import Notes
from diptych.deploy.secrets import HIDDEN, hidden, hidden_inside, is_secret

MAX_SHOWN = 60
MAX_KEYS = 16
MAX_HINTS = 20


@dataclass(frozen=True, slots=True)
class Given:
    """What a flag was given. `value` is None where it is set outside the text (`known` False) or was a mistake."""

    flag: Flag
    value: Any
    text: str
    where: str
    known: bool = True

    @property
    def place(self) -> str:
        """Its place in a file, or, where the text has no lines, the place and the flag: 'prefill --block-size'."""
        return placed(self.where, f"--{self.flag.name}")


@dataclass(slots=True)
class Arguments:
    """The flags by long name, and the words that belong to none."""

    given: dict[str, Given] = field(default_factory=dict)
    positionals: list[Word] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    def value(self, name: str, default: Any = None) -> Any:
        found = self.given.get(name)
        return default if found is None or found.value is None else found.value


def parse_arguments(words: Sequence[Word], table: FlagTable) -> Arguments:
    """Match words with a program's flags as its own parser would: the last of a repeated flag counts."""
    return _Parser(list(words), table).parse()


class _Parser:
    def __init__(self, words: list[Word], table: FlagTable) -> None:
        self.words, self.table, self.at = words, table, 0
        self.result = Arguments()

    def parse(self) -> Arguments:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if not is_flag(word.text):
                self._positional(word)
            elif word.text.startswith("-O") and "--optimization-level" in self.table.spellings:
                self._optimization(word)
            else:
                self._flag(word)
        return self.result

    def _positional(self, word: Word) -> None:
        is_model = self.table.takes_model and not self.result.positionals
        if not word.text.strip():
            self._find(
                word.where,
                "a space after the backslash ends the command here",
                "a backslash at the very end of the line",
            )
        elif not word.known and not is_model and re.fullmatch(r"\$\{?\w+(\[@\])?\}?", word.text):
            problem = f"{word.text} is set outside this text: what it adds is not read"
            self.result.notes.not_known(word.where, problem, "its flags, written out")
        else:
            self.result.positionals.append(word)

    def _optimization(self, word: Word) -> None:
        level = word.text[2:].removeprefix("=")
        if not level and self.at < len(self.words):
            level = self.words[self.at].text
            self.at += 1
        self._keep(self.table.spellings["--optimization-level"], level, level, word)

    def _flag(self, word: Word) -> None:
        spelling, equals, attached = word.text.partition("=")
        base, dot, path = spelling.partition(".")
        dotted = self.table.dotted and dot != "" and self.table.match(base) is not None
        match = self.table.match(base if dotted else spelling)
        if match is None:
            self._unknown(spelling, word, bool(equals))
            return
        if len(match.flags) > 1:
            names = ", ".join(f"--{flag.name}" for flag in match.flags[:5])
            self._find(
                word.where, f"{spelling} is short for more than one flag of {self.table.program}", f"one of {names}"
            )
            self._skip_value(bool(equals))
            return
        flag = match.flags[0]
        if dotted:
            self._dotted(flag, path, attached if equals else None, word)
        elif flag.kind in (Kind.SWITCH, Kind.BOOLEAN):
            self._switch(flag, not match.off, word, bool(equals))
        else:
            self._value(flag, attached if equals else None, word)

    def _unknown(self, spelling: str, word: Word, attached: bool) -> None:
        if re.search(r"\s", spelling):
            problem = f"{spelling.split()[0]} and what follows it are one argument"
            self._find(word.where, problem, "each word as an argument of its own")
            return
        instead = self.table.instead(spelling)
        if instead is not None:
            problem = f"{spelling} was removed from {self.table.program}"
            self._find(self._place(word, spelling), problem, instead, "")
        else:
            problem = f"{spelling} is no flag of {self.table.program} {self.table.release}"
            hint = self.table.hint(spelling) if len(self.result.notes.mistakes) < MAX_HINTS else ""
            self._find(self._place(word, spelling), problem, "", hint)
        self._skip_value(attached)

    def _skip_value(self, attached: bool) -> None:
        if not attached and self.at < len(self.words) and not is_flag(self.words[self.at].text):
            self.at += 1

    def _switch(self, flag: Flag, on: bool, word: Word, attached: bool) -> None:
        if attached:
            self._find(self._place(word, f"--{flag.name}"), f"--{flag.name} takes no value", "the flag alone")
        self._keep(flag, on, str(on).lower(), word)

    def _following(self) -> list[Word]:
        start = self.at
        while self.at < len(self.words) and not is_flag(self.words[self.at].text):
            self.at += 1
        return self.words[start : self.at]

    def _value(self, flag: Flag, attached: str | None, word: Word) -> None:
        if flag.kind in (Kind.LIST, Kind.APPEND):
            self._list(
                flag, [Word(attached, word.where, word.known)] if attached is not None else self._following(), word
            )
            return
        if attached is not None:
            value: Word | None = Word(attached, word.where, word.known)
        elif self.at < len(self.words) and not is_flag(self.words[self.at].text):
            value = self.words[self.at]
            self.at += 1
        else:
            value = None
        if value is not None:
            self._scalar(flag, value)
        elif flag.kind is Kind.OPTIONAL:
            self._keep(flag, True, "true", word)
        else:
            self._find(self._place(word, f"--{flag.name}"), f"--{flag.name} is given no value", _expected(flag))

    def _list(self, flag: Flag, values: list[Word], word: Word) -> None:
        texts = tuple(hidden(flag.name, value.text) for value in values)
        earlier = self.result.value(flag.name, ())
        kept: Any = (*earlier, texts) if flag.kind is Kind.APPEND else texts
        self._keep(flag, kept, " ".join(texts), word, all(value.known for value in values))

    def _scalar(self, flag: Flag, word: Word) -> None:
        if not word.known and flag.kind is not Kind.JSON:
            self._keep(flag, None, word.text, word, known=False)
            return
        try:
            value = _typed(flag, word.text, word.known)
        except ValueError:
            if word.known:
                self._find(self._place(word, f"--{flag.name}"), _refusal(flag, word.text), _expected(flag))
            text = "(not JSON)" if flag.kind is Kind.JSON else word.text
            self._keep(flag, None, text, word, word.known)
            return
        self._keep(flag, value, word.text, word, word.known)

    def _dotted(self, flag: Flag, path: str, attached: str | None, word: Word) -> None:
        """`--kv-transfer-config.kv_connector X`: one key of a JSON flag; a trailing + adds to a list."""
        if attached is None:
            following = self.words[self.at] if self.at < len(self.words) else None
            attached = following.text if following else ""
            self.at += 1
        if path.count(".") > MAX_KEYS:
            self._find(word.where, f"--{flag.name} with more than {MAX_KEYS} keys in a row", "its JSON")
            return
        value: Any = attached.split(",") if path.endswith("+") else _loose_json(attached)
        for key in reversed(path.removesuffix("+").split(".")):
            value = {key: value}
        before = self.result.value(flag.name, {})
        whole = merged(before, value) if isinstance(before, Mapping) else value
        self._keep(flag, whole, json.dumps(whole), word)

    def _keep(self, flag: Flag, value: Any, text: str, word: Word, known: bool = True) -> None:
        if is_secret(flag.name) and flag.kind not in (Kind.SWITCH, Kind.BOOLEAN):
            value, text = HIDDEN, HIDDEN
        elif isinstance(value, str | None):
            value, text = value and hidden(flag.name, value), hidden(flag.name, text)
        elif flag.kind is Kind.JSON and isinstance(value, dict | list):
            value = hidden_inside(value)
            text = json.dumps(value) if HIDDEN in json.dumps(value) else text
        self.result.given[flag.name] = Given(flag, value, text, word.where, known)

    def _place(self, word: Word, spelling: str) -> str:
        return placed(word.where, spelling)

    def _find(self, where: str, problem: str, expected: str = "", hint: str = "") -> None:
        self.result.notes.mistake(where, problem, expected, hint)


def is_flag(text: str) -> bool:
    """Whether a word starts a flag, and is no negative number and no lone dash."""
    return len(text) > 1 and text[0] == "-" and not re.fullmatch(r"-\d+(\.\d+)?", text)


def _typed(flag: Flag, text: str, known: bool) -> Any:
    if flag.choices and text not in flag.choices:
        raise ValueError(text)
    if flag.kind is Kind.INT:
        return _integer(text)
    if flag.kind is Kind.FLOAT:
        return float(text)
    if flag.kind is Kind.JSON:
        return _json(text, known)
    return text


_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _integer(text: str) -> int:
    """Whole numbers, with vLLM's suffixes: 8k is 8,000, 8K is 8,192; 'auto' is -1."""
    if text.strip().lower() == "auto":
        return -1
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    return int(float(match[1]) * _SUFFIXES[match[2]]) if match else int(text)


def _json(text: str, known: bool = True) -> Any:
    try:
        return bounded_json.loads(text)
    except json.JSONDecodeError:
        pieces = re.split(r'("(?:[^"\\]|\\.)*")', text)
        pieces[::2] = [
            re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda m: str(_integer(m[0])), _named(piece))
            for piece in pieces[::2]
        ]
        return bounded_json.loads("".join(pieces))


_VARIABLE = re.compile(r"\$(?:\(\([^()]{0,200}\)\)|\{\w{1,100}\}|\w{1,100})", re.ASCII)


def _named(piece: str) -> str:
    """JSON outside of its strings, where a shell's variable or sum stands for a number: that number as a text, by its name."""
    return _VARIABLE.sub(lambda found: json.dumps(found[0]), piece)


def _loose_json(text: str) -> Any:
    """A value after a dotted flag: JSON, a number with a suffix, or the words themselves."""
    for read in (_json, _integer):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def merged(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings as one; of two values the added one counts, and lists grow."""
    whole = dict(before)
    for key, value in added.items():
        old = whole.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            whole[key] = merged(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            whole[key] = [*old, *value]
        else:
            whole[key] = value
    return whole


def _refusal(flag: Flag, text: str) -> str:
    if flag.kind is Kind.JSON:
        return f"--{flag.name} is not JSON"
    return f"--{flag.name} is {_shown(flag.name, text)!r}"


def _expected(flag: Flag) -> str:
    if flag.choices:
        return "one of " + ", ".join(flag.choices)
    return {Kind.INT: "a whole number", Kind.FLOAT: "a number", Kind.JSON: "a JSON object"}.get(flag.kind, "a value")


def _shown(name: str, text: str) -> str:
    shown = hidden(name, text)
    return shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
