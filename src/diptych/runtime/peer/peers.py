"""All connections of one worker to others: it listens as a target and dials as a source."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from diptych.boundary.messages import Hello, Message
from diptych.boundary.wire_table import WireTable
from diptych.errors import Finding, InvalidInput
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.arena import Lender, lend_nothing
from diptych.runtime.peer.channel import Channel, PlainChannel, TlsChannel
from diptych.runtime.peer.events import Event
from diptych.runtime.peer.link import HANDSHAKE_S, Link, Said, Shared
from diptych.runtime.peer.outflow import Outflow, Run

log = logging.getLogger(__name__)

CONNECT_S = 2.0
MOST_STRANGERS = 32
"""Connections that have not said hello yet."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Both sides' certificates: files of this side's chain and key, and of the authority that signs all workers'."""

    certificate: str
    key: str
    authority: str

    def context(self, server: bool) -> ssl.SSLContext:
        """A context that demands the other side's certificate. Raises OSError."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.load_cert_chain(self.certificate, self.key)
        made.load_verify_locations(self.authority)
        made.verify_mode = ssl.CERT_REQUIRED
        made.check_hostname = False  # workers are known by name and authority; hosts come and go
        return made


class Peers:
    """The connections by peer: one that was dialed, one that was accepted. Called from the engine's thread."""

    def __init__(
        self,
        hello: Hello,
        table: WireTable,
        tell: Callable[[Event], None],
        tls: Tls | None = None,
        arena: Lender | None = None,
    ) -> None:
        """`arena`: this worker's KV memory, lent to targets that are reached at an address of that kind."""
        self.turn, self.tell, self._arena = threading.Lock(), tell, arena
        self._shared = Shared(hello, table, self.turn, tell)
        self._tls = tls
        self._server = tls.context(server=True) if tls else None
        self._client = tls.context(server=False) if tls else None
        self._links: dict[tuple[str, bool], Link] = {}
        self._gate = threading.Lock()
        self._listener: socket.socket | None = None
        self._strangers = threading.Semaphore(MOST_STRANGERS)
        self._closed = False

    # --- the engine's thread ----------------------------------------------------------------------------------------

    def say(self, peer: str, dialed: bool, id: bytes, epoch: int, message: Message) -> bool:
        """Send a message; False when there is no connection to send it on."""
        link = self._links.get((peer, dialed))
        return link is not None and link.put(Said(id, epoch, message))

    def send(self, peer: str, run: Run) -> bool:
        """Send blocks to a target; False when there is no connection."""
        link = self._links.get((peer, True))
        return link is not None and link.put(run)

    def dial(self, peer: str, address: Address) -> int:
        """Have a connection to a target; its number, by which `Lost` names it, 0 when this worker has ended.

        What is said before it is made waits; `Lost` follows if it cannot be made.
        """
        with self._gate:
            standing = self._links.get((peer, True))
            if self._closed:
                return 0
            if standing is not None and not standing.ended.is_set():
                return standing.number
            link = self._links[peer, True] = Link(self._shared, peer, dialed=True)
        threading.Thread(target=self._dialed, args=(link, address), name=f"from {peer}", daemon=True).start()
        return link.number

    def drop(self, peer: str, dialed: bool) -> None:
        """End a connection that does not move."""
        link = self._links.get((peer, dialed))
        if link is not None:
            link.shut()

    def quiet(self, peer: str, flow: Outflow, seconds: float) -> None:
        """Wait until nothing reads the blocks of an outflow that was stopped; a connection that takes too long is ended."""
        until = time.monotonic() + seconds
        while flow.pending:
            if time.monotonic() > until:
                self.drop(peer, True)
            time.sleep(0.0005)

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return sum(not link.ended.is_set() for link in self._links.values())

    def close(self) -> None:
        """Listen no more and end everything."""
        with self._gate:
            self._closed = True
            links = list(self._links.values())
            listener, self._listener = self._listener, None
        if listener is not None:
            path = listener.getsockname() if listener.family == socket.AF_UNIX else ""
            with contextlib.suppress(OSError):  # an accept that waits returns
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            if path and os.path.exists(path):
                os.unlink(path)
        for link in links:
            link.shut()

    # --- listening ----------------------------------------------------------------------------------------------------

    def listen(self, address: Address) -> Address:
        """Accept sources from now on; where they reach this worker (a port that was 0 is chosen).

        Raises:
            InvalidInput: an address that others can reach, without TLS.
            OSError: it is taken.
        """
        if not address.is_local and self._tls is None:
            raise InvalidInput(Finding("peer.address", f"{address} leaves this host", "TLS with both certificates"))
        if address.lends and (self._arena is None or self._arena.kind != address.lends):
            raise InvalidInput(
                Finding("peer.address", f"{address} needs memory of that kind", "an engine whose KV lies in it")
            )
        self._listener = address.listen()
        if not address.path:
            address = replace(address, port=self._listener.getsockname()[1])
        accept = (self._listener, self._arena if address.lends else None)
        threading.Thread(target=self._accept, args=accept, name="peers", daemon=True).start()
        return address

    def _accept(self, listener: socket.socket, borrows: Lender | None) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._accepted, args=(sock, borrows), name="stranger", daemon=True).start()
            else:
                sock.close()

    def _accepted(self, sock: socket.socket, borrows: Lender | None) -> None:
        reach = None
        try:
            sock.settimeout(HANDSHAKE_S)
            reach = borrows.borrow(sock) if borrows is not None else None
            link = Link(self._shared, "", dialed=False, reach=reach)
            refused = link.open(self._channel(sock, self._server, sends=False))
        except OSError as error:
            refused = str(error)
        finally:
            self._strangers.release()
        if refused:
            log.info("a stranger is turned away: %s", refused)
            sock.close()
            if reach is not None:
                reach.close()
            return
        if self._replace(link):
            link.run()
        else:
            link.give_up("this worker has ended")
        self._forget(link)

    def _replace(self, link: Link) -> bool:
        """An older connection of the same peer ends, and its end is told, before this one is read."""
        with self._gate:
            before = self._links.get((link.peer, False))
            self._links[link.peer, False] = link
            closed = self._closed
        if before is not None:
            before.shut()
            before.told.wait(HANDSHAKE_S)
        return not closed

    # --- dialing ------------------------------------------------------------------------------------------------------

    def _dialed(self, link: Link, address: Address) -> None:
        sock = None
        try:
            sock = address.connect(CONNECT_S)
            if address.lends:
                self._lend(sock, link, address.lends)
            context = None if address.path else self._client
            refused = link.open(self._channel(sock, context, sends=True))
        except OSError as error:
            refused = str(error)
        if refused:
            if sock is not None:
                sock.close()
            link.give_up(refused)
        else:
            link.run()
        self._forget(link)

    def _lend(self, sock: socket.socket, link: Link, kind: str) -> None:
        if self._arena is None or self._arena.kind != kind:
            lend_nothing(sock)
        else:
            self._arena.lend(sock)
            link.lend(self._arena)

    def _forget(self, link: Link) -> None:
        with self._gate:
            if self._links.get((link.peer, link.dialed)) is link:
                del self._links[link.peer, link.dialed]

    def _channel(self, sock: socket.socket, context: ssl.SSLContext | None, sends: bool) -> Channel:
        if context is None or sock.family == socket.AF_UNIX:
            return PlainChannel(sock, sends)
        sock.settimeout(HANDSHAKE_S)
        return TlsChannel(context.wrap_socket(sock, server_side=context is self._server))
