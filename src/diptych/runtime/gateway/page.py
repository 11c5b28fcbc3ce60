"""The live page's files: shown on this machine only, and nothing in them comes from elsewhere."""

from __future__ import annotations

from importlib.resources import files

from diptych.runtime.gateway.http import Headers, Response

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: Headers = [
    (b"content-security-policy", _POLICY),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
ASSETS = {"/ui": ("index.html", b"text/html; charset=utf-8"), "/ui/": ("index.html", b"text/html; charset=utf-8"),
           "/ui/ui.js": ("ui.js", b"text/javascript; charset=utf-8"),
           "/ui/ui.css": ("ui.css", b"text/css; charset=utf-8")}  # fmt: skip


async def show(path: str, response: Response) -> None:
    """One of `ASSETS`."""
    name, kind = ASSETS[path]
    await response.whole(200, files(__package__).joinpath("ui", name).read_bytes(), kind, _PAGE)
