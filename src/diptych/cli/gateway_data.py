"""What `top` and `status` share: the gateway's snapshot over HTTP, with the admin token, and how its numbers are written."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from diptych.errors import Finding, InvalidInput, Unsupported

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_ANSWER = 16 << 20

Url = Annotated[str, typer.Option("--url", help="Where the gateway listens.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the admin token; else DIPTYCH_ADMIN_TOKEN.", show_default=False),
]


TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", help="Who signed the gateway's certificate, PEM; else whom this machine believes.",
                 show_default=False),
]  # fmt: skip


def trust(file: Path | None) -> ssl.SSLContext | None:
    """Whom to believe; None for whom this machine believes. Raises InvalidInput."""
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(file))
    except (ssl.SSLError, OSError) as error:
        raise InvalidInput(Finding("--tls-ca", f"{file} cannot be used: {error}"[:200], "a PEM file")) from None


def token_of(file: Path | None) -> str:
    """The admin token. Raises InvalidInput: none is said, or the file cannot be read."""
    if file is None:
        said = os.environ.get("DIPTYCH_ADMIN_TOKEN", "")
    else:
        try:
            said = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(Finding("--token-file", f"cannot be read: {error}", "a file with the token")) from None
    if not said or not said.isascii() or not said.isprintable():
        expected = "--token-file FILE, or DIPTYCH_ADMIN_TOKEN; `diptych serve` says where it keeps it"
        raise InvalidInput(Finding("token", "no usable admin token", expected))
    return said


def fetch(url: str, token: str, tls: ssl.SSLContext | None = None) -> dict[str, Any]:
    """The gateway's snapshot. Raises InvalidInput for an address or a token that is wrong, Unsupported when nobody answers."""
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(Finding("--url", f"is {url!r}", "http://HOST:PORT or https://HOST:PORT"))
    request = urllib.request.Request(  # noqa: S310 - http or https, as checked above
        f"{url.rstrip('/')}/ui/data", headers={"authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5, context=tls) as answer:  # noqa: S310 - as above
            found = json.loads(answer.read(MAX_ANSWER))
    except urllib.error.HTTPError as error:
        raise InvalidInput(
            Finding("--url", f"the gateway refuses: {_said(error)}", "the gateway's own admin token")
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise Unsupported(f"no gateway answers at {url}: {why}; is `diptych serve` running?") from None
    if not isinstance(found, dict) or "workers" not in found:
        raise Unsupported(f"what answers at {url} is no gateway of diptych")
    return found


def _said(error: urllib.error.HTTPError) -> str:
    with error:
        try:
            return str(json.loads(error.read(10_000))["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return f"HTTP {error.code}"


# --- numbers ------------------------------------------------------------------------------------------------------------


def seconds(value: float | None) -> str:
    """A latency."""
    if value is None:
        return "–"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def size(value: float | None) -> str:
    """Bytes."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def share(part: float | None, whole: float | None) -> str:
    """A percentage."""
    return "–" if part is None or not whole else f"{100 * part / whole:.0f} %"


def age(value: float | None) -> str:
    """How long."""
    if value is None:
        return "–"
    for limit, unit, width in ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600)):
        if value < limit:
            return f"{value / width:.0f} {unit}"
    return f"{value / 86400:.1f} d"


def usd(value: float | None) -> str:
    """Money."""
    return "–" if value is None else f"${value:.3f}" if value < 1 else f"${value:,.2f}"


# --- tables -------------------------------------------------------------------------------------------------------------


def headline(data: dict[str, Any]) -> Text:
    """One line: state, requests, cost."""
    asked, cost = data["requests"], data["cost"]
    line = Text.assemble(
        (data["model"], "bold"),
        "  ",
        (data["status"], "green" if data["status"] == "ready" else "bold red"),
        f"  up {age(data['uptime'])}  open {asked['answers']}  waiting {asked['held']}"
        f"  finished {asked['finished']:,}  cancelled {asked['cancelled']:,}  refused {asked['refused']:,}",
    )
    if cost["usd_per_million_tokens"] is not None:
        line.append(f"  {usd(cost['usd_per_million_tokens'])} per million tokens")
    if cost["alternative_usd"] is not None:
        line.append(f" ({cost['alternative'] or 'homogeneous'}: {usd(cost['alternative_usd'])})")
    return line


def latencies(data: dict[str, Any]) -> Table:
    """Percentiles over the last two minutes."""
    table = _table("", "p50", "p90", "p99")
    for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "end to end")):
        found = data["latency"][name]
        table.add_row(title, *(seconds(found[each]) for each in ("p50", "p90", "p99")))
    return table


def workers(data: dict[str, Any]) -> Table:
    """The roster."""
    heads = (
        "worker",
        "role",
        "state",
        "for",
        "queued",
        "running",
        "handing",
        "KV used",
        "prefix hits",
        "tok/s",
        "runs on",
    )
    table = _table(*heads)
    for each in data["workers"]:
        state = f"{each['condition']}: {each['why']}" if each["why"] else each["condition"]
        used = None if each["blocks"] is None else each["blocks"] - each["blocks_free"]
        table.add_row(
            each["name"],
            each["role"],
            Text(state, "green" if each["condition"] == "up" else "red"),
            age(each["age"]),
            *("–" if each[name] is None else str(each[name]) for name in ("queued", "running", "handing")),
            share(used, each["blocks"]),
            share(each["prefix_found"], each["prefix_asked"]),
            f"{each['output_rate']:,.0f}",
            f"{each['hardware']} {each['precision']}".strip() or "–",
        )
    return table


def tiers(data: dict[str, Any]) -> Table:
    """KV below device memory."""
    table = _table("worker", "tier", "in use", "of", "hit rate", "damaged")
    for worker in data["workers"]:
        for tier in worker["tiers"]:
            found = share(tier["found"], tier["asked"])
            row = tier["name"], size(tier["used"]), size(tier["capacity"]), found, str(tier["damaged"])
            table.add_row(worker["name"], *row)
    return table


def transfers(data: dict[str, Any]) -> Table:
    """Handoffs by pair."""
    table = _table("from", "to", "handoffs", "bytes", "rate")
    for each in data["transfers"]:
        rate = f"{size(each['bytes'] / each['seconds'])}/s" if each["seconds"] else "–"
        table.add_row(each["source"] or "–", each["target"], f"{each['count']:,}", size(each["bytes"]), rate)
    return table


def reasons(data: dict[str, Any]) -> Table:
    """Decisions, fallbacks, refusals, conversions."""
    table = _table("what", "because", "times")
    for each in data["routes"]:
        table.add_row(each["path"], each["reason"], f"{each['count']:,}")
    for each in data["conversions"]:
        table.add_row("converted", each["what"], f"{each['count']:,}")
    for name, title in (("fallbacks", "fallback"), ("refusals", "refused")):
        for each in data[name]:
            table.add_row(Text(title, "yellow"), each["reason"], f"{each['count']:,}")
    for each in data["pairs_refused"]:
        what = f"{each['source']} → {each['target']}: {each['reason']}"
        table.add_row(Text("pair refused", "red"), what, f"{each['count']:,}")
    return table


def everything(data: dict[str, Any]) -> Group:
    """A whole screen; empty tables are left out."""
    parts = [workers(data), latencies(data), transfers(data), tiers(data), reasons(data)]
    return Group(headline(data), *(part for part in parts if part.row_count))


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for place, head in enumerate(heads):
        is_number = head in (
            "queued",
            "running",
            "handing",
            "times",
            "handoffs",
            "tok/s",
            "damaged",
        ) or head.startswith("p")
        table.add_column(
            head, justify="right" if place and is_number and head != "prefix hits" else "left", overflow="fold"
        )
    return table
