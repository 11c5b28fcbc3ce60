"""Settings of others by field, kept where they have the type of it: neither a file nor a server is believed to be well formed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NUMBERS = frozenset(
    ("block_size", "tp", "pp", "dp", "dcp", "pcp", "max_seqs", "max_batched_tokens", "max_model_len", "replicas")
)
SIZES = frozenset({"block_size", "tp", "pp", "dp", "dcp", "pcp", "max_seqs"})
"""Numbers of which there is at least one; others may say -1 for 'as many as there are'."""
SWITCHES = frozenset({"ep", "prefix_caching", "hybrid_kv_manager"})


def whole(text: str) -> int | None:
    """The whole number that a text is, up to twelve digits; None for any other text.

    >>> whole("64"), whole("-1"), whole("²"), whole("")
    (64, None, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else None


def of_their_types(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values whose type is that of their field of `RoleConfig`: a whole number, a switch, or text; sizes are 1 or more."""
    return {name: value for name, value in values.items() if _fits(name, value)}


def _fits(name: str, value: Any) -> bool:
    if name in NUMBERS:
        return isinstance(value, int) and not isinstance(value, bool) and (value > 0 or name not in SIZES)
    return isinstance(value, bool if name in SWITCHES else str)
