"""Who asks: the one with the secret, the one on this machine."""

from __future__ import annotations

import hmac
from hashlib import sha256

from diptych.hosts import is_loopback
from diptych.runtime.gateway.http import Request
from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.settings import Settings


def digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def same(request: Request, wanted: bytes) -> bool:
    """Whether the request carries the secret; takes as long for a wrong one as for the right one."""
    scheme, _, said = request.headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(sha256(said.strip()).digest(), wanted)


class Doors:
    """Who may pass. Each check raises Refusal; none says more of a secret than that it is not the one."""

    def __init__(self, settings: Settings) -> None:
        self.key = digest(settings.api_key) if settings.api_key else None
        self._admin = digest(settings.admin_token) if settings.admin_token else None

    def for_all(self, request: Request) -> None:
        """No secret is needed."""

    def for_clients(self, request: Request) -> None:
        if self.key is not None and not same(request, self.key):
            raise Refusal(401, "the API key is missing or wrong", "invalid_api_key")

    def for_clients_or_operators(self, request: Request) -> None:
        if self._admin is None or not same(request, self._admin):
            self.for_clients(request)

    def for_this_machine(self, request: Request) -> None:
        if not is_local(request):
            raise Refusal(403, "this is shown on the same machine only", "not_local")

    def for_operators(self, request: Request) -> None:
        if self._admin is None:
            raise Refusal(403, "this server was started without an admin token", "no_admin_token")
        if not same(request, self._admin):
            raise Refusal(401, "the admin token is missing or wrong", "invalid_admin_token")

    def for_operators_here(self, request: Request) -> None:
        self.for_this_machine(request)
        self.for_operators(request)


def is_local(request: Request) -> bool:
    """A client on this machine that meant this machine: a page from elsewhere cannot make a browser ask in its name."""
    if request.client is not None and not _is_this_machine(request.client[0]):
        return False
    host = request.headers.get(b"host", b"localhost").decode("latin-1")
    name = host.rsplit(":", 1)[0].strip("[]") if host.count(":") <= 1 or host.startswith("[") else host
    origin = request.headers.get(b"origin")
    own = (f"http://{host}".encode(), f"https://{host}".encode())
    return _is_this_machine(name) and (origin is None or origin in own)


def _is_this_machine(host: str) -> bool:
    return host == "" or is_loopback(host)  # a socket file has no address
