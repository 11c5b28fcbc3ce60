"""`diptych deploy`: a plan or a design as files for someone else's engine, or what that engine cannot express."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from diptych.cli.deploy_inputs import MARK, Setup, read_setup
from diptych.cli.output import err, out, print_json, writing
from diptych.deploy.generate.generate import Generated, generate
from diptych.deploy.generate.request import nearest
from diptych.deploy.generate.target import Target
from diptych.design.text import format_design
from diptych.errors import Unsupported
from diptych.report.deployment import deployment_json, deployment_text, refusal_text
from diptych.report.folder import INPUTS, as_json, write_folder

Words = str | None


def _option(help: str, metavar: str, *names: str) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


def deploy(
    context: typer.Context,
    run: Annotated[
        Words,
        typer.Argument(metavar="[RUN]", help="A folder of plan or simulate, a plan.json, or a design in YAML or JSON."),
    ] = None,
    design: Annotated[Words, _option('"3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, pull".', "DESIGN")] = None,
    model: Annotated[Words, _option("A name of the catalog, a folder, or a Hugging Face config.json.", "MODEL")] = None,
    target: Annotated[Words, _option(f"One of {', '.join(Target)}.", "TARGET")] = None,
    connector: Annotated[
        Words, _option("diptych: ours inside vLLM, which converts between roles. Else the engine's own.", "CONNECTOR")
    ] = None,
    engine_version: Annotated[Words, _option("The engine's release, such as 0.33.", "VERSION")] = None,
    name: Annotated[Words, _option("What the deployment is called.", "NAME")] = None,
    checkpoint: Annotated[
        list[str] | None,
        _option("decode=ORG/NAME: what a role loads instead of the model's own; repeatable.", "ROLE=NAME"),
    ] = None,
    image: Annotated[
        list[str] | None, _option("A container image for all, or prefill=IMAGE for one role; repeatable.", "IMAGE")
    ] = None,
    catalog: Annotated[list[str] | None, _option("Your YAML over the catalog; may be repeated.", "FILE")] = None,
    out_folder: Annotated[Words, _option("Write the files here.", "DIR", "--out")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The files and the check as one JSON document on stdout.")
    ] = False,
) -> None:
    """Write what starts a design on an engine: commands or manifests, router, dashboards, alerts, a canary, a README.

    A choice that the target cannot express is refused with the nearest that it can. Nothing is written then.

    Examples:

      diptych deploy runs/conv --target vllm --out deploy/

      diptych deploy runs/conv --target vllm --connector diptych --out deploy/

      diptych deploy --design "3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, pull" --model Qwen3-32B \\
          --target dynamo-vllm --out deploy/
    """
    setup = read_setup(dict(context.params), lambda text: err.print(text, markup=False))
    made = generate(setup.request, setup.catalog)
    if made.is_refused:
        raise Unsupported(refusal_text(made, setup.request, _nearest(setup)))
    written = _write(setup, made)
    if as_json:
        print_json(deployment_json(setup.request, made))
    else:
        out.print(deployment_text(setup.request, made, written, setup.notes))


def _nearest(setup: Setup) -> str:
    """The nearest expressible design in words, or nothing when that would be refused as well."""
    close = nearest(setup.request)
    if close == setup.request.design or generate(replace(setup.request, design=close), setup.catalog).is_refused:
        return ""
    return format_design(close, setup.catalog)


def _write(setup: Setup, made: Generated) -> tuple[str, ...]:
    if setup.out is None:
        return ()
    inputs = as_json({"written_by": MARK, "command": setup.request.command, **setup.inputs})
    with writing("--out"):
        return tuple(str(path) for path in write_folder(setup.out, {**made.files, INPUTS: inputs}))
