"""JSON of others, refused when it is nested deeper than anything that engines take."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64


def loads(text: str) -> Any:
    """The value of a JSON text. Raises ValueError where it is none, or nested too deep."""
    depth = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return json.loads(text)
