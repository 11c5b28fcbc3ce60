"""One prompt asked of a gateway of this machine, as a client would: the proof that it serves."""

from __future__ import annotations

import http.client
import json

from diptych.runtime.gateway.settings import Settings
from diptych.runtime.launch.program import reach

SECONDS = 300.0
MOST = 1 << 20


def ask(settings: Settings, prompt: str, tokens: int = 96) -> str:
    """The answer's text and what it took, or a sentence that says why there is none."""
    made = reach(settings.reached, settings.port, bool(settings.tls_certificate), SECONDS)
    body = {
        "model": settings.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    headers = {"content-type": "application/json"}
    if settings.api_key:
        headers["authorization"] = f"Bearer {settings.api_key}"
    try:
        made.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        said = json.loads(made.getresponse().read(MOST))
        if "error" in said:
            return f"(no answer: {said['error']['message']})"
        return _printable(str(said["choices"][0]["message"]["content"]).strip())
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError) as error:
        return f"(no answer: {type(error).__name__}: {error})"
    finally:
        made.close()


def _printable(text: str) -> str:
    """Without what would tell a terminal to do something."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "·" for letter in text)
