"""KV states as JSON and msgpack, and their digest.

Versions. A document carries `schema`, "major.minor". A major says what fields mean: another major is refused. A minor only adds
fields, each with a default that says what its absence meant, so that an older document reads as it always did. A newer document
may have fields this reader does not know: they are ignored with a note, unless the document lists them under `critical`
("format.zero_point"). Whoever adds a field without which the bytes are misread lists it there, and a reader that does not know
it refuses. A field that is unknown in a document of our own minor or an older one is a mistake, and so is an unknown value at
any version. What was read is a state of this reader's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import blake2b
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from diptych.boundary.descriptor import MAJOR, MINOR, SCHEMA, KVState, Layout, meaning
from diptych.boundary.element import Element
from diptych.boundary.format import element_named
from diptych.boundary.limits import SHAPES
from diptych.errors import Finding, InvalidInput, did_you_mean

MAX_BYTES = 4 * 2**20
"""The longest document that is read: 60,000 block hashes of 64 digits fit."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A state that was read, and what of its document was ignored."""

    state: KVState
    notes: tuple[str, ...] = ()


def to_json(state: KVState) -> bytes:
    """The state as JSON, every field written, the schema first."""
    return msgspec.json.encode(_document(state))


def to_msgpack(state: KVState) -> bytes:
    """The state as msgpack: the same maps and names as the JSON."""
    return msgspec.msgpack.encode(_document(state))


def from_json(data: bytes | str) -> Decoded:
    """Read `to_json`'s form, or one written by hand with the defaults left out.

    Raises:
        InvalidInput: every finding at once.
    """
    return _read(data, msgspec.json.decode, "JSON")


def from_msgpack(data: bytes) -> Decoded:
    """Read `to_msgpack`'s form; extension types are refused. Raises InvalidInput."""
    return _read(data, msgspec.msgpack.decode, "msgpack")


def digest(state: KVState) -> str:
    """BLAKE2b-256 of what the state means: equal for two states exactly when `meaning` is. Who holds it is left out."""
    return blake2b(msgspec.json.encode(meaning(state), order="sorted"), digest_size=32).hexdigest()


def from_builtins(document: Any) -> Decoded:
    """Read a document already parsed, as from YAML. Raises InvalidInput."""
    if not isinstance(document, Mapping):
        raise InvalidInput(Finding("", f"is a {type(document).__name__}", "a mapping of fields"))
    reader = _Reader(_minor(document.get("schema", SCHEMA)), _critical(document.get("critical", ())))
    body = {name: value for name, value in document.items() if name != "critical"} | {"schema": SCHEMA}
    state = reader.build(KVState, body, "", "")
    if reader.findings or state is None:
        raise InvalidInput(reader.findings)
    return Decoded(state, tuple(reader.notes))


def _document(state: KVState) -> dict[str, Any]:
    return {"schema": state.schema, **msgspec.to_builtins(state)}


def _read(data: bytes | str, decode: Any, form: str) -> Decoded:
    if len(data) > MAX_BYTES:
        raise InvalidInput(Finding("", f"{len(data)} bytes of {form}", f"{MAX_BYTES} at most"))
    try:
        document = decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise InvalidInput(Finding("", f"is not {form}: {error}")) from None
    return from_builtins(document)


def _minor(schema: Any) -> int:
    major, _, minor = schema.partition(".") if isinstance(schema, str) else ("", "", "")
    if major != str(MAJOR) or not (minor.isascii() and minor.isdecimal()) or len(minor) > 6:
        raise InvalidInput(Finding("schema", f"is {str(schema)[:20]!r}", f"a version {MAJOR}.x"))
    return int(minor)


def _critical(names: Any) -> frozenset[str]:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(Finding("critical", "is not a list of field names", '["format.zero_point"]'))
    return frozenset(names)


@dataclass(slots=True)
class _Reader:
    """Builds dataclasses from maps, collecting findings and notes. `path` names a field whatever its place in a list."""

    minor: int
    critical: frozenset[str]
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def build(self, kind: type, value: Any, where: str, path: str) -> Any:
        if not isinstance(value, Mapping):
            self._find(where, f"is {_shown(value)}", "a mapping of fields")
            return None
        before = len(self.findings)
        known = _hints(kind)
        self._unknown([str(name) for name in value if name not in known], list(known), where, path)
        made = {
            name: self.value(hint, value[name], _join(where, name), _join(path, name))
            for name, hint in known.items()
            if name in value
        }
        for part in fields(kind):
            if part.name not in value and part.default is MISSING and part.default_factory is MISSING:
                self._find(_join(where, part.name), "is missing", "")
        return self._make(kind, made, where) if len(self.findings) == before else None

    def value(self, hint: Any, value: Any, where: str, path: str) -> Any:
        if get_origin(hint) in (Union, UnionType):
            if value is None and type(None) in get_args(hint):
                return None
            hint = next(arg for arg in get_args(hint) if arg is not type(None))
        if is_dataclass(hint):
            return self.build(hint, value, where, path)  # type: ignore[arg-type]
        if get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]) and isinstance(value, list | tuple):
            if len(value) > SHAPES:
                self._find(where, f"is a list of {len(value)}", f"{SHAPES} at most")
                return None
            inner = get_args(hint)[0]
            return tuple(self.build(inner, each, f"{where}[{i}]", path) for i, each in enumerate(value))
        return self._plain(hint, value, where)

    def _plain(self, hint: Any, value: Any, where: str) -> Any:
        named = {Layout: Layout.of, Element: element_named}.get(hint)
        try:
            return named(value) if named and isinstance(value, str) else msgspec.convert(value, hint)
        except msgspec.ValidationError:
            self._find(where, f"is {_shown(value)}", _expected(hint))
        except InvalidInput as error:
            self.findings += [Finding(where, each.problem, each.expected, each.hint) for each in error.findings]
        return None

    def _make(self, kind: type, made: dict[str, Any], where: str) -> Any:
        try:
            return kind(**made)
        except InvalidInput as error:
            for each in error.findings:
                self._find(_join(where, each.where), each.problem, each.expected, each.hint)
            return None

    def _unknown(self, names: list[str], known: list[str], where: str, path: str) -> None:
        for name in names:
            full = _join(path, name)
            if full in self.critical:
                self._find(
                    _join(where, name), "is unknown here and critical", f"a reader of schema {MAJOR}.{self.minor}"
                )
            elif self.minor > MINOR:
                note = f"{full[:80]} is of schema {MAJOR}.{self.minor} and was ignored"
                self.notes += [] if note in self.notes else [note]
            else:
                self._find(_join(where, name[:60]), "is no field", "", did_you_mean(name[:60], known))

    def _find(self, where: str, problem: str, expected: str, hint: str = "") -> None:
        self.findings.append(Finding(where, problem, expected, hint))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _expected(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(str(each) for each in hint)
    return words.get(hint, "a list")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return f"a {'mapping' if isinstance(value, Mapping) else 'list'}"
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where and name else where or name
