"""diptych inside vLLM: a KV connector whose two sides may differ in precision and block size.

`--kv-transfer-config '{"kv_connector": "DiptychConnector", "kv_connector_module_path": "diptych.integrations.vllm", ...}'`
"""

from __future__ import annotations

from typing import Any

__all__ = ["DiptychConnector"]


def __getattr__(name: str) -> Any:
    """The connector, which needs vLLM, is imported when it is asked for."""
    if name == "DiptychConnector":
        from diptych.integrations.vllm.connector import DiptychConnector

        return DiptychConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
