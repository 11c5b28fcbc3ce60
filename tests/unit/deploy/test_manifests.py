"""Manifests as deployments: four that are right, small mistakes in them, and every other kind that is understood."""

from pathlib import Path

import pytest
import yaml

from diptych.catalog.catalog import Catalog
from diptych.deploy.read import read_deployment, together
from diptych.design.axes import Role
from diptych.engines.check import check
from diptych.engines.engine import Engine, Launcher, Version
from diptych.errors import InvalidInput

DATA = Path(__file__).parents[2] / "data" / "manifests"
CATALOG = Catalog.load()
WHOLE = ("dynamo_vllm", "dynamo_sglang", "kserve", "llm_d")
BROKEN = yaml.safe_load((DATA / "broken.yaml").read_text())


def patched(text, patches):
    for patch in patches:
        head, mark, tail = text.partition(patch["after"])
        assert mark, patch
        assert patch["old"] in tail, patch
        text = head + mark + tail.replace(patch["old"], patch["new"], 1)
    return text


def found(text, name="manifest.yaml"):
    """What the reader and the rules find, as sentences and rule ids."""
    deployment = read_deployment(text, name)
    report = check(deployment, CATALOG)
    return [str(finding) for finding in deployment.findings], sorted({broken.rule.id for broken in report.broken})


@pytest.mark.parametrize("name", WHOLE)
def test_the_four_heterogeneous_manifests_pass(name):
    assert found((DATA / f"{name}.yaml").read_text()) == ([], [])


@pytest.mark.parametrize("case", BROKEN, ids=[case["name"] for case in BROKEN])
def test_each_mistake_is_found_and_nothing_else(case):
    findings, rules = found(patched((DATA / f"{case['of']}.yaml").read_text(), case["patch"]))
    if "rule" in case:
        assert (findings, rules) == ([], [case["rule"]])
    else:
        assert (len(findings), rules) == (1, [])
        assert case["says"] in findings[0]


def test_there_are_twenty_mistakes_or_more_and_they_are_different():
    assert len({case["name"] for case in BROKEN}) == len(BROKEN) >= 20


@pytest.mark.parametrize(
    ("name", "launcher", "router", "decode_tp"),
    [
        ("dynamo_vllm", Launcher.DYNAMO, "dynamo.frontend", 4),
        ("dynamo_sglang", Launcher.DYNAMO, "dynamo.frontend", 2),
        ("kserve", Launcher.KSERVE, "epp", 4),
        ("llm_d", Launcher.LLM_D, "epp", 4),
    ],
)
def test_roles_hardware_and_numbers_are_read(name, launcher, router, decode_tp):
    deployment = read_deployment(DATA / f"{name}.yaml")
    assert (deployment.launcher, deployment.router.kind) == (launcher, router)
    (prefill,), (decode,) = deployment.of(Role.PREFILL), deployment.of(Role.DECODE)
    assert (prefill.replicas, prefill.tp, prefill.gpus_per_worker, prefill.gpu) == (2, 2, 2, "NVIDIA-H100-80GB-HBM3")
    assert (decode.replicas, decode.tp, decode.gpus_per_worker, decode.gpu) == (3, decode_tp, decode_tp, "NVIDIA-H20")
    for role in (prefill, decode):
        assert (role.model, role.block_size, role.kv_cache_dtype) == ("Qwen/Qwen3-32B", 64, "fp8_e4m3")


@pytest.mark.parametrize("name", WHOLE)
def test_every_place_is_the_line_that_says_it(name):
    lines = (DATA / f"{name}.yaml").read_text().splitlines()
    for role in read_deployment(DATA / f"{name}.yaml").roles:
        for setting in ("block_size", "kv_cache_dtype", "tp", "model", "gpu", "replicas"):
            file, _, line = role.places[setting].rpartition(":")
            assert file.endswith(f"{name}.yaml")
            value = getattr(role, setting)
            assert str(value) in lines[int(line) - 1], (setting, role.places[setting])


def test_variables_keep_their_text_or_where_they_come_from():
    (prefill,) = read_deployment(DATA / "dynamo_vllm.yaml").of(Role.PREFILL)
    assert prefill.env["VLLM_NIXL_SIDE_CHANNEL_HOST"].source == "status.podIP"
    assert prefill.env_text("VLLM_NIXL_SIDE_CHANNEL_PORT") == "5600"
    assert prefill.connector.extra == {"kv_lease_duration": 60}


# ---- other kinds --------------------------------------------------------------------------------------------------------

ALPHA = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: graph}
spec:
  envs: [{name: DYN_ROUTER_MODE, value: kv}]
  services:
    Frontend: {componentType: frontend, replicas: 1, extraPodSpec: {mainContainer: {image: i}}}
    Decode:
      componentType: worker
      subComponentType: decode
      replicas: 2
      multinode: {nodeCount: 2}
      resources: {limits: {gpu: "4"}}
      extraPodSpec:
        nodeSelector: {nvidia.com/gpu.product: NVIDIA-H20}
        mainContainer:
          command: ["/bin/sh", "-c"]
          args:
            - |
              export MODEL=Qwen/Qwen3-32B
              exec python3 -m dynamo.vllm --disaggregation-mode decode \\
                --model $MODEL --block-size 64 \\
                --kv-cache-dtype $KV
          env: [{name: KV, value: fp8}]
    Prefill:
      componentType: worker
      subComponentType: prefill
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-32B, --disaggregation-mode, prefill]
"""


def test_the_older_dynamo_manifest_with_a_shell_text_in_it():
    deployment = read_deployment(ALPHA, "graph.yaml")
    (decode,) = deployment.of(Role.DECODE)
    assert (decode.model, decode.block_size, decode.kv_cache_dtype, decode.name) == (
        "Qwen/Qwen3-32B",
        64,
        "fp8",
        "Decode",
    )
    assert (decode.replicas, decode.gpus_per_worker, decode.gpu) == (2, 8, "NVIDIA-H20")
    assert decode.places["block_size"] == "graph.yaml:22"
    assert decode.places["kv_cache_dtype"] == "graph.yaml:23"
    assert deployment.router.settings["router-mode"] == "kv"
    assert deployment.router.places["router-mode"] == "graph.yaml:5"
    assert deployment.findings == ()


def test_a_component_called_by_another_role_than_its_engine_runs_in_is_a_mistake():
    text = ALPHA.replace("--disaggregation-mode, prefill", "--disaggregation-mode, decode")
    (finding,) = read_deployment(text, "graph.yaml").findings
    assert "is of type prefill, its engine runs in mode decode" in finding.problem
    assert finding.where == "graph.yaml:32"


KSERVE = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: r1}
spec:
  model: {uri: "pvc://claim", name: deepseek-ai/DeepSeek-R1}
  parallelism: {data: 16, dataLocal: 8, expert: true, tensor: 1}
  router:
    scheduler:
      template:
        containers:
          - name: main
            args:
              - --config-text
              - |
                apiVersion: inference.networking.x-k8s.io/v1alpha1
                kind: EndpointPickerConfig
                plugins:
                  - type: prefix-based-pd-decider
                    parameters: {nonCachedTokens: 0}
  template:
    containers:
      - name: main
        env: [{name: VLLM_ADDITIONAL_ARGS, value: "--block-size 64 --api-key sk-1"}]
        resources: {limits: {nvidia.com/gpu: "8"}}
  worker: {containers: [{name: main}]}
  prefill:
    template:
      containers:
        - name: main
          command: [/bin/bash, -c]
          args: ['eval "vllm serve /mnt/models ${VLLM_ADDITIONAL_ARGS} --dtype auto"']
          env: [{name: VLLM_ADDITIONAL_ARGS, value: "--block-size 32"}]
"""


def test_kserve_with_workers_a_command_of_its_own_and_a_schedulers_text():
    deployment = read_deployment(KSERVE, "k.yaml")
    (prefill,), (decode,) = deployment.of(Role.PREFILL), deployment.of(Role.DECODE)
    assert (decode.dp, decode.ep, decode.gpus_per_worker, decode.block_size) == (16, True, 16, 64)
    assert (prefill.model, prefill.block_size, prefill.dtype) == ("/mnt/models", 32, "auto")
    assert deployment.router.settings["plugins"][0]["parameters"] == {"nonCachedTokens": 0}
    assert deployment.router.places["nonCachedTokens"] == "k.yaml:19"
    assert "sk-1" not in repr(deployment)
    assert deployment.findings == ()


def test_a_graph_behind_an_endpoint_picker_and_with_sidecars():
    text = ALPHA.replace(
        "Frontend: {componentType: frontend, replicas: 1, extraPodSpec: {mainContainer: {image: i}}}",
        "Epp: {componentType: epp, eppConfig: {config: {plugins: [{type: x}], schedulingProfiles: []}}}",
    )
    deployment = read_deployment(text, "graph.yaml")
    assert deployment.router.kind == "epp"
    assert deployment.router.settings == {"plugins": [{"type": "x"}], "schedulingProfiles": []}
    assert deployment.findings == ()


def test_arguments_in_one_string_are_one_argument():
    text = PAIR.replace('args: ["--model", "$(MODEL)", ', 'args: ["--model $(MODEL) --api-key sk-1", ')
    (finding,) = read_deployment(text, "pair.yaml").findings
    assert "--model and what follows it are one argument" in finding.problem


def test_a_uri_that_helm_fills_in_leaves_the_name():
    text = (
        (DATA / "llm_d.yaml").read_text().replace('"hf://Qwen/Qwen3-32B"', "'hf://{{ .Values.modelArtifacts.name }}'")
    )
    assert {role.model for role in read_deployment(text, "v.yaml").roles} == {"Qwen/Qwen3-32B"}


PAIR = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm-prefill}
spec:
  replicas: 2
  template:
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H100-80GB-HBM3]}]
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.33.0
          env:
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: VLLM_NIXL_SIDE_CHANNEL_HOST, value: $(POD_IP)}
            - {name: MODEL, value: Qwen/Qwen3-32B}
            - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}
          args: ["--model", "$(MODEL)", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
          resources: {limits: {nvidia.com/gpu: 2}}
---
apiVersion: v1
kind: Service
metadata: {name: front}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm-decode}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        nodeSelector: {node.kubernetes.io/instance-type: p5e.48xlarge, kubernetes.io/hostname: node-7}
        containers:
          - name: vllm
            image: vllm/vllm-openai:v0.32.0
            env: [{name: MODEL, value: Qwen/Qwen3-32B}]
            command:
              - bash
              - -c
              - >-
                vllm serve $MODEL -tp 16 --kv-transfer-config.kv_connector NixlConnector
                --kv-transfer-config.kv_role kv_both
            resources: {limits: {nvidia.com/gpu: 8}}
    workerTemplate: {spec: {containers: [{name: w, image: i}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: epp}
data:
  config.yaml: |
    apiVersion: inference.networking.x-k8s.io/v1alpha1
    kind: EndpointPickerConfig
    plugins:
      - type: prefix-based-pd-decider
        parameters:
          nonCachedTokens: 512
"""


def test_plain_workloads_are_a_pair_and_their_picker():
    deployment = read_deployment(PAIR, "pair.yaml")
    (prefill,), (decode,) = deployment.of(Role.PREFILL), deployment.of(Role.DECODE)
    assert (prefill.name, prefill.replicas, prefill.gpu, prefill.gpus_per_worker) == (
        "vllm-prefill",
        2,
        "NVIDIA-H100-80GB-HBM3",
        2,
    )
    assert (prefill.model, prefill.version) == ("Qwen/Qwen3-32B", Version((0, 33, 0)))
    assert prefill.env["VLLM_NIXL_SIDE_CHANNEL_HOST"].source == "status.podIP"
    assert prefill.env["HF_TOKEN"].source == "secret hf/token"
    assert (decode.tp, decode.gpus_per_worker, decode.gpu, decode.node) == (16, 16, "H200-SXM-141GB", "node-7")
    assert decode.model == "Qwen/Qwen3-32B"
    assert deployment.router.settings["plugins"][0]["parameters"] == {"nonCachedTokens": 512}
    line = next(number for number, text in enumerate(PAIR.splitlines(), 1) if "nonCachedTokens" in text)
    assert deployment.router.places["nonCachedTokens"] == f"pair.yaml:{line}"
    assert deployment.findings == ()


def test_pod_fields_of_plain_workloads_are_checked_too():
    (finding,) = read_deployment(
        PAIR.replace("containers:\n        - name: vllm", "nodeSelectr: {}\n      containers:\n        - name: vllm"),
        "p",
    ).findings
    assert str(finding) == "p:13: spec.template.spec.nodeSelectr is no field of its schema; did you mean nodeSelector?"


SET = """\
apiVersion: disaggregatedset.x-k8s.io/v1
kind: DisaggregatedSet
metadata: {name: pd}
spec:
  slices: 2
  roles:
    - name: prefill
      spec:
        replicas: 4
        groupIdentity: Hash
        rolloutStrategy: {rollingUpdateConfiguration: {maxSurge: 0}}
        leaderWorkerTemplate:
          size: 1
          workerTemplate:
            metadata: {labels: {llm-d.ai/role: prefill}}
            spec:
              containers:
                - name: modelserver
                  command: [vllm, serve]
                  args: [openai/gpt-oss-120b, --tensor-parallel-size=1, --block-size=128]
                  resources: {limits: {nvidia.com/gpu: "1"}}
    - name: decode
      spec:
        replicas: 1
        leaderWorkerTemplate:
          workerTemplate:
            metadata: {labels: {llm-d.ai/role: decode}}
            spec:
              initContainers: [{name: routing-proxy, image: i, restartPolicy: Always, args: [--kv-connector=nixlv2]}]
              containers:
                - name: modelserver
                  command: [vllm, serve]
                  args: [openai/gpt-oss-120b, --tensor-parallel-size=4, --block-size=128]
                  resources: {limits: {nvidia.com/gpu: "4"}}
"""


def test_a_disaggregated_set_has_its_roles_in_every_slice():
    deployment = read_deployment(SET, "set.yaml")
    (prefill,), (decode,) = deployment.of(Role.PREFILL), deployment.of(Role.DECODE)
    assert (prefill.replicas, prefill.tp, prefill.launcher) == (8, 1, Launcher.LLM_D)
    assert (decode.replicas, decode.tp, decode.gpus_per_worker) == (2, 4, 4)
    assert deployment.findings == ()


def test_a_field_that_nothing_resembles_may_be_newer_than_the_schema_and_is_told_apart():
    (strange,) = read_deployment(SET, "set.yaml").unknown
    assert strange.where == "set.yaml:10"
    assert "spec.roles[0].spec.groupIdentity is no field of its schema, which may be older" in strange.problem


def test_a_field_in_the_wrong_place_is_a_mistake():
    text = SET.replace("        replicas: 4\n", "        replicas: 4\n        nodeSelector: {a: b}\n")
    (finding,) = read_deployment(text, "set.yaml").findings
    assert "spec.roles[0].spec.nodeSelector is no field of its schema" in finding.problem


COMPOSE = """\
services:
  prefill:
    image: vllm/vllm-openai:${TAG:-v0.33.0}
    command: --model Qwen/Qwen3-32B --port 8100 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    environment: [UCX_TLS=all, HF_TOKEN, COST=$$5]
    deploy: {replicas: 2, resources: {reservations: {devices: [{driver: nvidia, device_ids: ["0", "1"], capabilities: [gpu]}]}}}
  decode:
    image: vllm/vllm-openai:v0.33.0
    command:
      - --model
      - Qwen/Qwen3-32B
      - --port=8200
      - --max-model-len=${LENGTH}
      - --kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both"}
    environment: {UCX_TLS: all}
  router:
    image: router
    command: vllm-router --vllm-pd-disaggregation --prefill http://prefill:8100 --decode http://decode:8200
"""


def test_a_compose_file_is_a_deployment():
    deployment = read_deployment(COMPOSE, "compose.yaml")
    (prefill,), (decode,) = deployment.of(Role.PREFILL), deployment.of(Role.DECODE)
    assert (prefill.port, prefill.replicas, prefill.gpus_per_worker, prefill.version) == (
        8100,
        2,
        2,
        Version((0, 33, 0)),
    )
    assert (prefill.env["HF_TOKEN"].source, prefill.env_text("COST")) == ("$HF_TOKEN", "$5")
    assert (decode.port, decode.max_model_len, decode.places["port"]) == (8200, None, "compose.yaml:12")
    assert deployment.router.kind == "vllm-router"
    assert deployment.findings == ()
    assert [finding.where for finding in deployment.unknown] == ["compose.yaml:13"]


def test_the_configuration_of_trtllm_serve_disaggregated():
    text = """\
hostname: localhost
model: Qwen/Qwen3-32B
context_servers:
  num_instances: 2
  tensor_parallel_size: 2
  kv_cache_config: {tokens_per_block: 32, dtype: fp8}
generation_servers:
  num_instances: 1
  tensor_parallel_size: 4
  kv_cache_config:
    tokens_per_block: 64
"""
    deployment = read_deployment(text, "disagg.yaml")
    (prefill,), (decode,) = deployment.of(Role.PREFILL), deployment.of(Role.DECODE)
    assert (prefill.engine, prefill.replicas, prefill.tp, prefill.block_size, prefill.kv_cache_dtype) == (
        Engine.TRTLLM,
        2,
        2,
        32,
        "fp8",
    )
    assert (decode.block_size, decode.places["block_size"]) == (64, "disagg.yaml:11")
    assert {broken.rule.id for broken in check(deployment, CATALOG).broken} == {"TR1"}


def test_production_stack_values():
    text = """\
servingEngineSpec:
  modelSpec:
    - name: qwen-prefill
      repository: vllm/vllm-openai
      tag: v0.32.0
      modelURL: Qwen/Qwen3-32B
      replicaCount: 2
      requestGPU: 2
      vllmConfig: {tensorParallelSize: 2, enablePrefixCaching: false, extraArgs: ["--block-size", "64"]}
      lmcacheConfig: {enabled: true, kvRole: kv_producer}
    - name: qwen-decode
      modelURL: Qwen/Qwen3-32B
      lmcacheConfig: {enabled: true, kvRole: kv_consumer}
routerSpec: {routingLogic: disaggregated_prefill}
"""
    deployment = read_deployment(text, "values.yaml")
    (prefill,), (decode,) = deployment.of(Role.PREFILL), deployment.of(Role.DECODE)
    assert (prefill.tp, prefill.block_size, prefill.prefix_caching, prefill.replicas) == (2, 64, False, 2)
    assert prefill.connector.name == decode.connector.name == "LMCacheConnectorV1"
    assert (prefill.version, deployment.launcher) == (Version((0, 32, 0)), Launcher.PRODUCTION_STACK)


def test_a_deployment_in_several_files_is_one():
    serve = "vllm serve m --kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role kv_both --port"
    picker = "kind: EndpointPickerConfig\nplugins: [{type: decode-filter}]\n"
    texts = {
        "p.sh": f"{serve} 8100 --no-such",
        "d.sh": f"{serve} 8200",
        "r.sh": "vllm-router --vllm-pd-disaggregation --prefill http://p:8100 --decode http://d:8200",
    }
    whole = together([read_deployment(text, name) for name, text in texts.items()])
    assert [(role.role, role.port, role.name) for role in whole.roles] == [
        (Role.PREFILL, 8100, "prefill"),
        (Role.DECODE, 8200, "decode"),
    ]
    assert whole.router.kind == "vllm-router"
    assert [finding.where for finding in whole.findings] == ["p.sh:1"]
    values = read_deployment(DATA / "llm_d.yaml")
    assert together([read_deployment(picker, "epp.yaml"), values]).router.settings["plugins"] == [
        {"type": "decode-filter"}
    ]
    assert together([values]).launcher is Launcher.LLM_D


# ---- what is refused ----------------------------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join('*' + before for _ in range(9))}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("   \n\n", "empty"),
        ("kind: ConfigMap\napiVersion: v1\nmetadata: {name: x}\n", "ConfigMap: no engine that is known is started"),
        ("kind: Deployment\nspec: {template: {spec: {containers: [{image: nginx}]}}}\n", "Deployment: no engine"),
        ("kind: DynamoGraphDeployment\napiVersion: nvidia.com/v2\n", "is nvidia.com/v2; did you mean nvidia.com/v1"),
        ("kind: LLMInferenceService\n", "apiVersion of a LLMInferenceService is not set"),
        ("foo: 1\nbar: {baz: 2}\n", "a file of foo, bar"),
        ("kind: DynamoGraphDeployment\nspec: [\n", "not YAML"),
        ("kind: {{ .Values.kind }}\nservices: x\n", "helm template"),
        ("kind: !!python/object:os.system x\n", "tag"),
        ("kind: a\nkind: b\n", "kind is given twice"),
        ("services: " + "[" * 60 + "]" * 60, "levels deep"),
        ("services:\n" + BOMB, "aliases unfold"),
        ("- a\n- b\n", "no engine that is known"),
        ("just some words", "no engine that is known"),
    ],
)
def test_what_cannot_be_read_is_a_sentence_with_what_is_understood(text, says):
    with pytest.raises(InvalidInput) as caught:
        read_deployment(text, "x.yaml" if ":" in text else "x")
    assert says in str(caught.value)


def test_a_large_file_is_not_opened(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text("a: b\n" * 2_100_000)
    with pytest.raises(InvalidInput, match="10,500,000 bytes; expected at most"):
        read_deployment(path)
    with pytest.raises(InvalidInput, match="at most"):
        read_deployment(path.read_text(), "large.yaml")


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\x00\x01\x02", "NUL"), (b"\xff\xfe\xfa\x80", "not UTF-8"), (b"\x7fELF\x02\x01\x01\x00", "NUL")],
)
def test_binary_files_are_refused(tmp_path, content, says):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=says):
        read_deployment(path)


def test_folders_and_absent_files_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="not a file"):
        read_deployment(tmp_path)
    with pytest.raises(InvalidInput, match="no such file"):
        read_deployment(tmp_path / "gone.yaml")


def test_a_manifest_reads_no_file_outside_its_folder(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret.yaml").write_text("block-size: 64\n")
    script = inner / "run.sh"
    script.write_text(f"vllm serve m --config ../secret.yaml\nvllm serve m --config {tmp_path}/secret.yaml\n")
    deployment = read_deployment(script)
    assert [role.block_size for role in deployment.roles] == [None, None]
    assert all("outside the folder" in finding.problem for finding in deployment.unknown)
    assert len(deployment.unknown) == 2


SECRET = "sk-verysecret"


@pytest.mark.parametrize(
    "text",
    [
        PAIR.replace("value: Qwen/Qwen3-32B", f"value: {SECRET}").replace("{name: MODEL", "{name: HF_TOKEN"),
        COMPOSE.replace("UCX_TLS=all", f"OPENAI_API_KEY={SECRET}"),
        COMPOSE.replace("--port=8200", f"--api-key={SECRET}"),
        (DATA / "kserve.yaml").read_text().replace("--block-size 64", f"--api-key {SECRET} --blok 5"),
        (DATA / "llm_d.yaml").read_text().replace('"--block-size=64"', f'"--hf-token", "{SECRET}", "{SECRET}"'),
        (DATA / "dynamo_vllm.yaml").read_text().replace('value: "3"', f'valeu: "{SECRET}"'),
    ],
    ids=range(6),
)
def test_a_secret_is_in_nothing_that_is_kept_or_said(text):
    assert SECRET in text
    deployment = read_deployment(text, "m.yaml")
    assert SECRET not in repr(deployment)


@pytest.mark.parametrize(
    "text", [f"kind: X\ntoken: {SECRET}\n", f"kind: [\n{SECRET}", f"kind: a\n{SECRET}: 1\n{SECRET}: 2\n"]
)
def test_a_secret_is_not_in_a_refusal(text):
    with pytest.raises(InvalidInput) as caught:
        read_deployment(text, "m.yaml")
    assert "verysecret" not in str(caught.value) or "given twice" in str(caught.value)
