"""What `diptych deploy` says: the files, what to do next, and why there are none."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from diptych.deploy.generate.generate import Generated
from diptych.deploy.generate.request import Request
from diptych.engines.rule import Broken, Severity


def deployment_text(request: Request, made: Generated, written: tuple[str, ...], notes: tuple[str, ...]) -> Text:
    """The files that were written, what the check says of them, and the next step."""
    lines = [f"{request.name}: {request.model.name} for {request.target}, {request.target.engine} {request.release}"]
    lines += [f"  {path}" for path in written] or [f"  {name}" for name in made.files]
    lines += [f"! {note}" for note in notes]
    lines += [f"! {_sentence(each)}" for each in made.report.broken if each.severity is Severity.SLOW]
    lines += [f"? not known, so not checked: {said}" for said in made.report.unknown]
    lines.append("Next: read README.md there" if written else "Nothing was written: give --out DIR")
    return Text("\n".join(lines))


def refusal_text(made: Generated, request: Request, close: str) -> str:
    """Every choice that cannot be expressed, every rule that would break, and the nearest design."""
    lines = [f"{request.target} cannot start this design"]
    lines += [f"  {each.choice}: {each.sentence}. Nearest: {each.nearest}" for each in made.refused]
    told = {line for each in made.refused for line in (each.choice,)}
    lines += [f"  {_sentence(each)}" for each in made.broken if not (told and each.rule.id in _SAID_BY_REFUSALS)]
    if close:
        lines.append("The nearest design that it can be told:")
        lines.append(f'  diptych deploy --design "{close}" --model {request.model.name} --target {request.target}')
    lines.append(f"Or plan for this engine: diptych plan ... --engine {request.target.engine}@{request.release}")
    return "\n".join(lines)


_SAID_BY_REFUSALS = ("VN4", "SG2")
"""Rules whose clash a refusal has told already: unlike KV on the two roles."""


def _sentence(each: Broken) -> str:
    values = " against ".join(filter(None, (each.clash.prefill, each.clash.decode)))
    return f"{each.rule.id} ({each.severity}): {each.rule.sentence.rstrip('.')}: {values}; {each.clash.change}"


def deployment_json(request: Request, made: Generated) -> dict[str, Any]:
    """The files by name, and the rules that they keep slowly."""
    return {
        "kind": "deployment",
        "name": request.name,
        "model": request.model.name,
        "target": str(request.target),
        "engine": f"{request.target.engine}@{request.release}",
        "files": dict(made.files),
        "slow": [{"rule": each.rule.id, "sentence": _sentence(each)} for each in made.report.broken],
        "unknown": list(made.report.unknown),
    }
