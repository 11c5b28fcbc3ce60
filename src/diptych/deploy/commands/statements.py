"""A shell text as the commands it would start: assignments followed, arrays unfolded, exports kept, nothing run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from diptych.deploy.commands.words import REDIRECTIONS, Lexeme, Part, Reference, Text, lex
from diptych.deploy.secrets import HIDDEN, is_secret
from diptych.engines.role import EnvValue
from diptych.errors import Finding, InvalidInput


@dataclass(frozen=True, slots=True)
class Word:
    """One argument as the program would get it, and its place. `known` is False when a part is decided elsewhere: `$HOST`."""

    text: str
    where: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class Statement:
    """A command with the environment that the text gives it."""

    words: tuple[Word, ...]
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    env_places: Mapping[str, str] = field(default_factory=dict)


MAX_VALUE = 2**16
MAX_WORDS = 10_000
"""Bounds on what a text may make of itself: characters of one value, words of one array or command, commands, variables."""
NO_ENV: Mapping[str, Word] = {}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_OPENERS = frozenset({"do", "then", "else", "elif", "if", "while", "until", "!", "{", "time", "builtin", "command"})
_KEYWORDS = frozenset({"for", "case", "esac", "fi", "done", "}", "function", "select", "in"})
_SETTERS = frozenset({"export", "declare", "typeset", "readonly", "local"})


def statements(
    text: str, where: str, first_line: int = 1, lines: bool = True, env: Mapping[str, Word] = NO_ENV
) -> list[Statement]:
    """The commands of a shell text in order.

    `env` is what its surroundings set. `where` names the text; with `lines`, places are `where:line` counted from `first_line`.
    Raises InvalidInput at an open quote.
    """
    found: list[Statement] = []
    for statement in _Reader(where, lines, env).read(lex(text, where, first_line)):
        found.append(statement)
        _bound(len(found) + len(statement.env), where)
    return found


def _bound(count: int, where: str) -> None:
    if count > MAX_WORDS:
        raise InvalidInput(
            Finding(where, f"a text that makes more than {MAX_WORDS:,} words or commands", "a launch script")
        )


def placed(where: str, setting: str) -> str:
    """Where a setting is: a line says enough; a text without lines is named with the setting: 'prefill --block-size'."""
    return where if re.search(r":\d+$", where) else f"{where} {setting}"


def env_value(word: Word) -> EnvValue:
    """What a word sets a variable to: its text, or, where a part is decided elsewhere, the whole as a source."""
    return EnvValue(text=word.text) if word.known else EnvValue(source=word.text)


@dataclass(slots=True)
class _Array:
    """An array whose elements are being read; it is assigned when it is whole, so that it may be made of itself."""

    name: str
    words: list[Word]


class _Reader:
    """Follows assignments from top to bottom, as a shell does; loops and conditions are read once, as written."""

    def __init__(self, where: str, lines: bool, env: Mapping[str, Word]) -> None:
        self.where, self.lines = where, lines
        self.variables: dict[str, list[Word]] = {name: [word] for name, word in env.items() if word.known}
        self.exported: set[str] = set(self.variables)

    def read(self, lexemes: list[Lexeme]) -> Iterator[Statement]:
        pending: list[Lexeme] = []
        skip_word = False
        array: _Array | None = None
        for lexeme in [*lexemes, Lexeme(0, operator="\n")]:
            if array is not None:
                array = self._array_element(array, lexeme)
            elif lexeme.operator in REDIRECTIONS:
                skip_word = True
            elif not lexeme.operator:
                pending += [] if skip_word else [lexeme]
                skip_word = False
            elif lexeme.operator == "(" and (opened := self._opens_array(pending)) is not None:
                array = opened
                pending.pop()
            else:
                yield from self._statement(pending)
                pending, skip_word = [], False

    def _opens_array(self, pending: list[Lexeme]) -> _Array | None:
        match = _ASSIGNMENT.fullmatch(_literal(pending[-1])) if pending else None
        if match is None or match[3]:
            return None
        return _Array(match[1], list(self.variables.get(match[1], [])) if match[2] else [])

    def _array_element(self, array: _Array, lexeme: Lexeme) -> _Array | None:
        if lexeme.operator == ")":
            self.variables[array.name] = array.words
            return None
        if not lexeme.operator:
            array.words.extend(self._expand(lexeme))
            _bound(len(array.words), self._place(lexeme.line))
        return array

    def _statement(self, lexemes: list[Lexeme]) -> Iterator[Statement]:
        while lexemes and _literal(lexemes[0]) in _OPENERS:
            lexemes = lexemes[1:]
        if not lexemes or _literal(lexemes[0]) in _KEYWORDS:
            return
        if _literal(lexemes[0]) in _SETTERS:
            self._set(lexemes[1:], export=_literal(lexemes[0]) == "export" or "-x" in map(_literal, lexemes))
            return
        count = next((i for i, lexeme in enumerate(lexemes) if _assignment(lexeme) is None), len(lexemes))
        if count == len(lexemes):
            self._set(lexemes, export=False)
            return
        own = [_assignment(lexeme) for lexeme in lexemes[:count]]
        given = {name: self._joined(parts, line) for name, parts, line, _ in filter(None, own)}
        words: list[Word] = []
        for lexeme in lexemes[count:]:
            words.extend(self._expand(lexeme))
            _bound(len(words), self._place(lexeme.line))
        env = {name: self._value(name) for name in sorted(self.exported) if name in self.variables} | given
        if words:
            yield Statement(
                tuple(words),
                {name: env_value(word) for name, word in env.items()},
                {name: word.where for name, word in env.items()},
            )

    def _set(self, lexemes: list[Lexeme], export: bool) -> None:
        for lexeme in lexemes:
            assigned = _assignment(lexeme)
            name = assigned[0] if assigned else _literal(lexeme)
            if assigned:
                before = self.variables.get(name, []) if assigned[3] else []
                added = self._joined(assigned[1], assigned[2])
                self.variables[name] = [_appended(before, added)] if before else [added]
                _bound(len(self.variables), added.where)
            if export:
                self.exported.add(name)

    def _value(self, name: str) -> Word:
        words = self.variables[name]
        return Word(
            " ".join(word.text for word in words), words[0].where if words else self.where, all(w.known for w in words)
        )

    def _place(self, line: int) -> str:
        return f"{self.where}:{line}" if self.lines else self.where

    def _joined(self, parts: tuple[Part, ...], line: int) -> Word:
        """One word without splitting, as on the right of an assignment."""
        pieces = [self._resolve(part) for part in parts]
        text = "".join(text for text, _ in pieces)
        if len(text) > MAX_VALUE:
            problem = f"a value of {len(text):,} characters"
            raise InvalidInput(Finding(self._place(line), problem, f"at most {MAX_VALUE:,}"))
        return Word(text, self._place(line), all(known for _, known in pieces))

    def _expand(self, lexeme: Lexeme) -> Iterator[Word]:
        """The words that one word becomes: unquoted values split at blanks, arrays unfold."""
        place = self._place(lexeme.line)
        parts = [part for part in lexeme.parts if part != Text("", quoted=True)]
        if len(parts) == 1 and isinstance(reference := parts[0], Reference):
            name = reference.name.removesuffix("[@]").removesuffix("[*]")
            if name != reference.name and name in self.variables:
                yield from self.variables[name]
                return
        texts, known, open_word = "", True, False
        for part in lexeme.parts:
            text, decided = self._resolve(part)
            if isinstance(part, Text) or part.quoted or not self._is_set(part):
                texts, known, open_word = texts + text, known and decided, True
                continue
            for number, piece in enumerate(_split(text)):
                if number and open_word:
                    yield Word(texts, place, known)
                    texts, known, open_word = "", True, False
                texts, open_word = texts + piece, open_word or piece != ""
                known = known and (decided or "$" not in piece)
        if open_word:
            yield Word(texts, place, known)

    def _is_set(self, part: Reference) -> bool:
        return part.name.removesuffix("[@]").removesuffix("[*]") in self.variables or part.default is not None

    def _resolve(self, part: Part) -> tuple[str, bool]:
        if isinstance(part, Text):
            return part.text, True
        name = part.name.removesuffix("[@]").removesuffix("[*]")
        if name in self.variables:
            value = self._value(name)
            return HIDDEN if value.text and is_secret(name) else value.text, value.known
        if part.default is not None and "$" not in part.default:
            return part.default.strip("\"'"), True
        return part.raw, False


_BLANKS = re.compile(r"((?:\$\([^)]*\)+|\$\{[^}]*\}|`[^`]*`|[^\s])+)")


def _split(text: str) -> list[str]:
    """A value at its blanks, but not within what a shell would still replace; a blank at an end leaves an empty piece there."""
    pieces = _BLANKS.findall(text)
    return [*([""] if text[:1].isspace() else []), *pieces, *([""] if text[-1:].isspace() and pieces else [])]


def _appended(before: list[Word], added: Word) -> Word:
    text = " ".join(word.text for word in before) + added.text
    return Word(text, before[0].where, added.known and all(word.known for word in before))


def _literal(lexeme: Lexeme) -> str:
    """The word as unquoted text, or empty when quotes or references are in it."""
    parts = lexeme.parts
    return parts[0].text if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].quoted else ""


def _assignment(lexeme: Lexeme) -> tuple[str, tuple[Part, ...], int, bool] | None:
    """Name, parts of the value, line, and whether it is added (`+=`); None for other words."""
    first = lexeme.parts[0] if lexeme.parts else None
    match = _ASSIGNMENT.fullmatch(first.text) if isinstance(first, Text) and not first.quoted else None
    if match is None:
        return None
    return match[1], (Text(match[3]), *lexeme.parts[1:]), lexeme.line, bool(match[2])
