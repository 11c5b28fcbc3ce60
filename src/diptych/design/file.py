"""Designs in a YAML or JSON file: the line of `text`, or the same words spelled out.

```yaml
model: Qwen3-32B
prefill: [{accelerator: H100, count: 3, tp: 2}]
decode: [{accelerator: H20, count: 5, tp: 4}]
kv: fp8
boundary: {link: rdma-400g, ownership: push}
```

or `model: Qwen3-32B` and `design: "3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, push"`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.catalog.model import Model
from diptych.catalog.yaml_lines import Node, read_yaml
from diptych.design.axes import Role
from diptych.design.design import Design
from diptych.design.text import read_text
from diptych.design.written import BOUNDARY_WORDS, WORKER_WORDS, Word, Written, WrittenMember, resolve
from diptych.errors import Finding, InvalidDesign, InvalidInput

_KEYS = ("model", "design", *Role, "boundary")
_SHAPES = "design: TEXT, or prefill and decode lists with a boundary, or a colocated list"


def read_design(path: Path, catalog: Catalog, model: Model | None = None) -> Design:
    """The design in a file. `model` goes before the one that the file names.

    Raises:
        InvalidDesign: every mistake at once, each with its line.
    """
    findings: list[Finding] = []
    document = read_yaml(path, findings)
    if document is None or findings:
        raise InvalidDesign(findings)
    if not document.is_mapping:
        raise InvalidDesign(Finding(document.where, "not a mapping", _SHAPES))
    fields: dict[str, Node] = document.value
    written = _written(fields, document.where)
    model = model or _model(fields, catalog, written) or next(iter(catalog.models.values()))
    return resolve(written, catalog, model)


def _model(fields: dict[str, Node], catalog: Catalog, written: Written) -> Model | None:
    named = fields.get("model")
    if named is None:
        written.say(written.where, "no model", "model: NAME in the file, or --model")
        return None
    try:
        return catalog.model(str(named.plain))
    except InvalidInput as error:
        written.findings += [Finding(named.where, f.problem, f.expected, f.hint) for f in error.findings]
        return None


def _written(fields: dict[str, Node], where: str) -> Written:
    written = read_text(str(fields["design"].plain), fields["design"].where) if "design" in fields else Written(where)
    roles = [role for role in Role if role in fields]
    if not roles and "design" not in fields:
        written.say(where, "no design in it", _SHAPES)
    if roles not in ([], [Role.PREFILL, Role.DECODE], [Role.COLOCATED]) or (roles and "design" in fields):
        written.say(where, f"{', '.join([*roles, *(['design'] if 'design' in fields else [])])} together", _SHAPES)
    for role in roles:
        written.pools.append((role, [_member(node, written) for node in _list(fields[role], written)]))
    for name, node in _mapping(fields.get("boundary"), written).items():
        written.put(written.options, name, _word(node, written), BOUNDARY_WORDS)
    for name, node in fields.items():
        if name not in ("model", "design", "boundary", *roles):
            written.put(written.options, name, _word(node, written), (*WORKER_WORDS, *_KEYS))
    return written


def _member(node: Node, written: Written) -> WrittenMember:
    fields = _mapping(node, written)
    if node.is_mapping and "accelerator" not in fields:
        written.say(node.where, "no accelerator", "such as accelerator: H100")
    count = fields.pop("count", Node(1, node.where))
    accelerator = fields.pop("accelerator", Node("", node.where))
    member = WrittenMember(_word(count, written), _word(accelerator, written))
    for name, value in fields.items():
        written.put(member.words, name, _word(value, written), WORKER_WORDS)
    return member


def _list(node: Node, written: Written) -> list[Node]:
    if isinstance(node.value, list) and node.value:
        return node.value
    if node.is_mapping:
        return [node]
    written.say(node.where, "not a list of workers", "[{accelerator: H100, count: 3, tp: 2}]")
    return []


def _mapping(node: Node | None, written: Written) -> dict[str, Node]:
    if node is None:
        return {}
    if not node.is_mapping:
        written.say(node.where, f"{node.plain!r} is not a mapping", "NAME: VALUE pairs")
        return {}
    return {str(name): value for name, value in node.value.items()}


def _word(node: Node, written: Written) -> Word:
    value: Any = node.plain
    if isinstance(value, dict | list) or value is None:
        written.say(node.where, f"{value!r} is not a name or a number")
        return Word("", node.where)
    return Word(str(value), node.where)
