"""YAML and JSON of others, with the line of every value, bounded: size, depth and aliases are capped before anything is built.

Unlike a catalog file, a manifest has several documents, anchors with merge keys, and texts with lines of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diptych.catalog.yaml_lines import Bounds, excess
from diptych.catalog.yaml_lines import Node as Placed
from diptych.errors import Finding, InvalidInput

MAX_BYTES = 4 * 2**20
MANIFEST = Bounds(depth=48, aliases=256, nodes=200_000, documents=256)
MAX_NUMBER = 64

_SCALARS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "value")
)
_COLLECTIONS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq"))
_MERGE = "tag:yaml.org,2002:merge"
_EXPECTED = "a plain manifest"
_ONE_VALUE = ("bool", "int", "float", "null")
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class Node(Placed):
    """A value and its place, 'name:line', and what lies under it.

    A text of several lines (`|`, `>`) has the place of its first line.
    """

    def get(self, *path: str | int) -> Node | None:
        """What lies under a path of keys and positions; None where there is nothing, or a null."""
        node: Node | None = self
        for key in path:
            if node is None:
                return None
            if isinstance(node.value, dict) and isinstance(key, str):
                node = node.value.get(key)
            elif isinstance(node.value, list) and isinstance(key, int) and key < len(node.value):
                node = node.value[key]
            else:
                return None
        return node if node is not None and node.value is not None else None

    def entries(self, *path: str | int) -> dict[str, Node]:
        """The mapping under a path, or an empty one."""
        node = self.get(*path)
        return node.value if node is not None and isinstance(node.value, dict) else {}

    def elements(self, *path: str | int) -> list[Node]:
        """The list under a path, or an empty one."""
        node = self.get(*path)
        return node.value if node is not None and isinstance(node.value, list) else []

    def text(self, *path: str | int, default: str = "") -> str:
        """The scalar under a path as text, or the default."""
        node = self.get(*path)
        if node is None or isinstance(node.value, dict | list):
            return default
        return str(node.value).lower() if isinstance(node.value, bool) else str(node.value)


def load_below(base: Path, name: str) -> list[Node]:
    """The documents of a file that a text names; it must lie below `base`. Raises InvalidInput: outside, too large, not YAML."""
    path = (base / name).resolve()
    if not path.is_relative_to(base.resolve()):
        raise InvalidInput(Finding(name, "outside the folder of what names it, and so not read", "a file beside it"))
    return load_text(read_text(path, name), name)


def read_text(path: Path, name: str = "") -> str:
    """A file's text, bounded. `name` is what messages call it, else its path. Raises InvalidInput."""
    name = name or str(path)
    try:
        if not path.is_file():
            problem = "not a file" if path.exists() else "no such file"
            raise InvalidInput(Finding(name, problem, "a manifest or a script"))
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InvalidInput(Finding(name, f"{size:,} bytes", f"at most {MAX_BYTES:,}"))
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInput(Finding(name, error.strerror or "cannot be read", "a manifest or a script")) from None
    except ValueError:  # UnicodeDecodeError, or a NUL in the path
        raise InvalidInput(Finding(name, "not UTF-8 text", "a manifest or a script")) from None
    if "\0" in text:
        raise InvalidInput(Finding(name, "not text: it has NUL bytes", "a manifest or a script"))
    return text


def load_text(text: str, name: str) -> list[Node]:
    """The documents of a YAML or JSON text. `name` begins every place. Raises InvalidInput with every finding."""
    if len(text) > MAX_BYTES:
        raise InvalidInput(Finding(name, f"{len(text):,} characters", f"at most {MAX_BYTES:,}"))
    if text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        text = _PAIR.sub(_joined, text)
    try:
        if too_much := excess(text, name, MANIFEST, _EXPECTED):
            raise InvalidInput(too_much)
        roots = list(yaml.compose_all(text, Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        expected = "what `helm template` makes of it" if "{{" in text else _EXPECTED
        raise InvalidInput(Finding(f"{name}{line}", f"not YAML: {error.problem or error.context}", expected)) from None
    except UnicodeEncodeError:
        raise InvalidInput(Finding(name, "not UTF-8 text", _EXPECTED)) from None
    except yaml.YAMLError as error:
        raise InvalidInput(Finding(name, f"not YAML: {str(error).splitlines()[0]}", _EXPECTED)) from None
    builder = _Builder(name)
    documents = [builder.build(root) for root in roots if root is not None]
    if builder.findings and "{{" in text:
        raise InvalidInput(
            Finding(builder.findings[0].where, "a template, not YAML yet", "what `helm template` makes of it")
        )
    if builder.findings:
        raise InvalidInput(builder.findings)
    return documents


def _joined(pair: re.Match[str]) -> str:
    """JSON writes a character beyond the first 65,536 as two escapes, which YAML refuses: as itself both read it."""
    high, low = int(pair[2], 16), int(pair[3], 16)
    return pair[1] + chr(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF))


def _short(text: str) -> str:
    """Somebody else's text as it may stand in a message."""
    return text if len(text) <= 60 else f"{text[:60]}…"


class _Builder:
    """Turns YAML nodes into `Node`s. What an alias repeats is built, and counted, each time."""

    def __init__(self, name: str) -> None:
        self.name, self.built = name, 0
        self.values = yaml.constructor.SafeConstructor()
        self.findings: list[Finding] = []

    def build(self, node: yaml.Node, depth: int = 0) -> Node:
        self.built += 1
        where = self._place(node)
        if self.built > MANIFEST.nodes or depth > MANIFEST.depth:
            what = f"{MANIFEST.nodes:,} values" if depth <= MANIFEST.depth else f"{MANIFEST.depth} levels"
            raise InvalidInput(Finding(where, f"aliases unfold to more than {what}", _EXPECTED))
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            self.findings.append(Finding(where, f"tag {_short(node.tag)} is not read", "a plain list or mapping"))
        if isinstance(node, yaml.MappingNode):
            return Node(self._mapping(node, depth), where)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(child, depth + 1) for child in node.value], where)
        return Node(self._scalar(node, where), where)

    def _place(self, node: yaml.Node) -> str:
        is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
        return f"{self.name}:{node.start_mark.line + 1 + is_block}"

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, child in node.value:
            where = self._place(key)
            if key.tag == _MERGE:
                for source in child.value if isinstance(child, yaml.SequenceNode) else [child]:
                    for name, value in self._merged(source, depth, where).items():
                        merged.setdefault(name, value)
            elif not isinstance(key, yaml.ScalarNode):
                self.findings.append(Finding(where, "a key that is not plain text", "a name"))
            else:
                if key.value in own:
                    self.findings.append(Finding(where, f"{_short(key.value)} is given twice", "one value"))
                own[key.value] = self.build(child, depth + 1)
        return merged | own

    def _merged(self, source: yaml.Node, depth: int, where: str) -> dict[str, Node]:
        built = self.build(source, depth + 1).value
        if isinstance(built, dict):
            self.built += len(built)
            return built
        self.findings.append(Finding(where, "<< merges what is not a mapping", "a mapping, or a list of them"))
        return {}

    def _scalar(self, node: yaml.Node, where: str) -> Any:
        """The value of a scalar by its tag.

        A number in base 60 (`22:22`) stays text: the programs that these files are for have left it behind. So does one too long
        to be any setting, which in base 16 would have no end.
        """
        if node.tag not in _SCALARS:
            self.findings.append(Finding(where, f"tag {_short(node.tag)} is not read", "a plain value"))
            return None
        kind = node.tag.rpartition(":")[2]
        if kind not in _ONE_VALUE or ":" in node.value or len(node.value) > MAX_NUMBER:
            return node.value
        try:
            return getattr(self.values, f"construct_yaml_{kind}")(node)
        except (ValueError, IndexError, KeyError):  # a tag that its value does not deserve, or too many digits
            return node.value
