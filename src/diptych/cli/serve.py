"""`diptych serve`: prefill and decode workers as processes of this machine, behind one OpenAI-compatible gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from diptych.cli.options import ColocatedPool, DecodePool, PrefillPool, RunOrDesign, ServedModel, Words, option
from diptych.cli.output import err, out
from diptych.cli.serve_design import Stand, given_of, stand_in
from diptych.cli.serve_engines import check_pairs, checked, program, read_engines
from diptych.cli.serve_inputs import OWN, Setup, read_setup
from diptych.runtime.gateway.settings import Settings
from diptych.runtime.launch.first_prompt import ask
from diptych.runtime.launch.fleet import ADMIN_TOKEN
from diptych.runtime.launch.run_dir import new_token, run_directory
from diptych.runtime.launch.supervisor import Supervisor

FLEET, LISTEN, RUN = "Rules", "Where it listens", "Running it"
OTHERS = "Over other engines"


def serve(
    context: typer.Context,
    run: RunOrDesign = None,
    model: ServedModel = None,
    prefill: PrefillPool = None,
    decode: DecodePool = None,
    colocated: ColocatedPool = None,
    ownership: Annotated[Words, option(FLEET, "Who moves KV: push (default) or pull.", "WHO")] = None,
    transport: Annotated[
        Words, option(FLEET, "How KV goes: unix (default), tcp, shm (memory that prefill lends) or nixl.", "KIND")
    ] = None,
    residency: Annotated[
        Words, option(FLEET, '"dram:2GiB, nvme:/var/kv:20GiB, remote:unix:/run/kv.sock" or kvstore:1GiB.', "TIERS")
    ] = None,
    policy: Annotated[
        Words, option(FLEET, "When a worker is lost: prefill=ROLE, decode=ROLE of fail, other, recompute, colocate.")
    ] = None,
    slo: Annotated[Words, option(FLEET, '"ttft_p90<2s, tpot_p90<50ms": refuse what would miss it.', "SLO")] = None,
    lease: Annotated[Words, option(FLEET, "How long KV is kept for a worker that is silent: 30s.", "TIME")] = None,
    short_prompt: Annotated[int, option(FLEET, "Shorter prompts stay on a decode worker.", "TOKENS")] = 0,
    prices: Annotated[
        Words,
        option(FLEET, "USD an hour of a worker: prefill=4.1, decode=1.2; or a price book, beside RUN.", "PRICES"),
    ] = None,
    engine: Annotated[
        Words, option(OTHERS, "vllm, sglang or diptych: a gateway over workers that run already.", "ENGINE")
    ] = None,
    prefill_url: Annotated[
        list[str] | None,
        option(
            OTHERS,
            "A prefill worker, URL,PORT where decode meets it elsewhere than at --bootstrap-port; may be repeated.",
            "URL",
        ),
    ] = None,
    decode_url: Annotated[list[str] | None, option(OTHERS, "A decode worker; may be repeated.", "URL")] = None,
    connector: Annotated[
        Words, option(OTHERS, "vLLM's connector, where workers do not tell: nixl, mooncake, diptych, lmcache.", "NAME")
    ] = None,
    bootstrap_port: Annotated[
        int, option(OTHERS, "Where decode meets prefill (SGLang, Mooncake, diptych under push): 8998.", "PORT")
    ] = 8998,
    prefill_gpu: Annotated[Words, option(OTHERS, "What prefill runs on, for the rules.", "ACCELERATOR")] = None,
    decode_gpu: Annotated[Words, option(OTHERS, "What decode runs on.", "ACCELERATOR")] = None,
    worker_token_file: Annotated[Words, option(OTHERS, "The key that workers ask for.", "FILE")] = None,
    tls_ca: Annotated[Words, option(OTHERS, "Who signs the workers' certificates, PEM.", "FILE")] = None,
    worker_cert: Annotated[Words, option(OTHERS, "The certificate that workers are shown, PEM.", "FILE")] = None,
    worker_key: Annotated[Words, option(OTHERS, "Its key, PEM.", "FILE")] = None,
    host: Annotated[str, option(LISTEN, "127.0.0.1; others need a token and TLS.", "HOST")] = "127.0.0.1",
    port: Annotated[int, option(LISTEN, "8000; 0 for any that is free.", "PORT")] = 8000,
    token_file: Annotated[Words, option(LISTEN, "The key that clients must send.", "FILE")] = None,
    tls_cert: Annotated[Words, option(LISTEN, "The gateway's certificate chain, PEM.", "FILE")] = None,
    tls_key: Annotated[Words, option(LISTEN, "Its key, PEM.", "FILE")] = None,
    ask_prompt: Annotated[
        Words, typer.Option("--ask", help="Ask this when all are up, and show the answer.", rich_help_panel=RUN)
    ] = None,
    logs: Annotated[Words, option(RUN, "Keep the processes' logs here.", "DIR")] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="One JSON object a line in the logs.", rich_help_panel=RUN)
    ] = False,
) -> None:
    """Serve a model with prefill and decode on workers of their own precision, behind one OpenAI-compatible gateway.

    Ends at SIGTERM or Ctrl-C after finishing what is open; twice ends at once; SIGHUP restarts the workers one by one.

    Examples:

      diptych serve --ask "What is a diptych?"

      diptych serve --model ./hf-dir --prefill "1 x cpu:bf16" --decode "2 x cpu:int8, kv=int8" --ownership pull

      diptych serve runs/conv

      diptych serve --engine vllm --prefill-url http://p:8100 --decode-url http://d:8200
    """
    if (engine or prefill_url or decode_url) and engine != OWN:
        given = {**context.params, "engine": engine or "vllm"}
        code = asyncio.run(_serve_engines(given, logs, ask_prompt, log_json))
    else:
        stand = stand_in(run, model == "toy", model is not None) if run else Stand({})
        setup = read_setup(given_of(context.params, stand), _say, stand.pools, stand.notes)
        code = asyncio.run(_serve(setup, ask_prompt))
    if code:
        raise typer.Exit(code)


async def _serve(setup: Setup, prompt: str | None) -> int:
    for note in setup.notes:
        _say(f"note: {note}")
    with run_directory() as folder:
        logs = setup.logs or folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        programs = setup.fleet.programs(folder, new_token())
        supervisor = Supervisor(programs, logs, _say)

        async def up() -> None:
            _show(setup, folder, logs)
            if prompt:
                await asyncio.to_thread(_answer, setup.fleet.gateway, prompt)

        return await supervisor.run(up)


async def _serve_engines(given: Mapping[str, Any], logs: str | None, prompt: str | None, log_json: bool) -> int:
    """The pairs are checked, then the gateway starts with a canary."""
    asked = read_engines(given, _say)
    for note in asked.notes:
        _say(f"note: {note}")
    foreign, report = check_pairs(asked)
    _say(checked(report))
    with run_directory() as folder:
        place = Path(logs).expanduser().absolute() if logs else folder / "logs"
        place.mkdir(parents=True, exist_ok=True)
        environment = {"DIPTYCH_LOG": "json"} if log_json else {}
        supervisor = Supervisor([program(foreign, folder, new_token(), environment)], place, _say)
        url = foreign.listen.url

        async def up() -> None:
            admin = folder / ADMIN_TOKEN
            lines = [
                f"{given['engine']} workers are served at {url}/v1, over {foreign.protocol}",
                *(f"  {role:<10} {each}" for role, urls in foreign.urls.items() for each in urls),
                *_looks(url, admin, place),
                f'  canary     curl -X POST {url}/admin/canary -H "authorization: Bearer $(cat {admin})"',
            ]
            out.print("\n".join(lines), markup=False, soft_wrap=True)
            if prompt:
                await asyncio.to_thread(_answer, foreign.listen, prompt)

        return await supervisor.run(up)


def _looks(url: str, admin: Path, logs: Path) -> list[str]:
    """Where to look next."""
    return [
        f"  live page  {url}/ui  (its token is in {admin})",
        f"  terminal   diptych top --url {url} --token-file {admin}",
        f"  metrics    {url}/metrics",
        f"  logs       {logs}",
    ]


def _show(setup: Setup, folder: Path, logs: Path) -> None:
    """Where to look next."""
    url = setup.fleet.url
    lines = [
        f"{setup.fleet.gateway.model} is served at {url}/v1",
        *(
            f"  {pool.role:<10} {pool.count} × {_engine(pool.engine)}, {pool.threads} thread{'s' * (pool.threads > 1)}"
            for pool in setup.fleet.pools
        ),
        *(f"  {each.role:<10} {each.address}" for each in setup.fleet.elsewhere),
        *_looks(url, folder / ADMIN_TOKEN, logs),
        f"  try        curl {url}/v1/completions -H 'content-type: application/json' "
        f'-d \'{{"model": "{setup.fleet.gateway.model}", "prompt": "Hello", "max_tokens": 16}}\'',
    ]
    out.print("\n".join(lines), markup=False, soft_wrap=True)


def _engine(engine: Any) -> str:
    weights = getattr(engine, "weights", "toy")
    return f"{getattr(engine, 'device', 'cpu')} {weights} weights, {engine.kv} KV, {engine.blocks:,} blocks"


def _answer(settings: Settings, prompt: str) -> None:
    out.print(f"\n> {prompt}", markup=False, soft_wrap=True)
    out.print(ask(settings, prompt), markup=False, soft_wrap=True)


def _say(text: str) -> None:
    err.print(text, markup=False, soft_wrap=True)
