"""Launch commands as roles: every way in which people write a setting means the same, and what an engine refuses is named."""

import json

import pytest

from diptych.deploy.commands.launch import image_version
from diptych.deploy.commands.read import read_command, read_pair, read_script
from diptych.deploy.notes import Notes
from diptych.design.axes import Role
from diptych.engines.engine import Engine, Launcher, Version
from diptych.errors import InvalidInput

NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_connector_extra_config":{"kv_lease_duration":60}}'


def role_of(text, **kwargs):
    notes = Notes()
    config = read_command(text, notes=notes, **kwargs)
    assert [str(finding) for finding in notes.mistakes + notes.unknown] == []
    return config


def findings_of(text):
    notes = Notes()
    read_command(text, where="prefill", notes=notes)
    return notes.mistakes + notes.unknown


@pytest.mark.parametrize(
    "flags",
    [
        "--tensor-parallel-size 2",
        "--tensor-parallel-size=2",
        "--tensor_parallel_size 2",
        "--tensor_parallel_size=2",
        "-tp 2",
        "-tp=2",
        "--tensor-par 2",
        "'--tensor-parallel-size' \"2\"",
        "--tensor-parallel-size \\\n 2",
        "--tensor-parallel-size 8 --tensor-parallel-size 2",
    ],
)
def test_every_spelling_of_a_flag_is_the_same_setting(flags):
    config = role_of(f"vllm serve Qwen/Qwen3-32B {flags}")
    assert config.tp == 2
    assert config.places["tp"] == "command --tensor-parallel-size"


@pytest.mark.parametrize(
    "flags",
    [
        f"--kv-transfer-config '{NIXL}'",
        f"--kv-transfer-config='{NIXL}'",
        "--kv_transfer_config " + json.dumps(NIXL),
        "--kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role=kv_producer "
        "--kv-transfer-config.kv_connector_extra_config.kv_lease_duration 60",
        '--kv-transfer-config \'{"kv_connector":"NixlConnector"}\' --kv_transfer_config.kv_role kv_producer '
        "--kv-transfer-config.kv_connector_extra_config '{\"kv_lease_duration\": 60}'",
    ],
)
def test_json_whole_or_in_parts_is_one_connector(flags):
    connector = role_of(f"vllm serve m {flags}").connector
    assert (connector.name, connector.role) == ("NixlConnector", "kv_producer")
    assert connector.extra == {"kv_lease_duration": 60}
    assert connector.fields == json.loads(NIXL)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--enable-prefix-caching", True),
        ("--no-enable-prefix-caching", False),
        ("--disable-prefix-caching", False),
        ("--no_enable_prefix_caching", False),
        ("", None),
    ],
)
def test_switches_have_their_negative_forms(flags, expected):
    assert role_of(f"vllm serve m {flags}").prefix_caching is expected


def test_a_switch_that_disables_is_kept_as_what_it_leaves():
    assert role_of("vllm serve m --disable-hybrid-kv-cache-manager").hybrid_kv_manager is False
    assert role_of("vllm serve m --no-disable-hybrid-kv-cache-manager").hybrid_kv_manager is True
    assert role_of("python -m sglang.launch_server --model-path m --disable-radix-cache").prefix_caching is False


def test_numbers_take_the_suffixes_that_vllm_takes():
    config = role_of("vllm serve m --max-num-batched-tokens 16k --max-model-len 4K")
    assert (config.max_batched_tokens, config.max_model_len) == (16_000, 4_096)
    connector = role_of(
        'vllm serve m --kv-transfer-config \'{"kv_connector":"X","kv_connector_extra_config":{"n":80m}}\''
    )
    assert connector.connector.extra == {"n": 80_000_000}


def test_children_of_a_multi_connector_are_in_order():
    config = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
            "connectors": [
                {"kv_connector": "NixlConnector", "kv_role": "kv_producer"},
                {
                    "kv_connector": "OffloadingConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {"cpu_bytes_to_use": 1},
                },
            ]
        },
    }
    role = role_of(f"vllm serve m --kv-transfer-config '{json.dumps(config)}'")
    assert [each.name for each in role.connector.all()] == ["MultiConnector", "NixlConnector", "OffloadingConnector"]
    assert role.connector.children[1].extra == {"cpu_bytes_to_use": 1}
    assert role.role is Role.PREFILL


@pytest.mark.parametrize(
    ("command", "engine", "launcher"),
    [
        ("vllm serve m", Engine.VLLM, Launcher.PLAIN),
        ("/opt/venv/bin/vllm serve m", Engine.VLLM, Launcher.PLAIN),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", Engine.VLLM, Launcher.PLAIN),
        ("python -u -X dev -m sglang.launch_server --model m", Engine.SGLANG, Launcher.PLAIN),
        ("sglang serve --model-path m", Engine.SGLANG, Launcher.PLAIN),
        ("python3 -m dynamo.vllm --model m", Engine.VLLM, Launcher.DYNAMO),
        ("python3 -m dynamo.sglang --model-path m", Engine.SGLANG, Launcher.DYNAMO),
        ("python3 -m dynamo.trtllm --model-path m", Engine.TRTLLM, Launcher.DYNAMO),
        ("trtllm-serve m", Engine.TRTLLM, Launcher.PLAIN),
        ("trtllm-serve serve m", Engine.TRTLLM, Launcher.PLAIN),
    ],
)
def test_every_way_to_start_an_engine_is_known(command, engine, launcher):
    config = role_of(command)
    assert (config.engine, config.launcher, config.model) == (engine, launcher, "m")


@pytest.mark.parametrize(
    "wrapper",
    [
        "nohup {} &",
        "exec {}",
        "A=b env -u X C=d {}",
        "sudo -E {}",
        "numactl -N 0 -m 0 {}",
        "timeout 1h nice -n 10 {}",
        "uv run --with vllm {}",
        "bash -c '{}'",
        'bash -lc "exec {}"',
        "sh -c 'cd /models && {} 2>&1 | tee log'",
        "CUDA_VISIBLE_DEVICES=0,1 stdbuf -oL {}",
        "srun -N 1 --gres=gpu:8 {}",
        "CMD='{}'\neval \"$CMD 2>&1 | tee log &\"",
        "CMD='{}'\n$CMD &",
        "docker run --rm -it --gpus all -p 8000:8000 -v /m:/m my/image:1 {}",
        "docker run -d --ipc=host --entrypoint env vllm/vllm-openai:latest {}",
    ],
)
def test_an_engine_is_seen_through_what_it_is_wrapped_in(wrapper):
    config = role_of(wrapper.format("vllm serve m --block-size 64"))
    assert (config.model, config.block_size) == ("m", 64)


def test_an_image_that_starts_its_server_needs_no_command_and_names_its_release():
    config = role_of(
        "docker run --gpus all --name decode-0 -e UCX_TLS=all -e HF_TOKEN vllm/vllm-openai:v0.32.1 --model m -tp 4"
    )
    assert (config.model, config.tp, config.version, config.name) == ("m", 4, Version((0, 32, 1)), "decode-0")
    assert config.env["UCX_TLS"].text == "all"
    assert config.env["HF_TOKEN"].source == "$HF_TOKEN"


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.32.1", (0, 32, 1)),
        ("vllm/vllm-openai:v0.33.0-cu129@sha256:abc", (0, 33, 0)),
        ("lmsysorg/sglang:v0.5.22.post1-cu129", (0, 5, 22)),
        ("localhost:5000/vllm-openai:0.31.0", (0, 31, 0)),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1", (0, 31, 0)),
        ("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.6.1", (0, 5, 21)),
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.6.1", (1, 3, 0)),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:my-tag", None),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:9.9.9", None),
        ("ghcr.io/llm-d/llm-d-cuda:v0.3.0", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
        ("my/image:1.2.3", None),
        ("", None),
    ],
)
def test_an_image_tells_its_engines_release_where_it_is_the_engines_own(image, release):
    found = image_version(image)
    assert (found.parts if found else None) == release


def test_environment_is_kept_and_what_is_outside_stays_a_reference():
    config = role_of("VLLM_NIXL_SIDE_CHANNEL_HOST=$P UCX_TLS=rc,cuda_copy vllm serve m", role=Role.PREFILL)
    assert config.env["VLLM_NIXL_SIDE_CHANNEL_HOST"].source == "$P"
    assert config.env_text("UCX_TLS") == "rc,cuda_copy"
    assert config.places["UCX_TLS"] == "prefill UCX_TLS"


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (f"vllm serve m --kv-transfer-config '{NIXL}'", Role.PREFILL),
        ("vllm serve m --kv-transfer-config.kv_role kv_consumer --kv-transfer-config.kv_connector N", Role.DECODE),
        ("vllm serve m", Role.COLOCATED),
        ("python -m dynamo.vllm --model m --disaggregation-mode decode", Role.DECODE),
        ("DYN_VLLM_DISAGGREGATION_MODE=prefill python -m dynamo.vllm --model m", Role.PREFILL),
        ("python -m sglang.launch_server --model m --disaggregation-mode prefill", Role.PREFILL),
        ("trtllm-serve m --server_role GENERATION", Role.DECODE),
    ],
)
def test_the_role_is_what_the_settings_say(command, role):
    assert role_of(command).role is role


def test_sglang_settings_have_their_fields_and_the_rest_its_options():
    config = role_of(
        "python -m sglang.launch_server --model-path m --tp 4 --ep 4 --dp-size 2 --page-size 64 --context-length 4096 "
        "--disaggregation-transfer-backend nixl --disaggregation-bootstrap-port 8998 --num-reserved-decode-tokens 512 "
        "--chunked-prefill-size 8192 --speculative-algorithm EAGLE3 --speculative-draft-model-path d --attn-cp-size 2"
    )
    assert (config.tp, config.ep, config.dp, config.block_size, config.pcp) == (4, True, 2, 64, 2)
    assert (config.max_model_len, config.max_batched_tokens) == (4096, 8192)
    assert config.options["disaggregation-transfer-backend"] == "nixl"
    assert config.options["disaggregation-bootstrap-port"] == 8998
    assert config.options["num-reserved-decode-tokens"] == 512
    assert config.speculative == {"method": "EAGLE3", "model": "d"}


def test_tensorrt_llm_settings_come_from_flags_json_and_dots():
    command = (
        "python3 -m dynamo.trtllm --model m --tensor-parallel-size 4 --disaggregation-mode decode "
        """--override-engine-args '{"kv_cache_config": {"dtype": "fp8"}, "max_num_tokens": 8192}' """
        "--trtllm.kv_cache_config.tokens_per_block 64"
    )
    config = role_of(command)
    assert (config.tp, config.block_size, config.kv_cache_dtype, config.max_batched_tokens) == (4, 64, "fp8", 8192)
    assert config.options["kv_cache_config"] == {"dtype": "fp8", "tokens_per_block": 64}


def test_tensorrt_llm_settings_of_a_wrong_type_are_left_out():
    config = role_of(
        "python3 -m dynamo.trtllm --model m --trtllm.kv_cache_config.tokens_per_block x --trtllm.kv_cache_config.dtype 5"
    )
    assert (config.block_size, config.kv_cache_dtype) == (None, "auto")


def test_speculation_and_attention_are_found_in_their_json_too():
    config = role_of("""vllm serve m -sc '{"method":"eagle3","model":"d"}' --spec-tokens 3 -ac.backend FLASHINFER""")
    assert config.speculative == {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
    assert config.attention_backend == "FLASHINFER"


def test_a_config_file_is_read_where_files_may_be_and_the_command_wins(tmp_path):
    (tmp_path / "serve.yaml").write_text(
        "model: m\ntensor-parallel-size: 4\nblock_size: 32\nno-such: 1\nenable-prefix-caching: false\n"
        "kv-transfer-config:\n  kv_connector: NixlConnector\n  kv_role: kv_consumer\nmiddleware: [a]\n"
    )
    notes = Notes()
    config = read_command("vllm serve --config serve.yaml --block-size 64", base=tmp_path, notes=notes)
    assert (config.model, config.tp, config.block_size, config.prefix_caching) == ("m", 4, 64, False)
    assert config.connector.name == "NixlConnector"
    assert config.places["tp"] == "serve.yaml:2"
    assert [finding.where for finding in notes.mistakes] == ["serve.yaml:4"]


def test_no_file_is_read_without_leave(tmp_path, monkeypatch):
    (tmp_path / "serve.yaml").write_text("block-size: 64\n")
    monkeypatch.chdir(tmp_path)
    (finding,) = findings_of("vllm serve m --config serve.yaml")
    assert "not read here" in finding.problem
    notes = Notes()
    read_command("vllm serve m --config gone.yaml", base=tmp_path, notes=notes)
    assert "no such file" in notes.unknown[0].problem


# ---- what an engine would refuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "where", "says"),
    [
        ("--blok-size 64", "prefill --blok-size", "no flag of vLLM 0.33.0; did you mean --block-size"),
        ("--num-scheduler-steps 8", "prefill --num-scheduler-steps", "was removed from vLLM; expected nothing"),
        ("--rope_scaling '{}'", "prefill --rope_scaling", "expected --hf-overrides.rope_scaling"),
        ("--block-size sixty", "prefill --block-size", "'sixty'; expected a whole number"),
        ("--block-size", "prefill --block-size", "is given no value"),
        ("-tp 0", "prefill --tensor-parallel-size", "is 0; expected 1 or more"),
        ("--block-size -16", "prefill --block-size", "is -16; expected 1 or more"),
        ("--dtype floaty", "prefill --dtype", "'floaty'; expected one of auto, bfloat16"),
        ("--enforce-eager=true", "prefill --enforce-eager", "takes no value"),
        ("--enable-p", "prefill", "short for more than one flag"),
        ("--kv-transfer-config {kv_connector:Nixl}", "prefill --kv-transfer-config", "is not JSON"),
        ("--kv-transfer-config '[1]'", "prefill --kv-transfer-config", "is not a JSON object"),
        ("--block-size $SIZE", "prefill --block-size", "$SIZE, which is set outside this text"),
        ("--kv-cache-dtype=$KV", "prefill --kv-cache-dtype", "$KV, which is set outside this text"),
        ("$EXTRA", "prefill", "$EXTRA is set outside this text"),
        ("extra words", "prefill", "2 words that belong to no flag"),
        ("--kv-transfer-config." + "a." * 20 + "b 1", "prefill", "more than 16 keys"),
        ("--kv-transfer-config " + "[" * 100, "prefill --kv-transfer-config", "is not JSON"),
        ("\\ \n --block-size 64", "prefill", "a space after the backslash"),
    ],
)
def test_what_an_engine_would_refuse_is_named_with_its_place(flags, where, says):
    first = findings_of(f"vllm serve m {flags}")[0]
    assert first.where == where
    assert says in str(first)
    assert len(findings_of(f"vllm serve m {flags}")) == 1


def test_a_flag_of_another_engine_is_no_flag_of_this_one():
    assert "no flag of SGLang" in str(findings_of("python -m sglang.launch_server --model m --block-size 64")[0])
    assert "no flag of dynamo.vllm" in str(findings_of("python -m dynamo.vllm --model m --host 0.0.0.0")[0])
    assert findings_of("python -m dynamo.sglang --model-path m --host 0.0.0.0") == []
    assert "--kv-transfer-config" in str(findings_of("DYN_CONNECTOR=nixl python -m dynamo.vllm --model m")[0])
    assert "--kv-transfer-config" in str(findings_of("python -m dynamo.vllm --model m --connector nixl")[0])
    assert findings_of("python -m dynamo.trtllm --model m --connector kvbm") == []
    assert "--disaggregation-mode prefill" in str(findings_of("python -m dynamo.vllm --model m --is-prefill-worker")[0])


def test_what_is_set_outside_is_left_as_the_engine_has_it_and_told_apart_from_mistakes():
    notes = Notes()
    config = read_command(
        "vllm serve $MODEL -tp $TP --kv-cache-dtype $KV --port $PORT --kv-transfer-config $C", notes=notes
    )
    assert (config.model, config.tp, config.kv_cache_dtype, config.port) == ("", 1, "auto", None)
    assert config.connector.name == ""
    assert config.written["tp"] == "$TP"
    assert notes.mistakes == []
    assert len(notes.unknown) == 4


def test_a_number_set_outside_is_not_kept_as_text_for_rules_to_stumble_over():
    notes = Notes()
    text = (
        "python -m sglang.launch_server --model m --disaggregation-bootstrap-port $PORT --num-reserved-decode-tokens x"
    )
    config = read_command(text, notes=notes)
    assert config.options == {}
    assert (len(notes.mistakes), len(notes.unknown)) == (1, 1)
    router = "python -m sglang_router.launch_router --retry-max-retries $N --prefill http://$P:1 $B --mini-lb"
    assert read_script(f"{text}\n{router}", "run.sh").router.settings == {
        "prefill": (("http://$P:1", "$B"),),
        "mini-lb": True,
    }


def test_settings_after_an_unknown_flag_are_still_read():
    notes = Notes()
    config = read_command("vllm serve m --no-such 5 --block-size 64", notes=notes)
    assert (config.block_size, len(notes.mistakes)) == (64, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no command"),
        ("# only a comment", "there is no command"),
        ("lmdeploy serve api_server m", "'lmdeploy'"),
        ("vllm bench serve", "'vllm'"),
        ("curl http://localhost:8000", "'curl'"),
        ("vllm serve 'm", "never closed"),
        ("vllm serve a & vllm serve b", "2 engines are started"),
    ],
)
def test_what_starts_no_known_engine_is_refused_with_what_is_understood(text, says):
    with pytest.raises(InvalidInput) as caught:
        read_command(text)
    assert says in str(caught.value)


def test_both_commands_of_a_pair_are_faulted_at_once():
    with pytest.raises(InvalidInput) as caught:
        read_pair(["tgi --x"], ["vllm serve 'm"])
    assert [finding.where for finding in caught.value.findings] == ["prefill", "decode:1"]


SECRET = "sk-verysecret"


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={SECRET} vllm serve m",
        f"export HF_TOKEN={SECRET}; vllm serve m",
        f"docker run -e OPENAI_API_KEY={SECRET} vllm/vllm-openai:v0.33.0 --model m",
        f"vllm serve m --api-key {SECRET} other",
        f"vllm serve m --api-key={SECRET}",
        f"vllm serve m --api_key {SECRET}",
        f"vllm serve m --hf-token {SECRET}",
        f"vllm serve m --api-kez {SECRET}",
        f"vllm serve m --api-kez={SECRET}",
        f"vllm serve m {SECRET} {SECRET}",
        f"""vllm serve m --kv-transfer-config '{{"kv_connector":"x","kv_connector_extra_config": {{"api_key": "{SECRET}"}}}}'""",
        f"vllm serve m --kv-transfer-config '{{{SECRET}'",
        f"AWS_SECRET_ACCESS_KEY={SECRET} bash -c 'vllm serve m'",
        f"ENV=http://me:{SECRET}@host/ vllm serve m",
        f"vllm serve m --model http://me:{SECRET}@host/m --served-model-name 'Bearer {SECRET}'",
        f"vllm serve http://me:{SECRET}@host/m",
    ],
)
def test_a_secret_is_in_nothing_that_is_kept_or_said(text):
    notes = Notes()
    config = read_command(text, notes=notes)
    assert SECRET not in repr(config)
    assert SECRET not in repr(notes)


@pytest.mark.parametrize(
    "text", [f"HF_TOKEN={SECRET}", f"{SECRET}=1 lmdeploy x", f"curl -H 'Authorization: {SECRET}'", f"A='{SECRET}"]
)
def test_a_secret_is_not_in_a_refusal(text):
    with pytest.raises(InvalidInput) as caught:
        read_command(text)
    assert SECRET not in str(caught.value)


# ---- scripts ------------------------------------------------------------------------------------------------------------

VLLM_SCRIPT = """\
#!/usr/bin/env bash
P=10.0.0.1
D=10.0.0.2
VLLM_NIXL_SIDE_CHANNEL_HOST=$P vllm serve Qwen/Qwen3-32B --port 8100 -tp 2 \\
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' &
VLLM_NIXL_SIDE_CHANNEL_HOST=$D vllm serve Qwen/Qwen3-32B --port 8200 -tp 4 \\
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' &
"""


@pytest.mark.parametrize(
    "router",
    [
        "vllm-router --vllm-pd-disaggregation --kv-connector nixl --prefill http://$P:8100 --decode http://$D:8200",
        "python toy_proxy_server.py --prefiller-hosts $P --prefiller-ports 8100 --decoder-hosts $D --decoder-ports 8200",
    ],
)
def test_roles_that_do_not_say_theirs_take_it_from_the_router(router):
    deployment = read_script(VLLM_SCRIPT + router, "run.sh")
    assert [(each.role, each.tp, each.name) for each in deployment.roles] == [
        (Role.PREFILL, 2, "prefill"),
        (Role.DECODE, 4, "decode"),
    ]
    assert deployment.roles[0].places["tp"] == "run.sh:4"
    assert deployment.roles[1].env_text("VLLM_NIXL_SIDE_CHANNEL_HOST") == "10.0.0.2"
    assert deployment.findings == ()
    assert deployment.source == "run.sh"


def test_a_router_keeps_its_settings_and_what_it_would_refuse_is_found():
    deployment = read_script(
        "python -m sglang.launch_server --model m --disaggregation-mode prefill\n"
        "python -m sglang_router.launch_router --pd-disaggregation --prefill http://u:pw@P:30000 8998 --prefill http://Q:30000 "
        "--decode http://D:30001 --retry-max-retries 3 --polcy random",
        "run.sh",
    )
    router = deployment.router
    assert router.kind == "sglang_router"
    assert router.settings["prefill"] == (("http://P:30000", "8998"), ("http://Q:30000",))
    assert router.settings["retry-max-retries"] == 3
    assert router.places["decode"] == "run.sh:2"
    assert "--polcy is no flag of sglang_router" in str(deployment.findings[0])


def test_a_dynamo_frontend_takes_settings_from_its_variables():
    deployment = read_script(
        "export DYN_ROUTER_CONDITIONAL_DISAGG=true\n"
        "DYN_ROUTER_MODE=kv DYN_MIGRATION_LIMIT=3 python -m dynamo.frontend --http-port 8000 &\n"
        "python -m dynamo.vllm --model m --disaggregation-mode decode",
        "run.sh",
    )
    assert deployment.launcher is Launcher.DYNAMO
    assert deployment.router.settings == {
        "http-port": 8000,
        "router-mode": "kv",
        "migration-limit": 3,
        "router-conditional-disagg": True,
    }


def test_a_script_without_an_engine_is_refused():
    with pytest.raises(InvalidInput, match="no engine that is known"):
        read_script("echo hello\nsleep 1", "run.sh")
