"""What must not be shown: values whose names say that they are keys, tokens or passwords are dropped where they are read.

A value that looks like a secret by itself (`hf_…`, `Bearer …`, a password in a URL) is dropped whatever it was given to: a secret
behind the wrong flag is still one.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
"""Stands for a secret's value everywhere after reading, so that no message, report or file can carry it."""

_SECRET = re.compile(
    r"(?:^|[-_.])(?:"
    r"(?:api|access|auth|hf|hub|bearer|admin|ngc|secret|github|refresh|id)[-_]?(?:key|token)s?"
    r"|(?:private|signing|encryption|master|ssh|account|license|deploy|watermark)[-_]?key(?:[-_]b)?"
    r"|(?<!per[-_])(?<!first[-_])token(?![-_.]id)|session[-_]?token"
    r"|secrets?|(?<!allow[-_])credentials?|passphrase|auth(?:orization)?"
    r")(?:$|[-_.](?:id|b|value)$)"
    r"|passw(?:or)?d(?:$|[-_.]value$)|[-_]pwd$",
    re.IGNORECASE,
)
_SECRET_CASED = re.compile(r"^(?!.*CONFIG_KEY$)[A-Z][A-Z0-9_]*_KEY$|(?<=[a-z])(?:Secret|Passwd)$")
_SECRET_FLAG = re.compile(
    r"((?<![\w-])--?(?:[\w-]*[-_])?(?:api[-_]key|(?<!per[-_])(?<!first[-_])token|password|secret[-_]key)[ =]+)"
    r"(?!-)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]+)",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:key|token|password|secret)|sig|signature)=)[^&\s'\"]+", re.IGNORECASE)
_HEADER = re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?)(?:(?:bearer|basic|token)\s+)?[^\s'\",}]+", re.IGNORECASE)
_LOOKS = re.compile(
    r"(?<![\w-])(?:"
    r"hf_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|sk-(?=[\w-]*\d)[\w-]{16,}"  # OpenAI and those who follow it
    r"|gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|nvapi-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # a JSON web token
    r"|Bearer\s+[\w.~+/=-]{8,}"
    r")"
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether a flag, variable or field of this name holds something to hide.

    >>> is_secret("HF_TOKEN"), is_secret("api-key"), is_secret("PGPASSWORD"), is_secret("max-num-batched-tokens")
    (True, True, True, False)
    """
    return _SECRET.search(name) is not None or _SECRET_CASED.search(name) is not None


def hidden(name: str, value: str) -> str:
    """The value, or `HIDDEN` when its name says that it is a secret; else without what looks like one in it."""
    return HIDDEN if value and is_secret(name) else without_user(value)


def hidden_inside(value: Any) -> Any:
    """A JSON value with the secrets in its mappings replaced, at any depth; `{name: HF_TOKEN, value: …}` is one of them."""
    if isinstance(value, dict):
        named = isinstance(value.get("name"), str) and is_secret(value["name"])
        return {
            key: HIDDEN if inner and (is_secret(str(key)) or (named and key == "value")) else hidden_inside(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [hidden_inside(inner) for inner in value]
    return without_user(value) if isinstance(value, str) else value


def without_user(text: str) -> str:
    """The text without the user and password of its URLs, what its own flags and headers hold secret, and known kinds of key.

    >>> without_user("http://me:pw@host:8000/v1"), without_user("--api-key abc --port 1")
    ('http://host:8000/v1', '--api-key (hidden) --port 1')
    >>> without_user("-H 'Authorization: Bearer abc'"), without_user("https://host/?api_key=abc&x=1")
    ("-H 'Authorization: (hidden)'", 'https://host/?api_key=(hidden)&x=1')
    """
    text = _PRIVATE.sub(HIDDEN, _USER_INFO.sub("", text))
    for pattern in (_SECRET_FLAG, _HEADER, _QUERY):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return _LOOKS.sub(HIDDEN, text)
