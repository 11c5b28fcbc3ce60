"""Where `diptych serve` listens and with what secrets: nothing leaves this machine without a key and TLS."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from diptych.cli.plan_inputs import Reader, flag
from diptych.errors import Finding, InvalidInput
from diptych.runtime.gateway.settings import Endpoint, Settings

LEAST_TOKEN = 16


def listening(reader: Reader, model: str, tokenizer: str) -> Settings | None:
    """Where to listen and with what secrets; None after noting what is wrong."""
    given = reader.given
    token = reader.value("token_file", read_token) or ""
    files = {name: file_of(reader, name) for name in ("tls_cert", "tls_key")}
    host, port = given.get("host") or "127.0.0.1", given.get("port")
    if port is None or not 0 <= port <= 65535:
        reader.findings.append(Finding("--port", f"is {port}", "0 to 65535; 0 for any that is free"))
        port = 0
    settings = Settings(
        model=model, tokenizer=tokenizer, workers=(Endpoint("none", "decode", "unix:/none"),), host=host,
        port=port, tls_certificate=files["tls_cert"], tls_key=files["tls_key"], api_key=token,
    )  # fmt: skip
    reader.findings += _unsafe(settings, bool(given.get("token_file")))
    return None if reader.findings else _with_port(reader, settings)


def _unsafe(settings: Settings, has_token: bool) -> list[Finding]:
    found = []
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        found.append(Finding("--tls-cert", "one of --tls-cert and --tls-key is missing", "both, or none"))
    if settings.is_local:
        return found
    where = f"{settings.host} can be reached from other machines"
    if not has_token:
        found.append(Finding("--token-file", f"is missing, and {where}", "a file with the key that clients must send"))
    if not (settings.tls_certificate or settings.tls_key):
        found.append(Finding("--tls-cert", f"is missing, and {where}", "a certificate, and --tls-key"))
    return found


def _with_port(reader: Reader, settings: Settings) -> Settings:
    """The settings with a port that is free now, so that a gateway that is restarted is found again."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(family) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trying.bind((settings.host, settings.port))
            port = int(trying.getsockname()[1])
    except OSError as error:
        where = f"cannot listen at {settings.host}:{settings.port}: {error.strerror or error}"
        reader.findings.append(Finding("--port", where, "another port, or 0 for any that is free"))
        return settings
    return msgspec.structs.replace(settings, port=port)


def read_token(name: str, where: str = "--token-file") -> str:
    """The key in a file that only its owner can read. It is never shown. Raises InvalidInput."""
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8").strip()
        is_open = path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise InvalidInput(Finding(where, f"{name} cannot be read: {why}")) from None
    if is_open:
        raise InvalidInput(Finding(where, f"{name} can be read by others", f"chmod 600 {name}"))
    if not LEAST_TOKEN <= len(text) <= 256 or not text.isascii() or any(letter.isspace() for letter in text):
        raise InvalidInput(
            Finding(where, f"no usable key in {name}", f"{LEAST_TOKEN} to 256 characters without spaces")
        )
    return text


def file_of(reader: Reader, name: str) -> str:
    text = reader.given.get(name)
    if text is None:
        return ""
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        reader.findings.append(Finding(flag(name), f"there is no file {text}", "a PEM file"))
    return str(path)
