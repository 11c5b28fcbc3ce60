"""Whatever is in a file, a reader gives a deployment or a refusal in sentences, and nothing of a secret in either."""

import contextlib
import json
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diptych.catalog.catalog import Catalog
from diptych.deploy.commands.flags import Kind, flag_table
from diptych.deploy.commands.read import read_command, read_pair
from diptych.deploy.notes import Notes
from diptych.deploy.read import read_deployment
from diptych.engines.check import check
from diptych.engines.deployment import Deployment
from diptych.errors import InvalidInput

CATALOG = Catalog.load()
DATA = Path(__file__).parents[2] / "data" / "manifests"
TEXTS = [(DATA / f"{name}.yaml").read_text() for name in ("dynamo_vllm", "dynamo_sglang", "kserve", "llm_d")]
DOCUMENTS = [yaml.safe_load(text) for text in TEXTS]
NUMBERS = ("²", "٣", "9" * 5000, 0, -1, 1.5, 10**30, float("inf"))
ODD = st.sampled_from(
    [
        None,
        True,
        *NUMBERS,
        "",
        "x",
        "$(A)",
        "${",
        "--",
        "--=",
        "{{x}}",
        [],
        {},
        [None],
        [[]],
        [{}],
        {"a": None},
        {"name": []},
    ]
)
SCALARS = st.one_of(
    st.text(max_size=12), st.integers(-5, 10**12), st.sampled_from(["auto", "$X", "'", '"', "{", "[]", "1e9", "--x=y"])
)


def reads(text, name="x.yaml"):
    with contextlib.suppress(InvalidInput):
        assert isinstance(read_deployment(text, name), Deployment)


def places(document):
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in entries:
        yield (key,)
        yield from ((key, *rest) for rest in places(value))


PLACES = [(number, path) for number, document in enumerate(DOCUMENTS) for path in places(document)]


@given(st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=3))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_in_any_place_of_a_manifest(edits):
    number = edits[0][0][0]
    document = json.loads(json.dumps(DOCUMENTS[number]))
    for (other, path), value in edits:
        if other != number:
            continue
        parent = document
        with contextlib.suppress(KeyError, IndexError, TypeError):
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = value
    reads(yaml.safe_dump(document))


@given(st.sampled_from(TEXTS), st.integers(0, 5000), st.integers(0, 40), st.text(max_size=10))
@settings(max_examples=150)
def test_any_cut_in_the_text_of_a_manifest(text, start, length, instead):
    at = start % len(text)
    reads(text[:at] + instead + text[at + length :])


@pytest.mark.parametrize(
    "value", ["0x" + "f" * 6000, "1" * 6000, "1e999999", "0b" + "1" * 20_000, "1:" * 2000 + "1", ".inf", "0o7"]
)
@pytest.mark.parametrize("place", ["replicas: 2", '"64"', 'nvidia.com/gpu: "2"', "name: prefill"])
def test_numbers_of_every_length(value, place):
    key, colon, _ = place.rpartition(": ")
    reads(TEXTS[0].replace(place, f"{key}{colon}{value}", 1))


@given(st.text(max_size=200), st.sampled_from(["x.yaml", "x.sh", "x", "x.json"]))
@settings(max_examples=150)
def test_any_text(text, name):
    reads(text, name)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "kind",
                "services",
                "servingEngineSpec",
                "decode",
                "prefill",
                "modelArtifacts",
                "context_servers",
                "generation_servers",
                "spec",
                "items",
                "data",
                "metadata",
            ]
        ),
        st.recursive(
            ODD,
            lambda inner: st.dictionaries(
                st.sampled_from(
                    [
                        "modelSpec",
                        "command",
                        "environment",
                        "deploy",
                        "kv_cache_config",
                        "template",
                        "containers",
                        "args",
                        "env",
                        "x",
                    ]
                ),
                st.one_of(inner, st.lists(inner, max_size=3)),
                max_size=4,
            ),
            max_leaves=8,
        ),
        max_size=5,
    )
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_any_structure_under_the_names_that_tell_kinds(document):
    reads(yaml.safe_dump(document))


KINDS = (
    *("Deployment", "LeaderWorkerSet", "DisaggregatedSet", "Pod", "List", "ConfigMap"),
    *("DynamoGraphDeployment", "LLMInferenceService"),
)


@pytest.mark.parametrize("kind", KINDS)
@given(ODD, ODD)
@settings(max_examples=40)
def test_any_specification_of_every_kind(kind, spec, inner):
    group = {"DynamoGraphDeployment": "nvidia.com/v1alpha1", "LLMInferenceService": "serving.kserve.io/v1alpha1"}.get(
        kind, "v1"
    )
    document = {"kind": kind, "apiVersion": group, "spec": spec, "items": inner, "data": inner, "metadata": inner}
    reads(yaml.safe_dump(document))
    reads(
        yaml.safe_dump(
            {**document, "spec": {"template": inner, "roles": inner, "services": {"a": inner}, "prefill": inner}}
        )
    )


PROGRAMS = {"vllm": "vllm serve m", "sglang": "python -m sglang.launch_server", "dynamo.vllm": "python -m dynamo.vllm",
            "dynamo.trtllm": "python -m dynamo.trtllm", "trtllm-serve": "trtllm-serve m"}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_of_any_flag(program, data):
    spellings = sorted(flag_table(program).spellings)
    given_flags = data.draw(st.lists(st.tuples(st.sampled_from(spellings), SCALARS, st.booleans()), max_size=6))
    words = [
        shlex.quote(f"{flag}={value}") if joined else f"{flag} {shlex.quote(str(value))}"
        for flag, value, joined in given_flags
    ]
    with contextlib.suppress(InvalidInput):
        read_command(f"{PROGRAMS[program]} {' '.join(words)}", notes=Notes())


TELLING = (
    *("kv-transfer-config", "kv-cache-dtype", "block-size", "page-size", "tensor-parallel-size", "tp-size", "dtype"),
    *("attention-backend", "speculative-config", "decode-context-parallel-size", "pipeline-parallel-size"),
    *("kv-events-config", "disaggregation-transfer-backend", "disaggregation-bootstrap-port"),
    *("num-reserved-decode-tokens", "override-engine-args"),
)
WORTH = st.one_of(
    SCALARS,
    st.sampled_from(
        [
            '{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_connector_extra_config":{"kv_lease_duration":"x"}}',
            '{"kv_connector":"NixlPushConnector","kv_role":5,"kv_buffer_device":7,"kv_connector_extra_config":[]}',
            '{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_connector":"MooncakeConnector"},3]}}',
            '{"kv_cache_config":{"tokens_per_block":"x","dtype":5}}',
        ]
    ),
)


@pytest.mark.parametrize("program", PROGRAMS)
@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_two_commands_say_they_can_be_checked(program, data):
    def command():
        chosen = data.draw(st.lists(st.tuples(st.sampled_from(TELLING), WORTH), max_size=5))
        flags = [
            f"--{name} {shlex.quote(str(value))}"
            for name, value in chosen
            if f"--{name}" in flag_table(program).spellings
        ]
        return f"{PROGRAMS[program].replace(' m', ' Qwen/Qwen3-32B')} {' '.join(flags)}"

    with contextlib.suppress(InvalidInput):
        check(read_pair([command()], [command()]), CATALOG)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_is_accepted_with_a_value_of_its_kind(program):
    """Each flag of each table, one at a time: no mistake, and its value kept."""
    examples = {
        Kind.INT: "3",
        Kind.FLOAT: "0.5",
        Kind.JSON: "'{}'",
        Kind.STR: "word",
        Kind.LIST: "a b",
        Kind.APPEND: "a",
        Kind.OPTIONAL: "x",
    }
    for spelling, flag in flag_table(program).spellings.items():
        if flag.name in ("config", "extra-engine-args", "override-engine-args", "model", "connector"):
            continue
        value = flag.choices[0] if flag.choices else examples.get(flag.kind, "")
        notes = Notes()
        read_command(f"{PROGRAMS[program]} {spelling} {value}", notes=notes)
        assert notes.mistakes == [], (spelling, notes.mistakes)
