"""YAML (and so JSON) with line numbers, bounded: size, depth and aliases are capped before anything is built from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diptych.errors import Finding, InvalidCatalog

MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one text may have of what costs memory or stack, before anything is built from it."""

    depth: int
    aliases: int
    nodes: int
    documents: int


CATALOG = Bounds(depth=24, aliases=64, nodes=100_000, documents=100_000)  # a second document is refused when it is read
_EXPECTED = "a plain catalog file"

_SCALARS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp"))

_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place. A mapping's value is a dict of `Node`s, a list's a list of them, a scalar's a plain value."""

    value: Any
    where: str

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain for node in self.value]
        return self.value


def read_yaml(path: Path, findings: list[Finding]) -> Node | None:
    """The file's document, or None with a finding.

    The file is scanned event by event first, so that nested or self-multiplying documents are refused unbuilt.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            findings.append(Finding(str(path), "not a file", "a YAML or JSON file"))
            return None
        if size > MAX_BYTES:
            findings.append(Finding(str(path), f"{size:,} bytes", f"at most {MAX_BYTES:,}"))
            return None
        text = path.read_text(encoding="utf-8-sig")
        if too_much := excess(text, str(path), CATALOG, _EXPECTED):
            findings.append(too_much)
            return None
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
        return Node({}, f"{path}:1") if root is None else _Builder(str(path), findings).build(root)
    except OSError as error:
        findings.append(Finding(str(path), error.strerror or str(error), "a YAML or JSON file"))
    except ValueError:  # UnicodeDecodeError, or a NUL in the path
        findings.append(Finding(str(path), "not UTF-8 text", "a YAML or JSON file"))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        findings.append(Finding(f"{path}{line}", f"not YAML: {error.problem or error.context}"))
    except yaml.YAMLError as error:
        findings.append(Finding(str(path), f"not YAML: {str(error).splitlines()[0]}"))
    except InvalidCatalog as error:
        findings.extend(error.findings)
    return None


def excess(text: str, name: str, bounds: Bounds, expected: str) -> Finding | None:
    """What a text has more of than `bounds` allows, counted event by event; None when it may be built. Raises YAMLError."""
    depth = aliases = documents = 0
    for nodes, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1
        aliases += isinstance(event, yaml.AliasEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        for value, limit, what in (
            (depth, bounds.depth, "levels deep"),
            (aliases, bounds.aliases, "aliases"),
            (nodes, bounds.nodes, "values"),
            (documents, bounds.documents, "documents"),
        ):
            if value > limit:
                line = f":{event.start_mark.line + 1}" if event.start_mark else ""
                return Finding(f"{name}{line}", f"more than {limit:,} {what}", expected)
    return None


class _Builder:
    """Turns YAML nodes into `Node`s; what an alias repeats counts every time."""

    def __init__(self, path: str, findings: list[Finding]) -> None:
        self.path, self.findings, self.built = path, findings, 0

    def build(self, node: yaml.Node, depth: int = 0) -> Node:
        self.built += 1
        where = f"{self.path}:{node.start_mark.line + 1}"
        if self.built > CATALOG.nodes or depth > CATALOG.depth:
            raise InvalidCatalog(Finding(where, f"aliases unfold to more than {CATALOG.nodes:,} values", _EXPECTED))
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            self.findings.append(Finding(where, f"tag {node.tag} is not read", "a plain list or mapping"))
        if isinstance(node, yaml.MappingNode):
            return Node(self._mapping(node, depth), where)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(child, depth + 1) for child in node.value], where)
        return Node(self._scalar(node, where), where)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Node]:
        built: dict[str, Node] = {}
        for key, child in node.value:
            where = f"{self.path}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                self.findings.append(Finding(where, "a key that is not plain text", "a name"))
                continue
            if key.value in built:
                self.findings.append(Finding(where, f"{key.value} is given twice"))
            built[key.value] = self.build(child, depth + 1)
        return built

    def _scalar(self, node: yaml.Node, where: str) -> Any:
        if node.tag not in _SCALARS:
            self.findings.append(Finding(where, f"tag {node.tag} is not read", "a plain value"))
            return None
        if node.tag.endswith(("timestamp", "str")):
            return node.value
        try:
            return yaml.safe_load(node.value)
        except (ValueError, yaml.YAMLError):
            return node.value
