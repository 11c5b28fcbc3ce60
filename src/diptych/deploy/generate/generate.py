"""A design as a folder: what starts it on the target, how to prove it works, what to watch, what to do when it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files as package

from diptych.catalog.catalog import Catalog
from diptych.deploy.generate import compose, dynamo, kserve, llm_d
from diptych.deploy.generate.guide import guide
from diptych.deploy.generate.monitoring import monitoring
from diptych.deploy.generate.request import Request, inexpressible
from diptych.deploy.generate.scripts import scripts
from diptych.deploy.generate.target import Target
from diptych.engines.check import Report, check
from diptych.engines.handling import Refusal
from diptych.engines.rule import Broken, Severity

_WRITERS: Mapping[Target, Callable[[Request], dict[str, str]]] = {
    Target.VLLM: scripts,
    Target.SGLANG: scripts,
    Target.COMPOSE: compose.files,
    Target.DYNAMO_VLLM: dynamo.manifests,
    Target.DYNAMO_SGLANG: dynamo.manifests,
    Target.KSERVE: kserve.manifests,
    Target.LLM_D: llm_d.manifests,
}


@dataclass(frozen=True, slots=True)
class Generated:
    """The files by name, or why there are none: choices without words on the target, and rules that the result would break.

    `report` is the check of what would be started; what is merely slow stays in it and is told in the README.
    """

    files: Mapping[str, str]
    refused: tuple[Refusal, ...]
    broken: tuple[Broken, ...]
    report: Report

    @property
    def is_refused(self) -> bool:
        return bool(self.refused or self.broken)


def generate(request: Request, catalog: Catalog) -> Generated:
    """Every file of a deployment, or the refusals; never a file that would not work."""
    refused = inexpressible(request)
    report = check(request.deployment, catalog)
    broken = tuple(each for each in report.broken if each.severity is not Severity.SLOW)
    if refused or broken:
        return Generated({}, refused, broken, report)
    files = {
        "README.md": guide(request, report),
        **_WRITERS[request.target](request),
        **({"canary.py": _canary()} if request.design.is_disaggregated else {}),
        **monitoring(request),
    }
    return Generated(files, (), (), report)


def _canary() -> str:
    return (package("diptych.deploy.generate") / "canary.py").read_text(encoding="utf-8")
