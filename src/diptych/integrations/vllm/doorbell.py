"""How decode asks for a prompt: one short question to the prefill worker, answered at once; KV then comes over the peer link.

A question names a handoff by the id and epoch of its ticket. It moves nothing: the prefill worker looks whether it still keeps
the prompt, and dials the asker if so.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from diptych.runtime.peer.address import Address
from diptych.runtime.peer.peers import Tls

LONGEST = 4096
SECONDS = 5.0
MOST = 64
"""Questions at one time."""


class Ring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`fetch` what is computed, `reserve` for what will be: hand a share of it to `worker`, who listens at `address`.

    `keep`: its reader waits for room. `drop`: nobody will read it, or not this rank's. `who`: who answers here. `rank` of `ranks`
    is the asker's; `kept` a digest of the KV state as it keeps it; `prompt` of the tokens that it was asked for.
    """

    deed: Literal["fetch", "reserve", "keep", "drop", "who"]
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    epoch: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    worker: Annotated[str, Meta(max_length=128)] = ""
    address: Annotated[str, Meta(max_length=200)] = ""
    rank: Annotated[int, Meta(ge=0, le=1023)] = 0
    ranks: Annotated[int, Meta(ge=1, le=1024)] = 1
    kept: Annotated[str, Meta(max_length=64)] = ""
    prompt: Annotated[str, Meta(max_length=32)] = ""


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`refused`: "" when it will be done, else why not. `worker` answers, as one of `ranks`."""

    refused: Annotated[str, Meta(max_length=500)] = ""
    worker: Annotated[str, Meta(max_length=128)] = ""
    ranks: Annotated[int, Meta(ge=1, le=1024)] = 1


class Doorbell:
    """Listens, and has each question answered by `answer`, on a thread of its own."""

    def __init__(self, address: Address, answer: Callable[[Ring], Told], tls: Tls | None = None) -> None:
        self._answer = answer
        self._listener = address.listen()
        self._room = threading.Semaphore(MOST)
        self._context = tls.context(server=True) if tls and not address.path else None
        self.address = address if address.path else Address(host=address.host, port=self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="doorbell", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):  # an accept that waits returns
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(sock,), name="ring", daemon=True).start()
            else:
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with _guarded(sock, self._context, server=True) as guarded:
                ring = msgspec.msgpack.decode(_receive(guarded), type=Ring)
                guarded.sendall(_framed(self._answer(ring)))
        except (OSError, msgspec.DecodeError):
            pass
        finally:
            self._room.release()


def ring(address: Address, question: Ring, tls: Tls | None = None) -> Told:
    """Ask, and wait for the answer. A worker that does not answer has refused; never raises."""
    context = tls.context(server=False) if tls and not address.path else None
    try:
        with _guarded(address.connect(SECONDS), context, server=False) as sock:
            sock.sendall(_framed(question))
            return msgspec.msgpack.decode(_receive(sock), type=Told)
    except (OSError, msgspec.DecodeError) as error:
        return Told(f"source lost: {error}"[:200])


def _guarded(sock: socket.socket, context: ssl.SSLContext | None, *, server: bool) -> socket.socket:
    """The socket, under TLS where there is any. Raises OSError, and then it is closed."""
    sock.settimeout(SECONDS)
    try:
        return sock if context is None else context.wrap_socket(sock, server_side=server)
    except OSError:
        sock.close()
        raise


def _framed(message: Ring | Told) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def _receive(sock: socket.socket) -> bytes:
    size = int.from_bytes(_exactly(sock, 4), "big")
    if size > LONGEST:
        raise OSError(f"a question of {size} bytes")
    return _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = sock.recv(size - len(found))
        if not piece:
            raise OSError("it ended early")
        found += piece
    return found
