"""The closed schemas: our reading of them against the jsonschema package, on manifests and on what random edits make of them."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from diptych.deploy.manifests.schema import pod_template, schema, violations
from diptych.deploy.safe_yaml import load_text

DATA = Path(__file__).parents[2] / "data" / "manifests"
KINDS = {
    "dynamo_vllm": "dynamographdeployment.v1beta1",
    "dynamo_sglang": "dynamographdeployment.v1beta1",
    "kserve": "llminferenceservice.v1alpha2",
    "llm_d": "modelservice.values",
}
NAMES = (
    *dict.fromkeys(KINDS.values()),
    "dynamographdeployment.v1alpha1",
    "llminferenceservice.v1alpha1",
    "leaderworkerset.v1",
    "disaggregatedset.v1",
    "inferencepool.v1",
)


def ours(document, rules):
    """Whether our reading finds a field, a type or a value that the schema refuses; near-misses in open objects aside."""
    (node,) = load_text(json.dumps(document), "m")
    return [str(each) for each in violations(node, rules) if "not read by anything" not in each.problem]


def theirs(document, rules):
    return [error.message for error in jsonschema.Draft7Validator(rules).iter_errors(document)]


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_a_schema_and_closed(name):
    rules = schema(name)
    jsonschema.Draft7Validator.check_schema(rules)
    opened = [path for path, each in objects(rules) if "properties" in each and "additionalProperties" not in each]
    assert [path for path in opened if not path.endswith("eppConfig/properties/config")] == []  # it asks to stay open


def objects(rules, path=""):
    if isinstance(rules, dict):
        yield path, rules
        for key, value in rules.items():
            yield from objects(value, f"{path}/{key}")
    elif isinstance(rules, list):
        for number, value in enumerate(rules):
            yield from objects(value, f"{path}/{number}")


def edits(document):
    """Every place of a document, as a path of keys."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield (key,)
            yield from ((key, *rest) for rest in edits(value))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield (number,)
            yield from ((number, *rest) for rest in edits(value))


def edited(document, path, how, value):
    changed = copy.deepcopy(document)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if how == "rename" and isinstance(parent, dict):
        parent[f"{path[-1]}x"] = parent.pop(path[-1])
    elif how == "remove":
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed


WHOLE = {name: yaml.safe_load((DATA / f"{name}.yaml").read_text()) for name in KINDS}
PLACES = [(name, path) for name, document in WHOLE.items() for path in edits(document) if path[0] != "metadata"]
VALUES = st.sampled_from([True, 3, -1, 2.5, "text", "", "5Gi", [], {}, {"a": "b"}, ["a"], [{"name": "x"}]])


@given(st.sampled_from(PLACES), st.sampled_from(["replace", "rename", "remove"]), VALUES)
def test_our_reading_agrees_with_the_library(place, how, value):
    name, path = place
    document, rules = edited(WHOLE[name], path, how, value), schema(KINDS[name])
    assert bool(ours(document, rules)) == bool(theirs(document, rules)), (
        ours(document, rules),
        theirs(document, rules),
    )


@pytest.mark.parametrize("name", KINDS)
def test_the_manifests_satisfy_both(name):
    assert ours(WHOLE[name], schema(KINDS[name])) == theirs(WHOLE[name], schema(KINDS[name])) == []


def test_the_pod_template_is_that_of_kubernetes():
    spec = pod_template()["properties"]["spec"]["properties"]
    assert {"nodeSelector", "tolerations", "containers", "initContainers", "affinity"} <= spec.keys()
