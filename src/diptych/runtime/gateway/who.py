"""Who asks: the one with the secret, the one on this machine."""

from __future__ import annotations

import hmac
import ipaddress
from hashlib import sha256

from diptych.runtime.gateway.http import Request


def digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def same(request: Request, wanted: bytes) -> bool:
    """Whether the request carries the secret; takes as long for a wrong one as for the right one."""
    scheme, _, said = request.headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(sha256(said.strip()).digest(), wanted)


def is_local(request: Request) -> bool:
    """A client on this machine that meant this machine: a page from elsewhere cannot make a browser ask in its name."""
    if request.client is not None and not _is_loopback(request.client[0]):
        return False
    host = request.headers.get(b"host", b"localhost").decode("latin-1")
    name = host.rsplit(":", 1)[0].strip("[]") if host.count(":") <= 1 or host.startswith("[") else host
    origin = request.headers.get(b"origin")
    own = (f"http://{host}".encode(), f"https://{host}".encode())
    return (name == "localhost" or _is_loopback(name)) and (origin is None or origin in own)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == ""  # a socket file has no address
