"""`diptych check`: does this prefill/decode pair mean the same by its KV, before any traffic."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from diptych.catalog.catalog import Catalog
from diptych.cli.output import out, print_json
from diptych.deploy.commands.read import read_pair
from diptych.deploy.fetch import OPEN, Access
from diptych.deploy.folders import with_folders
from diptych.deploy.read import read_deployment, together
from diptych.design.axes import Role
from diptych.engines.check import Report
from diptych.engines.check import check as check_deployment
from diptych.engines.deployment import Deployment
from diptych.engines.engine import engine_at
from diptych.engines.rule import Severity
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.report.checked import check_github, check_json, check_sarif, check_text

FORMATS = ("text", "json", "sarif", "github")
Commands = list[str] | None


def _option(help: str, metavar: str, *names: str) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|URL]...", help="Manifests, compose files or scripts (- is standard input); URLs with --live."
        ),
    ] = None,
    prefill: Annotated[Commands, _option("The launch command of prefill; repeatable.", "COMMAND")] = None,
    decode: Annotated[Commands, _option("The launch command of decode; repeatable.", "COMMAND")] = None,
    live: Annotated[bool, typer.Option("--live", help="Ask the running servers at these URLs what they are.")] = False,
    prefill_gpu: Annotated[str | None, _option("What prefill runs on, where nothing says it.", "ACCELERATOR")] = None,
    decode_gpu: Annotated[str | None, _option("What decode runs on, where nothing says it.", "ACCELERATOR")] = None,
    tls_ca: Annotated[str | None, _option("With --live: who signs the servers' certificates, PEM.", "FILE")] = None,
    token_file: Annotated[str | None, _option("With --live: the key that servers ask for.", "FILE")] = None,
    engine: Annotated[str | None, _option("vllm@0.33: the release, where nothing says it.", "ENGINE@VERSION")] = None,
    catalog: Annotated[list[str] | None, _option("Your YAML over the catalog; may be repeated.", "FILE")] = None,
    form: Annotated[str, _option(f"One of {', '.join(FORMATS)}.", "FORMAT", "--format")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="What is only slow is a failure too.")] = False,
) -> None:
    """Check that prefill and decode can share KV: what fails, what is silently wrong, what is slow, and what to change.

    Exit code 0: nothing found, or only what is slow. 1: a finding. 2: the input could not be read.

    Examples:

      diptych check --prefill "vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8 ..." --decode "vllm serve ..." --decode-gpu MI300X

      diptych check manifest.yaml --format github

      diptych check --live http://p:8100 http://d:8200
    """
    wanted = "json" if as_json else _format(form)
    known = Catalog.load(*(catalog or ()))
    reports = [check_deployment(_told(each, prefill_gpu, decode_gpu, engine, known, live), known)
               for each in _deployments(files or [], prefill or [], decode or [], live, tls_ca, token_file)]  # fmt: skip
    for report in reports:
        _print(report, wanted)
    if any(_fails(report, strict) for report in reports):
        raise typer.Exit(1)


def _fails(report: Report, strict: bool) -> bool:
    serious = any(strict or each.severity is not Severity.SLOW for each in report.broken)
    return serious or bool(report.deployment.findings)


def _deployments(
    files: list[str], prefill: list[str], decode: list[str], live: bool, tls_ca: str | None, token_file: str | None
) -> list[Deployment]:
    """What is to be checked: one source, or several files each on its own."""
    if bool(files) == bool(prefill or decode) or (live and not files):
        problem = "one kind of source at a time" if files else "nothing to check"
        expected = 'a file, --prefill "COMMAND" --decode "COMMAND", or --live URL URL'
        raise InvalidInput(Finding("FILE", problem, expected))
    if live:
        from diptych.deploy.live import probe

        return [probe(files, access=_access(files, tls_ca, token_file))]
    for flag, value in (("--tls-ca", tls_ca), ("--token-file", token_file)):
        if value is not None:
            raise InvalidInput(Finding(flag, "is given without --live", "it, beside --live URL URL"))
    if files:
        return _together([read_deployment(sys.stdin.read() if name == "-" else Path(name)) for name in files])
    missing = [name for name, texts in (("--prefill", prefill), ("--decode", decode)) if not texts]
    if missing:
        raise InvalidInput(Finding(missing[0], "is missing", "the launch command of the other role"))
    return [read_pair(prefill, decode, Path.cwd())]


def _access(urls: list[str], tls_ca: str | None, token_file: str | None) -> Access:
    """What servers ask for. Raises InvalidInput."""
    if not (tls_ca or token_file):
        return OPEN
    from diptych.cli.serve_access import context, is_here
    from diptych.cli.serve_listen import read_token

    clear = [url for url in urls if not url.startswith("https://") and not is_here(url)]
    if token_file and clear:
        raise InvalidInput(Finding("--token-file", f"would be sent in clear to {clear[0]}", "https://HOST:PORT"))

    return Access(read_token(token_file) if token_file else "", context(tls_ca or "", "", ""))


def _together(read: list[Deployment]) -> list[Deployment]:
    """Files that hold a pair stand alone, those of one role each, such as scripts, are one deployment; a router joins either."""
    whole = [each for each in read if any(True for _ in each.pairs())]
    parts = [each for each in read if each not in whole]
    router = next((each.router for each in parts if each.router), None)
    if whole:
        alone = [each for each in parts if each.roles]
        return [replace(each, router=each.router or router) for each in whole] + alone
    if len(parts) < 2:
        return parts
    return [together(parts)]


def _told(
    deployment: Deployment,
    prefill_gpu: str | None,
    decode_gpu: str | None,
    engine: str | None,
    catalog: Catalog,
    live: bool = False,
) -> Deployment:
    """The deployment with what the command line adds where the source says nothing; a pair must be in it."""
    gpus = {Role.PREFILL: prefill_gpu, Role.DECODE: decode_gpu}
    named = {role: known_gpu(name, role, catalog) for role, name in gpus.items() if name}
    release = engine_at(engine) if engine else None
    roles = tuple(
        replace(
            config,
            gpu=named.get(config.role, config.gpu),
            version=config.version or (release[1] if release and release[0] is config.engine else None),
        )
        for config in deployment.roles
    )
    told = with_folders(replace(deployment, roles=roles), loopback_only=live)
    if not any(True for _ in told.pairs()):
        kinds = ", ".join(f"{config.name or config.engine} is {config.role}" for config in roles)
        raise InvalidInput(Finding(deployment.source, f"no prefill/decode pair in it ({kinds})", "a role of each"))
    return told


def known_gpu(name: str, role: Role, catalog: Catalog) -> str:
    """The catalog's name of an accelerator that the command line gives a role, or cpu. Raises InvalidInput."""
    if name.strip().casefold() == "cpu":
        return "cpu"
    found = catalog.find_accelerator(name)
    if found is None:
        hint = did_you_mean(name, catalog.accelerator_names)
        raise InvalidInput(Finding(f"--{role}-gpu", f"unknown accelerator {name!r}", hint=hint))
    return found.name


def _format(text: str) -> str:
    if text not in FORMATS:
        raise InvalidInput(
            Finding("--format", f"unknown format {text!r}", ", ".join(FORMATS), did_you_mean(text, FORMATS))
        )
    return text


def _print(report: Report, wanted: str) -> None:
    if wanted == "json":
        print_json(check_json(report))
    elif wanted == "sarif":
        print_json(check_sarif(report))
    elif wanted == "github":
        sys.stdout.write(check_github(report))
    else:
        out.print(check_text(report, out.width), soft_wrap=True)
