"""The endpoint picker of llm-d and KServe: its plugins and their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from diptych.deploy.safe_yaml import Node, load_text
from diptych.engines.deployment import Router
from diptych.errors import InvalidInput


def picker(config: Node) -> Router:
    """An EndpointPickerConfig as a router of kind 'epp'; each parameter of each plugin has its place by name."""
    settings = config.plain if isinstance(config.value, dict) else {}
    return Router("epp", settings, dict(_places(config)))


def pickers_within(node: Node) -> Iterator[Router]:
    """The EndpointPickerConfigs in a text within a manifest: a ConfigMap's, or an argument; nothing where there is none."""
    text = node.text()
    if "EndpointPickerConfig" not in text:
        return
    name, _, line = node.where.rpartition(":")
    with suppress(InvalidInput):
        inner = load_text("\n" * (int(line) - 1) + text, name)
        yield from (picker(each) for each in inner if each.text("kind") == "EndpointPickerConfig")


def _places(config: Node) -> Iterator[tuple[str, str]]:
    for plugin in config.elements("plugins"):
        yield plugin.text("type"), plugin.where
        for name, node in plugin.entries("parameters").items():
            yield name, node.where
