"""`diptych top`: a running gateway, live in the terminal."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.live import Live

from diptych.cli.gateway_data import DEFAULT_URL, TlsCa, TokenFile, Url, everything, fetch, token_of, trust
from diptych.cli.output import out, print_json


def top(
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    every: Annotated[float, typer.Option("--every", min=0.1, max=60, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The gateway's snapshot as one JSON document.")] = False,
) -> None:
    """Workers, queues per role, latencies, KV tiers, transfers, fallbacks and cost of a running gateway.

    Example: diptych top --token-file run/admin-token
    """
    token, tls = token_of(token_file), trust(tls_ca)
    data = fetch(url, token, tls)
    if as_json:
        print_json(data)
    elif once or not out.is_terminal:
        out.print(everything(data))
    else:
        with Live(everything(data), console=out, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(everything(fetch(url, token, tls)), refresh=True)
