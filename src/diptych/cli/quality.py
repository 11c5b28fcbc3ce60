"""`diptych quality`: what a precision of weights or KV costs in quality, in either role, measured on a text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from diptych.cli.output import out, print_json, progress
from diptych.errors import Finding, InvalidInput

if TYPE_CHECKING:
    from diptych.runtime.engines.torch.quality import Quality, Role

MAX_TEXT_BYTES = 64 << 20


def quality(
    model: Annotated[Path, typer.Option(help="a checkpoint: a directory with safetensors and tokenizer.json")],
    text: Annotated[Path, typer.Option(help="the text to be measured on, UTF-8")],
    weights: Annotated[str, typer.Option(help="precisions of weights, in all pairs: fp32, bf16, int8")] = "bf16,int8",
    kv: Annotated[
        str, typer.Option(help="precisions of KV: fp32, bf16, fp16, fp8, int8; crossing only: int4, nvfp4")
    ] = ("fp8,int8,int4"),
    baseline: Annotated[str, typer.Option(help="what all are compared with, weights and KV: fp32 or bf16")] = "fp32",
    context: Annotated[int, typer.Option(min=1, help="tokens that prefill computes, of every window")] = 256,
    scored: Annotated[int, typer.Option(min=2, help="tokens that decode is forced along, of every window")] = 64,
    windows: Annotated[int, typer.Option(min=1, help="windows at most, evenly over the text")] = 8,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Measure what precision costs: perplexity, greedy agreement and KL, per role, against a baseline.

    Prefill computes the context, its KV crosses, decode is forced along the text. Weights are measured in every pair of roles;
    KV as what crosses, as what decode keeps, and as what both keep.
    """
    from diptych.runtime.engines.torch.engine import open_checkpoint
    from diptych.runtime.engines.torch.quality import Gauge, Role, Windows, pairings

    if baseline not in ("fp32", "bf16"):
        raise InvalidInput(Finding("--baseline", f"is {baseline[:40]!r}", "fp32 or bf16"))
    base = Role(baseline, baseline)
    asked = pairings(base, _names(weights), _names(kv))
    cut = Windows.of(_tokens(model, text), context, scored, windows)
    gauge = Gauge(open_checkpoint(model), cut, device)
    with progress(f"measuring {len(asked)} pairings", quiet=as_json) as update:
        found = list(gauge.measure(base, asked, lambda done: update(done, len(asked))))
    if as_json:
        print_json(_document(model, text, base, found, context))
        return
    out.print(_table(found, base))
    said = f"{found[0].tokens} tokens scored, each window after {context} tokens of context; KL in nats a token."
    out.print(f"{said} ± is one standard error over the tokens.")


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _tokens(model: Path, text: Path) -> list[int]:
    """The text in the model's tokens."""
    from tokenizers import Tokenizer

    try:
        if text.stat().st_size > MAX_TEXT_BYTES:
            raise InvalidInput(Finding("--text", f"{text} is too large", f"at most {MAX_TEXT_BYTES:,} bytes"))
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(Finding("--text", f"cannot read {text}: {error}", "a file of UTF-8 text")) from None
    file = model / "tokenizer.json"
    try:
        return list(Tokenizer.from_file(str(file)).encode(content, add_special_tokens=False).ids)
    except Exception as error:
        raise InvalidInput(
            Finding("--model", f"cannot read {file}: {error}", "a checkpoint with tokenizer.json")
        ) from None


def _document(model: Path, text: Path, base: Role, found: list[Quality], context: int) -> dict[str, Any]:
    rows = [{**asdict(each.pairing), **{name: getattr(each, name) for name in _NUMBERS}} for each in found]
    return {
        "model": str(model),
        "text": str(text),
        "baseline": asdict(base),
        "context": context,
        "tokens": found[0].tokens,
        "pairings": rows,
    }


_NUMBERS = ("perplexity", "change", "error", "agreement", "divergence")


def _table(found: list[Quality], base: Role) -> Table:
    table = Table(title=f"against {base.weights} weights and {base.kv} KV; each role as weights / KV")
    for name in ("prefill", "KV crosses as", "decode"):
        table.add_column(name)
    for name in ("perplexity", "change", "greedy agreement", "KL"):
        table.add_column(name, justify="right")
    for each in found:
        pairing = each.pairing
        table.add_row(
            f"{pairing.prefill.weights} / {pairing.prefill.kv}",
            pairing.wire or "it is",
            f"{pairing.decode.weights} / {pairing.decode.kv}",
            f"{each.perplexity:.3f}",
            f"{each.change:+.2%} ± {each.error:.2%}",
            f"{each.agreement:.1%}",
            f"{each.divergence:.2g}",
        )
    return table
