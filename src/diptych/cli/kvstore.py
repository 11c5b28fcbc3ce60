"""`diptych kvstore`: a process that keeps KV blocks for many workers."""

from __future__ import annotations

import signal
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from diptych.cli.output import err
from diptych.errors import Finding, InvalidInput
from diptych.runtime.peer.address import Address
from diptych.runtime.residency.store import Store
from diptych.units import parse_bytes

Words = str | None


def _option(help: str, metavar: str) -> Any:
    return typer.Option(help=help, metavar=metavar, show_default=False)


def kvstore(
    listen: Annotated[str, _option("unix:/run/kv.sock, or tcp:HOST:PORT.", "ADDRESS")] = "tcp:127.0.0.1:9100",
    capacity: Annotated[str, _option("Bytes of blocks at most, such as 20GiB.", "BYTES")] = "2GiB",
    tls_cert: Annotated[Words, _option("This store's certificate, PEM.", "FILE")] = None,
    tls_key: Annotated[Words, _option("Its key, PEM.", "FILE")] = None,
    tls_ca: Annotated[Words, _option("The authority that workers' certificates must come from, PEM.", "FILE")] = None,
) -> None:
    """Keep KV blocks for workers: the tier below their own disks, shared by all, the least recently used going first.

    Off this machine it only listens under TLS with both sides' certificates.

    Examples:

      diptych kvstore --listen unix:/run/kv.sock --capacity 20GiB

      diptych kvstore --listen tcp:10.0.0.5:9100 --tls-cert kv.pem --tls-key kv.key --tls-ca ca.pem
    """
    address, size, context = _checked(listen, capacity, (tls_cert, tls_key, tls_ca))
    store = Store(size)
    try:
        listener = address.listen()
    except OSError as error:
        raise InvalidInput(Finding("--listen", f"cannot listen at {address}: {error.strerror}")) from None
    with _wrapped(listener, context) as accepting:
        _until_told(accepting)
        err.print(f"kvstore at {address}, at most {capacity}", markup=False)
        store.serve(accepting)
    store.close()
    if address.path:
        with suppress(OSError):
            Path(address.path).unlink()


def _checked(
    listen: str, capacity: str, files: tuple[Words, Words, Words]
) -> tuple[Address, int, ssl.SSLContext | None]:
    findings: list[Finding] = []
    address: Address | None = None
    size = 0
    try:
        address = Address.of(listen)
    except InvalidInput as error:
        findings += [Finding("--listen", each.problem, each.expected) for each in error.findings]
    try:
        size = int(parse_bytes(capacity))
        if size <= 0:
            raise ValueError(f"{capacity} is not above zero")
    except ValueError as error:
        findings.append(Finding("--capacity", str(error), "bytes such as 2GiB"))
    context = _context(files, findings)
    if address is not None and not address.is_local and not any(files):
        expected = "--tls-cert, --tls-key and --tls-ca, or an address on this machine"
        findings.append(Finding("--listen", f"{address} can be reached from other machines", expected))
    if findings:
        raise InvalidInput(findings)
    assert address is not None
    return address, size, context


def _context(files: tuple[Words, Words, Words], findings: list[Finding]) -> ssl.SSLContext | None:
    """Mutual TLS 1.3 when its three files are given."""
    if not any(files):
        return None
    cert, key, authority = files
    if not (cert and key and authority):
        findings.append(Finding("--tls-cert", "TLS needs all three files", "--tls-cert, --tls-key and --tls-ca"))
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.verify_mode = ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(cert, key)
        context.load_verify_locations(authority)
    except OSError as error:
        findings.append(Finding("--tls-cert", f"cannot be used: {error}"))
    return context


def _wrapped(listener: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
    return (
        listener if context is None else context.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
    )


def _until_told(listener: socket.socket) -> None:
    """SIGTERM and SIGINT end the accepting, and the command with it."""

    def stop(signal_number: int, frame: FrameType | None) -> None:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
