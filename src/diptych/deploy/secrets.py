"""What must not be shown: values whose names say that they are keys, tokens or passwords are dropped where they are read."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
"""Stands for a secret's value everywhere after reading, so that no message, report or file can carry it."""

_SECRET = re.compile(
    r"(?:^|[-_.])(?:(?:api|access|auth|hf|hub|bearer|admin|ngc|secret|session|github|refresh|id)[-_]?(?:key|token)s?"
    r"|token|secrets?|passw(?:or)?d|passwd|passphrase|credentials?|private[-_]?key|watermark[-_]key(?:[-_]b)?)(?:$|[-_.](?:id|b|value)$)",
    re.IGNORECASE,
)
_SECRET_FLAG = re.compile(r"(--?[\w-]*(?:api[-_]key|token|password|secret[-_]key)[ =]+)\S+", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def is_secret(name: str) -> bool:
    """Whether a flag, variable or field of this name holds something to hide.

    >>> is_secret("HF_TOKEN"), is_secret("api-key"), is_secret("max-num-batched-tokens")
    (True, True, False)
    """
    return _SECRET.search(name) is not None


def hidden(name: str, value: str) -> str:
    """The value, or `HIDDEN` when its name says that it is a secret; a URL loses its user and password."""
    return HIDDEN if value and is_secret(name) else without_user(value)


def hidden_inside(value: Any) -> Any:
    """A JSON value with the secrets in its mappings replaced, at any depth."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret(str(key)) and inner else hidden_inside(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hidden_inside(inner) for inner in value]
    return without_user(value) if isinstance(value, str) else value


def without_user(text: str) -> str:
    """The text without the user and password of its URLs, and without what its own flags hold secret.

    >>> without_user("http://me:pw@host:8000/v1"), without_user("--api-key abc --port 1")
    ('http://host:8000/v1', '--api-key (hidden) --port 1')
    """
    return _SECRET_FLAG.sub(rf"\1{HIDDEN}", _USER_INFO.sub("", text))
