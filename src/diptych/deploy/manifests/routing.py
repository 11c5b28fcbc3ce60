"""The endpoint picker of llm-d and KServe: its plugins and their parameters."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.deploy.safe_yaml import Node
from diptych.engines.deployment import Router


def picker(config: Node) -> Router:
    """An EndpointPickerConfig as a router of kind 'epp'; each parameter of each plugin has its place by name."""
    settings = config.plain if isinstance(config.value, dict) else {}
    return Router("epp", settings, dict(_places(config)))


def _places(config: Node) -> Iterator[tuple[str, str]]:
    for plugin in config.elements("plugins"):
        yield plugin.text("type"), plugin.where
        for name, node in plugin.entries("parameters").items():
            yield name, node.where
