"""From the words of `diptych deploy` to what is to be deployed: every mistake found before a file is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.cli.plan_inputs import Reader, command_line, recorded
from diptych.cli.target_inputs import Target as Subject
from diptych.cli.target_inputs import read_target
from diptych.deploy.generate.request import NO_SLO, Answer, Request
from diptych.deploy.generate.target import Target
from diptych.design.axes import Role
from diptych.design.design import Design
from diptych.engines.deployment import UNKNOWN, Expected
from diptych.engines.engine import Version, known_version, version
from diptych.engines.handling import DIPTYCH, STOCK
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.metrics.slo import SLO
from diptych.planner.plan import Plan
from diptych.report.folder import refusal

MARK = "diptych deploy"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_ROLES = {str(role): role for role in (Role.PREFILL, Role.DECODE, Role.COLOCATED)}


@dataclass(frozen=True, slots=True)
class Setup:
    """A deployment without mistakes, ready to be written."""

    request: Request
    catalog: Catalog
    notes: tuple[str, ...]
    out: Path | None
    inputs: Mapping[str, Any]


def read_setup(given: Mapping[str, Any], say: Callable[[str], None]) -> Setup:
    """Check every word, read every file, resolve every name.

    Raises:
        InvalidInput: all findings at once.
    """
    reader = Reader(given, say, None)
    catalog = reader.attempt("--catalog", Catalog.load, *(given.get("catalog") or ())) or Catalog.load()
    model = reader.value("model", catalog.model)
    subject = read_target(reader, reader.given.get("run"), catalog, model, None)
    reader.need("target", ", ".join(Target))
    target = reader.value("target", _target)
    connector = reader.value("connector", _connector) or STOCK
    release = reader.value("engine_version", lambda text: _release(text, target))
    name = reader.value("name", _name) or "diptych"
    checkpoints = reader.attempt("--checkpoint", _by_role, given.get("checkpoint") or (), "--checkpoint") or {}
    images = reader.attempt("--image", _images, given.get("image") or ()) or {}
    out = Path(given["out_folder"]) if given.get("out_folder") else None
    if out is not None and (finding := refusal(out, MARK)):
        reader.findings.append(finding)
    if reader.findings:
        raise InvalidInput(dict.fromkeys(reader.findings))
    assert subject is not None
    assert target is not None
    named = {key: value for key, value in given.items() if key != "run"}
    words = ("deploy", given["run"]) if given.get("run") else ("deploy",)
    command = command_line(named, *words)
    request = replace(_request(subject, target, release, name, checkpoints, images, command), connector=connector)
    return Setup(request, catalog, subject.notes, out, {"run": given.get("run"), **recorded(named)})


def _request(
    subject: Subject,
    target: Target,
    release: Version | None,
    name: str,
    checkpoints: Mapping[Role, str],
    images: Mapping[str, str],
    command: str,
) -> Request:
    plan = subject.plan
    return Request(
        subject.design,
        _model_of(subject.design),
        target,
        release,
        name,
        checkpoints,
        images,
        _spans(plan),
        _expected(plan),
        SLO.parse(subject.slo) if subject.slo and subject.slo != "none" else NO_SLO,
        plan.headline if plan else "",
        tuple(Answer(item.question, item.status, item.detail, item.action) for item in plan.checklist) if plan else (),
        command,
    )


def _model_of(design: Design) -> Any:
    return design.pools[0].members[0].worker.model


def _spans(plan: Plan | None) -> dict[Role, int]:
    """The nodes of one worker, where a plan rents instances that are smaller than its workers."""
    if plan is None:
        return {}
    wide = {
        pool.role: max(member.instances // max(member.workers, 1) for member in pool.members)
        for pool in plan.best.pools
    }
    return {role: nodes for role, nodes in wide.items() if nodes > 1}


def _expected(plan: Plan | None) -> Expected:
    """The lengths that the plan was made for."""
    if plan is None:
        return UNKNOWN
    workload = plan.question.workload
    return Expected(prompt_p50=workload.isl_p50, output_p50=workload.osl_p50)


def _target(text: str) -> Target:
    try:
        return Target(text.strip().casefold())
    except ValueError:
        known = [str(target) for target in Target]
        raise InvalidInput(Finding("--target", f"unknown target {text!r}", hint=did_you_mean(text, known))) from None


def _connector(text: str) -> str:
    if text.strip().casefold() != DIPTYCH:
        hint = did_you_mean(text, [DIPTYCH])
        raise InvalidInput(Finding("--connector", f"unknown connector {text[:40]!r}", DIPTYCH, hint))
    return DIPTYCH


def _release(text: str, target: Target | None) -> Version:
    """A release of the target's engine; only its spelling is looked at where no target is known."""
    return known_version(text, target.engine, "--engine-version") if target else version(text, "--engine-version")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        expected = "at most 40 small letters, digits and dashes, as clusters ask for"
        raise InvalidInput(Finding("--name", f"{text!r} cannot name a deployment", expected))
    return text


_REFERENCE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/:@]{0,255}")


def _by_role(words: tuple[str, ...], where: str) -> dict[Role, str]:
    """'decode=ORG/NAME' for each role that has its own."""
    found, findings = {}, []
    for word in words:
        role, _, value = word.partition("=")
        if role not in _ROLES:
            findings.append(
                Finding(where, f"{word!r} names no role", "such as decode=ORG/NAME", did_you_mean(role, list(_ROLES)))
            )
        elif not _REFERENCE.fullmatch(value):
            findings.append(Finding(where, f"{value!r} is not a repository or path", "such as decode=ORG/NAME"))
        else:
            found[_ROLES[role]] = value
    if findings:
        raise InvalidInput(findings)
    return found


def _images(words: tuple[str, ...]) -> dict[str, str]:
    """An image for all, or 'prefill=IMAGE' for one role."""
    named = [word if "=" in word else f"={word}" for word in words]
    pairs = [word.partition("=")[::2] for word in named]
    known = ("", "frontend", "router", *_ROLES)
    findings = [
        Finding("--image", f"{role!r} is no role", ", ".join(known[1:])) for role, _ in pairs if role not in known
    ]
    findings += [
        Finding("--image", f"{image!r} is not an image", "such as vllm/vllm-openai:v0.33.0")
        for _, image in pairs
        if not _REFERENCE.fullmatch(image)
    ]
    if findings:
        raise InvalidInput(findings)
    return dict(pairs)
