"""Which kind of manifest a text is, and what is understood of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from diptych.deploy.commands.roles import Reading
from diptych.deploy.manifests.compose import read_compose
from diptych.deploy.manifests.dynamo import read_dynamo
from diptych.deploy.manifests.kserve import read_kserve
from diptych.deploy.manifests.modelservice import read_modelservice
from diptych.deploy.manifests.production_stack import read_production_stack
from diptych.deploy.manifests.schema import Unfamiliar, pod_template, schema, violations
from diptych.deploy.manifests.trtllm import SERVERS, read_trtllm
from diptych.deploy.manifests.workloads import WORKLOADS, read_workloads
from diptych.deploy.safe_yaml import Node
from diptych.engines.deployment import Deployment
from diptych.errors import Finding, InvalidInput, did_you_mean

CUSTOM: dict[str, tuple[str, tuple[str, ...], Callable[[Node, Reading], Deployment]]] = {
    "DynamoGraphDeployment": ("nvidia.com", ("v1alpha1", "v1beta1"), read_dynamo),
    "LLMInferenceService": ("serving.kserve.io", ("v1alpha1", "v1alpha2"), read_kserve),
}
"""Custom resources: kind → API group, the versions whose schema is known, and their reader."""

MAX_VIOLATIONS = 100
"""More than anyone corrects in one round."""

UNDERSTOOD = (
    "a DynamoGraphDeployment, an LLMInferenceService, Deployments, StatefulSets, LeaderWorkerSets, a DisaggregatedSet or Pods, "
    "ModelService or production-stack Helm values, a compose file, a trtllm-serve disaggregated configuration, or a shell script"
)


def read_documents(documents: list[Node], name: str, reading: Reading) -> Deployment:
    """The documents of one manifest file as a deployment. Raises InvalidInput where none is of a kind that is understood."""
    if not documents:
        raise InvalidInput(Finding(name, "empty", UNDERSTOOD))
    mappings = [each for each in documents if isinstance(each.value, dict)]
    customs = [each for each in mappings if each.text("kind") in CUSTOM]
    if customs:
        deployment = _custom(customs, reading)
    elif any(each.text("kind") for each in mappings):
        deployment = _plain(mappings, reading)
    else:
        deployment = _without_kind(mappings, name, reading)
    if not deployment.roles and deployment.router is None:
        raise InvalidInput(Finding(name, _nothing(mappings), UNDERSTOOD))
    return replace(deployment, source=name)


def with_violations(deployment: Deployment, found: Iterable[Finding]) -> Deployment:
    """The deployment with what its schema refuses, before its other findings, and with what the schema may be too old for."""
    each = tuple(islice(found, MAX_VIOLATIONS))
    strange = tuple(finding for finding in each if isinstance(finding, Unfamiliar))
    broken = tuple(finding for finding in each if not isinstance(finding, Unfamiliar))
    return replace(deployment, findings=broken + deployment.findings, unknown=strange + deployment.unknown)


def _custom(documents: list[Node], reading: Reading) -> Deployment:
    if len(documents) > 1:
        found = ", ".join(each.text("metadata", "name") or each.where for each in documents)
        raise InvalidInput(
            Finding(documents[1].where, f"several graphs in one file: {found}", "one, as they do not meet")
        )
    (document,) = documents
    group, known, read = CUSTOM[document.text("kind")]
    given, _, version = document.text("apiVersion").partition("/")
    if given != group or version not in known:
        at = document.get("apiVersion") or document
        written = document.text("apiVersion") or "not set"
        hint = did_you_mean(written, [f"{group}/{each}" for each in known])
        raise InvalidInput(Finding(at.where, f"apiVersion of a {document.text('kind')} is {written}", hint=hint))
    broken = violations(document, schema(f"{document.text('kind').casefold()}.{version}"))
    return with_violations(read(document, reading), broken)


def _plain(documents: list[Node], reading: Reading) -> Deployment:
    found = (finding for document in documents for finding in _workload_violations(document))
    return with_violations(read_workloads(documents, reading), found)


def _workload_violations(document: Node) -> Iterator[Finding]:
    """LeaderWorkerSets by their schema; the pod templates of Kubernetes' own workloads by the one that it has inside."""
    kind = document.text("kind")
    if kind == "List":
        for item in document.elements("items"):
            yield from _workload_violations(item)
    elif kind in ("LeaderWorkerSet", "DisaggregatedSet"):
        yield from violations(document, schema(f"{kind.casefold()}.v1"))
    elif kind == "InferencePool" and document.text("apiVersion").endswith("/v1"):
        yield from violations(document, schema("inferencepool.v1"))
    elif kind == "Pod":
        spec = document.get("spec")
        if spec is not None:
            yield from violations(spec, pod_template()["properties"]["spec"], "spec")
    elif kind in WORKLOADS:
        template = document.get("spec", "template")
        if template is not None:
            yield from violations(template, pod_template(), "spec.template")


def _without_kind(documents: list[Node], name: str, reading: Reading) -> Deployment:
    """Helm values, compose files and configurations tell themselves by their top-level names."""
    if len(documents) != 1:
        raise InvalidInput(Finding(name, _nothing(documents), UNDERSTOOD))
    (document,) = documents
    keys = document.entries().keys()
    if keys & SERVERS.keys():
        return read_trtllm(document, reading)
    if "servingEngineSpec" in keys:
        return read_production_stack(document, reading)
    if "services" in keys:
        return read_compose(document, reading)
    if "modelArtifacts" in keys or {"prefill", "decode"} <= keys:
        found = violations(document, schema("modelservice.values"))
        return with_violations(read_modelservice(document, reading), found)
    raise InvalidInput(Finding(name, _nothing(documents), UNDERSTOOD))


def _nothing(documents: list[Node]) -> str:
    """What was found instead, by kind, or by the first names of a file without one."""
    kinds = [each.text("kind") for each in documents if each.text("kind")]
    if kinds:
        return f"{', '.join(dict.fromkeys(kinds))}: no engine that is known is started"
    names = [key for each in documents for key in each.entries()][:5]
    return f"a file of {', '.join(names)}" if names else "no mapping"
