"""Manifests against the closed schemas of their kinds: each mistake with its line, and the field that was probably meant.

The keywords are those that the schemas in `data/schemas` use. The `jsonschema` package says the same (a test holds them together)
but takes longer to import than a whole check may, and knows no lines.
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from diptych.deploy.safe_yaml import Node
from diptych.deploy.secrets import hidden
from diptych.errors import Finding, did_you_mean

Schema = Mapping[str, Any]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


@cache
def schema(name: str) -> Schema:
    """One of the schemas of `data/schemas`: 'dynamographdeployment.v1beta1', 'modelservice.values', ..."""
    packed = (files("diptych.deploy") / "data" / "schemas" / f"{name}.json.gz").read_bytes()
    loaded: dict[str, Any] = json.loads(gzip.decompress(packed))
    return loaded


@cache
def pod_template() -> Schema:
    """Kubernetes' own pod template, as the schema of LeaderWorkerSets spells it out."""
    spec = schema("leaderworkerset.v1")["properties"]["spec"]["properties"]
    template: Schema = spec["leaderWorkerTemplate"]["properties"]["workerTemplate"]
    return template


@dataclass(frozen=True, slots=True)
class Unfamiliar(Finding):
    """A field that no part of the schema names and none resembles: newer than the schema, or nothing at all."""


def violations(node: Node, rules: Schema, path: str = "") -> Iterator[Finding]:
    """Every place where a value breaks its schema. `path` names the value in messages."""
    yield from _value(node, rules, path, _Names(rules))


class _Names:
    """Every field name of a schema, gathered when one is not where it should be."""

    def __init__(self, rules: Schema) -> None:
        self.rules = rules
        self.found: frozenset[str] | None = None

    def __contains__(self, name: str) -> bool:
        if self.found is None:
            self.found = frozenset(_field_names(self.rules))
        return name in self.found


def _field_names(rules: Any) -> Iterator[str]:
    if isinstance(rules, dict):
        yield from rules.get("properties", {})
        for inner in rules.values():
            yield from _field_names(inner)
    elif isinstance(rules, list):
        for inner in rules:
            yield from _field_names(inner)


def _value(node: Node, rules: Schema, path: str, names: _Names) -> Iterator[Finding]:
    if node.value is None:
        return  # a null counts as not said
    if "type" in rules and not _is_type(node.value, rules["type"]):
        yield Finding(node.where, f"{path or 'this'} is {_kind(node.value)}", _spelled(rules["type"]))
        return
    if isinstance(node.value, dict):
        yield from _object(node, rules, path, names)
    elif isinstance(node.value, list):
        yield from _array(node, rules, path, names)
    else:
        yield from _scalar(node, rules, path)
    for keyword in ("anyOf", "oneOf"):
        if keyword in rules and not any(_fits(node, option, path, names) for option in rules[keyword]):
            yield Finding(node.where, f"{path} has none of the forms that it may have", "one of its documented forms")


def _fits(node: Node, rules: Schema, path: str, names: _Names) -> bool:
    return next(_value(node, rules, path, names), None) is None


def _object(node: Node, rules: Schema, path: str, names: _Names) -> Iterator[Finding]:
    named: Mapping[str, Schema] = rules.get("properties", {})
    others = rules.get("additionalProperties", True)
    for key, value in node.value.items():
        inner = f"{path}.{key}" if path else key
        if key in named:
            yield from _value(value, named[key], inner, names)
        elif others is False:
            yield _unnamed(value.where, inner, key, named, names)
        elif isinstance(others, Mapping):
            yield from _value(value, others, inner, names)
        elif meant := _misspelled(key, node.value, named):
            yield Finding(value.where, f"{inner} is not read by anything", hint=f"did you mean {meant}?")
    for key in rules.get("required", ()):
        if node.get(key) is None:
            yield Finding(node.where, f"{path or 'this'} has no {key}", key)
    for keyword, breaks, words in _SIZES["Properties"]:
        if keyword in rules and breaks(len(node.value), rules[keyword]):
            yield Finding(node.where, f"{path} has {len(node.value)} fields", f"{words} {rules[keyword]}")


def _unnamed(where: str, path: str, key: str, named: Mapping[str, Any], names: _Names) -> Finding:
    """A field that an object does not name: misspelled, in the wrong place, or unknown to the whole schema."""
    problem = f"{path} is no field of its schema"
    if key in names or difflib.get_close_matches(key, named, n=1):
        return Finding(where, problem, hint=did_you_mean(key, sorted(named)))
    return Unfamiliar(where, f"{problem}, which may be older than what reads it", "a field that the schema names")


def _misspelled(key: str, present: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    """In an object that takes any field, a name that is almost one of the named ones that are absent."""
    absent = [name for name in named if name not in present]
    close = difflib.get_close_matches(key, absent, n=1, cutoff=0.88)
    return close[0] if close else ""


def _array(node: Node, rules: Schema, path: str, names: _Names) -> Iterator[Finding]:
    for keyword, breaks, words in _SIZES["Items"]:
        if keyword in rules and breaks(len(node.value), rules[keyword]):
            yield Finding(node.where, f"{path} has {len(node.value)} items", f"{words} {rules[keyword]}")
    items = rules.get("items")
    if isinstance(items, Mapping):
        for number, item in enumerate(node.value):
            yield from _value(item, items, f"{path}[{number}]", names)


def _scalar(node: Node, rules: Schema, path: str) -> Iterator[Finding]:
    value = node.value
    if "enum" in rules and value not in rules["enum"]:
        known = ", ".join(str(word) for word in rules["enum"])
        yield Finding(node.where, f"{path} is {_shown(path, value)}", f"one of {known}")
    if isinstance(value, str):
        if "pattern" in rules and re.search(rules["pattern"], value) is None:
            yield Finding(node.where, f"{path} is {_shown(path, value)}", f"text that matches {rules['pattern']}")
        for keyword, breaks, words in _SIZES["Length"]:
            if keyword in rules and breaks(len(value), rules[keyword]):
                yield Finding(node.where, f"{path} has {len(value)} characters", f"{words} {rules[keyword]}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        for keyword, breaks, words in _SIZES["imum"]:
            if keyword in rules and breaks(value, rules[keyword]):
                yield Finding(node.where, f"{path} is {value}", f"{words} {rules[keyword]}")


def _below(value: float, limit: float) -> bool:
    return value < limit


def _above(value: float, limit: float) -> bool:
    return value > limit


_SIZES = {
    what: ((f"min{what}", _below, "at least"), (f"max{what}", _above, "at most"))
    for what in ("Properties", "Items", "Length", "imum")
}


def _is_type(value: Any, expected: str | list[str]) -> bool:
    """YAML's own types; a boolean is no integer, and a whole float is one, as in JSON Schema."""
    names = [expected] if isinstance(expected, str) else expected
    if isinstance(value, bool):
        return "boolean" in names
    if isinstance(value, float) and value.is_integer() and "integer" in names:
        return True
    return any(isinstance(value, _TYPES[name]) for name in names)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    names = {"object": "a mapping", "array": "a list", "string": "text", "integer": "a number", "number": "a number"}
    return next(
        (names[name] for name, types in _TYPES.items() if name in names and isinstance(value, types)), "a value"
    )


def _spelled(expected: str | list[str]) -> str:
    names = [expected] if isinstance(expected, str) else expected
    words = {
        "object": "a mapping",
        "array": "a list",
        "string": "text",
        "integer": "a whole number",
        "number": "a number",
    }
    return " or ".join(words.get(name, "true or false") for name in names)


def _shown(path: str, value: Any) -> str:
    text = hidden(path.rsplit(".", 1)[-1], str(value))
    return repr(text if len(text) <= 60 else text[:60] + "...")
