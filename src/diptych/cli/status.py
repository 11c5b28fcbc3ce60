"""`diptych status`: whether a running gateway serves, in a few lines and an exit code."""

from __future__ import annotations

from typing import Annotated

import typer

from diptych.cli.gateway_data import (
    DEFAULT_URL,
    TlsCa,
    TokenFile,
    Url,
    fetch,
    headline,
    latencies,
    token_of,
    trust,
    workers,
)
from diptych.cli.output import out, print_json

SHOWN = ("at", "model", "status", "uptime", "requests", "workers", "latency", "fallbacks", "refusals", "cost")


def status(
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """State, workers and latencies of a running gateway; exit code 1 unless it is ready.

    Example: diptych status --token-file run/admin-token
    """
    data = fetch(url, token_of(token_file), trust(tls_ca))
    if as_json:
        print_json({name: data[name] for name in SHOWN})
    else:
        out.print(headline(data))
        out.print(workers(data))
        out.print(latencies(data))
    if data["status"] != "ready":
        raise typer.Exit(1)
