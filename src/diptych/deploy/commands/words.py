"""The words of a shell text: POSIX quoting, comments, continuations and references, with the line of each; nothing is run.

A word is a list of parts. A reference (`$NAME`, `${NAME:-8100}`, `$(date)`) stays a part of its own: what it stands for is
decided later from what the text itself sets, never from this process's environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from diptych.errors import Finding, InvalidInput

MAX_CHARACTERS = 2**17

OPERATORS = (
    "&&",
    "||",
    ";;",
    "&>>",
    "<<<",
    "<<-",
    ">>",
    "<<",
    ">&",
    "<&",
    "&>",
    "|&",
    ";",
    "&",
    "|",
    "(",
    ")",
    "<",
    ">",
    "\n",
)
_OPERATORS_START = frozenset(operator[0] for operator in OPERATORS)
REDIRECTIONS = frozenset({"&>>", "<<<", "<<-", ">>", "<<", ">&", "<&", "&>", "<", ">"})


@dataclass(frozen=True, slots=True)
class Text:
    """Characters that stand for themselves. `quoted` ones are never split, nor start a comment or an assignment."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """What a shell would replace: a variable with what stands for it when unset, or a substitution (name empty)."""

    name: str
    raw: str
    default: str | None = None
    quoted: bool = False


Part = Text | Reference


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A word, or an operator between words (`parts` empty)."""

    line: int
    parts: tuple[Part, ...] = ()
    operator: str = ""


_BRACED = re.compile(r"(\w+)(?:\[([@*\d]+)\])?(:?[-+=?])?(.*)", re.DOTALL)
_PLAIN = re.compile(r"""[^\s'"\\$`;&|<>()]+""")
_INSIDE = re.compile(r"""[^"\\$`]+""")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def lex(text: str, where: str, first_line: int = 1) -> list[Lexeme]:
    """The words and operators of a shell text. Raises InvalidInput where a quote is never closed."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidInput(Finding(where, f"{len(text):,} characters of shell text", f"at most {MAX_CHARACTERS:,}"))
    return list(_Lexer(text.replace("\r\n", "\n"), where, first_line))


class _Lexer:
    def __init__(self, text: str, where: str, first_line: int) -> None:
        self.text, self.where, self.line, self.at = text, where, first_line, 0
        self.parts: list[Part] = []
        self.pieces: list[str] = []  # of the text part that is being read, joined when another begins
        self.quoted = False
        self.started = 0  # the line on which the word began; 0 between words
        self.heredocs: list[str] = []

    def __iter__(self) -> Iterator[Lexeme]:
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in " \t":
                self.at += 1
                yield from self._finish()
            elif self.text.startswith("\\\n", self.at):
                self._advance(2)
            elif character == "#" and not self.started:
                self._advance(len(self._until("\n")))
            elif (operator := self._operator()) is not None:
                yield from self._separator(operator)
            else:
                self._piece(character)
        yield from self._finish()

    def _finish(self) -> Iterator[Lexeme]:
        self._close_text()
        if self.started:
            yield Lexeme(self.started, tuple(self.parts))
        self.parts, self.started = [], 0

    def _close_text(self) -> None:
        if self.pieces:
            self.parts.append(Text("".join(self.pieces), self.quoted))
        self.pieces = []

    def _separator(self, operator: str) -> Iterator[Lexeme]:
        self._close_text()
        if operator in REDIRECTIONS and len(self.parts) == 1 and _is_digits(self.parts[0]):
            self.parts, self.started = [], 0  # the 2 of 2>file
        yield from self._finish()
        yield Lexeme(self.line, operator=operator)
        self._advance(len(operator))
        if operator in ("<<", "<<-"):
            rest = self._until("\n")
            self.heredocs.append(rest.split()[0].strip("'\"") if rest.split() else "")
        if operator == "\n":
            self._skip_heredocs()

    def _skip_heredocs(self) -> None:
        for end in self.heredocs:
            while self.at < len(self.text):
                body = self._until("\n")
                self._advance(len(body) + 1)
                if body.strip() == end:
                    break
        self.heredocs = []

    def _operator(self) -> str | None:
        if self.text[self.at] not in _OPERATORS_START:
            return None
        return next((operator for operator in OPERATORS if self.text.startswith(operator, self.at)), None)

    def _piece(self, character: str) -> None:
        self.started = self.started or self.line
        if character == "'":
            self._text(self._closed("'", 1), quoted=True)
        elif character == '"':
            self._double()
        elif self.text.startswith("$'", self.at):
            self._ansi()
        elif character in "$`":
            self._reference(quoted=False)
        elif character == "\\":
            escaped = self.text[self.at + 1 : self.at + 2]
            self._text(escaped, quoted=True)
            self._advance(1 + len(escaped))
        else:
            run = _PLAIN.match(self.text, self.at)
            plain = run[0] if run else character
            self._text(plain, quoted=False)
            self._advance(len(plain))

    def _text(self, text: str, quoted: bool) -> None:
        if self.pieces and self.quoted != quoted:
            self._close_text()
        self.quoted = quoted
        self.pieces.append(text)

    def _refer(self, reference: Reference) -> None:
        self._close_text()
        self.parts.append(reference)

    def _double(self) -> None:
        opened = self.line
        self._text("", quoted=True)
        self._advance(1)
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                self._advance(1)
                return
            if character in "$`":
                self._reference(quoted=True)
                continue
            run = _INSIDE.match(self.text, self.at)
            if run is not None:
                self._text(run[0], quoted=True)
                self._advance(len(run[0]))
                continue
            following = self.text[self.at + 1 : self.at + 2]
            escapes = character == "\\" and following != "" and following in '"\\$`\n'
            self._text(following.replace("\n", "") if escapes else character, quoted=True)
            self._advance(2 if escapes else 1)
        self._unclosed('"', opened)

    def _ansi(self) -> None:
        body = self._closed("'", 2, escapes=True)
        unescaped = re.sub(r"\\(.)", lambda match: _ANSI.get(match[1], match[0]), body, flags=re.DOTALL)
        self._text(unescaped, quoted=True)

    def _closed(self, quote: str, opening: int, escapes: bool = False) -> str:
        """Consume up to the closing quote and give what is between."""
        opened, start = self.line, self.at + opening
        end = start
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if escapes and self.text[end] == "\\" else 1
        if end >= len(self.text):
            self._unclosed(quote, opened)
        body = self.text[start:end]
        self._advance(end + 1 - self.at)
        return body

    def _unclosed(self, quote: str, line: int) -> None:
        raise InvalidInput(Finding(f"{self.where}:{line}", f"a {quote} is opened here and never closed", "its pair"))

    def _reference(self, quoted: bool) -> None:
        start = self.at
        if self.text[start] == "`":
            self._closed("`", 1, escapes=True)
            self._refer(Reference("", self.text[start : self.at], quoted=quoted))
        elif self.text.startswith("$(", start):
            self._balanced("(", ")")
            self._refer(Reference("", self.text[start : self.at], quoted=quoted))
        elif self.text.startswith("${", start):
            self._balanced("{", "}")
            self._refer(_braced(self.text[start : self.at], quoted))
        elif match := _NAME.match(self.text, start + 1):
            self._advance(match.end() - start)
            self._refer(Reference(match[0], "$" + match[0], quoted=quoted))
        else:
            self._text("$", quoted)
            self._advance(1)

    def _balanced(self, opening: str, closing: str) -> None:
        opened, depth = self.line, 0
        for end in range(self.at + 1, len(self.text)):
            depth += (self.text[end] == opening) - (self.text[end] == closing)
            if depth == 0:
                self._advance(end + 1 - self.at)
                return
        self._unclosed("$" + opening, opened)

    def _until(self, stop: str) -> str:
        end = self.text.find(stop, self.at)
        return self.text[self.at : end if end >= 0 else len(self.text)]

    def _advance(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count


def _is_digits(part: Part) -> bool:
    return isinstance(part, Text) and not part.quoted and part.text.isdigit()


def _braced(raw: str, quoted: bool) -> Reference:
    match = _BRACED.fullmatch(raw[2:-1])
    if match is None:
        return Reference("", raw, quoted=quoted)
    name, index, operator, rest = match.groups()
    if operator in (":-", "-", ":=", "="):
        return Reference(name, raw, rest, quoted)
    plain = not rest and not operator
    return (
        Reference(f"{name}[{index}]" if index else name, raw, None, quoted)
        if plain
        else Reference("", raw, quoted=quoted)
    )
