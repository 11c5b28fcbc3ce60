"""What running servers say of themselves, told by small servers on the loopback that answer as the released ones do."""

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from diptych.catalog.catalog import Catalog
from diptych.deploy import fetch
from diptych.deploy.live import cache_labels, probe
from diptych.design.axes import Role
from diptych.engines.check import check
from diptych.engines.engine import Engine, Version
from diptych.errors import InvalidInput

SECRET = "sk-verysecret"


@contextlib.contextmanager
def serving(routes):
    """A server whose paths answer with a text, a JSON value, or (status, headers)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer = routes.get(self.path, routes.get(self.path.partition("?")[0]))
            asked.append(self.path)
            if answer is None or isinstance(answer, tuple):
                status, headers = answer or (404, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                return
            body = (
                answer
                if isinstance(answer, bytes)
                else (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            )
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def vllm(block_size=16, cache_dtype="auto", **labels):
    extra = "".join(f',{name}="{value}"' for name, value in labels.items())
    metrics = f"""\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="{block_size}",cache_dtype="{cache_dtype}",enable_prefix_caching="True",engine="0"{extra}}} 1.0
vllm:cache_config_info{{block_size="{block_size}",cache_dtype="{cache_dtype}",enable_prefix_caching="True",engine="1"{extra}}} 1.0
vllm:nixl_num_failed_transfers_total{{engine="0"}} 0.0
"""
    return {
        "/version": {"version": "0.33.0"},
        "/v1/models": {"object": "list", "data": [{"id": "qwen", "root": "Qwen/Qwen3-32B", "max_model_len": 32768}]},
        "/metrics": metrics,
    }


DEVELOPMENT = {
    "vllm_config": {
        "model_config": {
            "model": "Qwen/Qwen3-32B",
            "dtype": "torch.bfloat16",
            "max_model_len": 4096,
            "hf_token": SECRET,
        },
        "cache_config": {"block_size": 64, "cache_dtype": "fp8_e4m3"},
        "parallel_config": {"tensor_parallel_size": 4, "enable_expert_parallel": False},
        "attention_config": {"backend": "FLASH_ATTN"},
        "kv_transfer_config": {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_consumer",
            "kv_connector_module_path": None,
            "kv_connector_extra_config": {"kv_lease_duration": 60, "api_key": SECRET},
        },
        "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3, "draft_model_config": {}},
    },
    "vllm_env": {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.2",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": 5600,
        "VLLM_API_KEY": SECRET,
        "VLLM_DEBUG": 1,
    },
}

SGLANG = {
    "version": "0.5.23",
    "model_path": "Qwen/Qwen3-32B",
    "served_model_name": "qwen",
    "tp_size": 2,
    "dp_size": 1,
    "page_size": 64,
    "kv_cache_dtype": "fp8_e4m3",
    "dtype": "auto",
    "disaggregation_mode": "prefill",
    "disaggregation_transfer_backend": "nixl",
    "disaggregation_bootstrap_port": 8998,
    "enable_dp_attention": False,
    "disable_radix_cache": False,
    "api_key": SECRET,
    "chunked_prefill_size": 8192,
    "ep_size": 1,
    "internal_states": [{"memory_usage": {}}],
}


def test_a_vllm_pair_is_read_from_its_open_answers():
    with serving(vllm(64, "fp8_e4m3", kv_cache_layout="LBHNC")) as (p, _), serving(vllm(32, "fp8_e4m3")) as (d, _):
        deployment = probe([p, d])
    prefill, decode = deployment.roles
    assert (prefill.role, decode.role) == (Role.PREFILL, Role.DECODE)
    assert (prefill.engine, prefill.version) == (Engine.VLLM, Version((0, 33, 0)))
    assert (prefill.model, prefill.served_name, prefill.max_model_len) == ("Qwen/Qwen3-32B", "qwen", 32768)
    assert (prefill.block_size, decode.block_size, prefill.kv_cache_dtype, prefill.prefix_caching) == (
        64,
        32,
        "fp8_e4m3",
        True,
    )
    assert (prefill.dp, prefill.connector.name, prefill.connector.role) == (2, "NixlConnector", "kv_producer")
    assert prefill.env_text("VLLM_KV_CACHE_LAYOUT") == "LBHNC"
    assert prefill.places["block_size"] == f"{p}/metrics"
    assert len(deployment.unknown) == 2
    assert [broken.rule.id for broken in check(deployment, Catalog.load()).broken] == ["VN8"]


def test_development_mode_tells_everything_but_its_secrets():
    with serving({**vllm(), "/server_info": DEVELOPMENT}) as (url, _):
        deployment = probe([url])
    (config,) = deployment.roles
    assert config.role is Role.DECODE  # it says so itself
    assert (config.tp, config.dtype, config.block_size, config.attention_backend) == (4, "bfloat16", 64, "FLASH_ATTN")
    assert config.connector.extra["kv_lease_duration"] == 60
    assert config.speculative == {"method": "eagle3", "num_speculative_tokens": 3}
    assert config.env_text("VLLM_NIXL_SIDE_CHANNEL_PORT") == "5600"
    assert "VLLM_DEBUG" not in config.env
    assert deployment.unknown == ()
    assert SECRET not in repr(deployment)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_a_sglang_server_tells_its_settings_as_resolved(path):
    with serving({path: SGLANG}) as (url, _):
        deployment = probe([url])
    (config,) = deployment.roles
    assert (config.engine, config.version, config.role) == (Engine.SGLANG, Version((0, 5, 23)), Role.PREFILL)
    assert (config.model, config.tp, config.block_size, config.kv_cache_dtype) == ("Qwen/Qwen3-32B", 2, 64, "fp8_e4m3")
    assert (config.max_batched_tokens, config.ep, config.prefix_caching) == (8192, False, None)
    assert config.options["disaggregation-transfer-backend"] == "nixl"
    assert config.options["disaggregation-bootstrap-port"] == 8998
    assert config.places["block_size"] == url + path
    assert SECRET not in repr(deployment)


def test_a_bootstrap_server_tells_what_decode_will_compare():
    route = {
        "attn_tp_size": 2,
        "attn_cp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "page_size": 64,
        "kv_cache_dtype": "fp8_e4m3",
    }
    route |= {"follow_bootstrap_room": True, "prefill_http_port": 30000}
    decode = {**SGLANG, "disaggregation_mode": "decode", "page_size": 32}
    with serving({"/route": route}) as (p, asked), serving({"/server_info": decode}) as (d, _):
        deployment = probe([p, d])
    (prefill,) = deployment.of(Role.PREFILL)
    assert (prefill.role, prefill.tp, prefill.block_size, prefill.port) == (Role.PREFILL, 2, 64, 30000)
    assert prefill.places["block_size"] == p + "/route"
    assert "prefill_dp_rank=-1" in asked[-1]
    assert "SG1" in [broken.rule.id for broken in check(deployment, Catalog.load()).broken]


def test_a_worker_of_dynamo_is_known_by_its_metrics_and_a_frontend_is_the_router():
    health = {"status": "healthy", "instances": [{"component": "prefill"}, {"component": "backend"}, 3]}
    with serving({"/metrics": vllm(64)["/metrics"]}) as (worker, _), serving({"/health": health}) as (front, _):
        deployment = probe([worker, front])
    (config,) = deployment.roles
    assert (config.engine, config.version, config.block_size) == (Engine.VLLM, None, 64)
    assert deployment.router.settings == {"components": ("backend", "prefill")}
    with serving({"/health": health}) as (front, _), pytest.raises(InvalidInput, match="only a frontend answers"):
        probe([front])


def test_nothing_is_asked_but_to_read():
    with serving(vllm()) as (url, asked):
        probe([url])
    assert {path.partition("?")[0] for path in asked} == {"/version", "/v1/models", "/metrics", "/server_info"}


# ---- servers that cannot be used ------------------------------------------------------------------------------------------


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_every_address_that_does_not_answer_is_named():
    first, second = closed_port(), closed_port()
    with pytest.raises(InvalidInput) as caught:
        probe([f"http://127.0.0.1:{first}", f"127.0.0.1:{second}"])
    assert [finding.where for finding in caught.value.findings] == [
        f"http://127.0.0.1:{first}",
        f"http://127.0.0.1:{second}",
    ]
    assert "connection refused" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file:///etc/passwd", "file is not asked"),
        ("ftp://host/x", "ftp is not asked"),
        (f"http://me:{SECRET}@host:8000", "user and password"),
        ("http://", "is not asked"),
        ("http://host:99999", "cannot be read"),
        ("http://[::1", "cannot be read"),
    ],
)
def test_an_address_that_is_none_is_refused_without_being_asked(url, says):
    with pytest.raises(InvalidInput, match=says) as caught:
        probe([url])
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "routes",
    [
        {},
        {"/version": "not json"},
        {"/version": [1]},
        {"/version": "[" * 100_000},
        {"/server_info": {"a": 1}},
        {"/metrics": "up 1"},
    ],
)
def test_a_server_of_another_kind_is_told_apart(routes):
    with serving(routes) as (url, _), pytest.raises(InvalidInput, match="as no server that is known"):
        probe([url])


def test_an_answer_without_end_is_cut(monkeypatch):
    monkeypatch.setattr(fetch, "MAX_ANSWER", 10_000)
    with serving({"/version": b"x" * 20_000}) as (url, _), pytest.raises(InvalidInput, match="more than 10,000 bytes"):
        probe([url])


def test_a_silent_server_is_left_after_the_timeout():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(InvalidInput, match="no answer in time"):
            probe([f"http://127.0.0.1:{silent.getsockname()[1]}"], timeout=0.2)


def test_a_server_that_speaks_no_http_is_told_apart():
    with socket.socket() as odd:
        odd.bind(("127.0.0.1", 0))
        odd.listen()

        def answer():
            with contextlib.suppress(OSError):
                connection, _ = odd.accept()
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-x\r\n")
                connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(InvalidInput):
            probe([f"http://127.0.0.1:{odd.getsockname()[1]}"], timeout=2)
        thread.join()


def test_a_redirect_to_another_host_is_not_followed():
    with serving(vllm()) as (elsewhere, asked):
        moved = {"/version": (302, {"Location": elsewhere + "/version"})}
        with serving(moved) as (url, _), pytest.raises(InvalidInput, match="as no server that is known"):
            probe([url])
    assert asked == []


def test_a_redirect_on_the_same_host_is():
    with serving({**vllm(), "/v": {"version": "0.33.0"}, "/version": (302, {"Location": "/v"})}) as (url, _):
        assert probe([url]).roles[0].version == Version((0, 33, 0))


def test_proxies_of_the_environment_are_ignored(monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("no_proxy", "")
    with serving(vllm()) as (url, _):
        assert probe([url]).roles[0].version == Version((0, 33, 0))


def test_values_of_the_wrong_type_are_not_believed():
    wrong = {**SGLANG, "tp_size": "two", "page_size": True, "kv_cache_dtype": 8, "dtype": None, "version": {"a": 1}}
    with serving({"/server_info": wrong}) as (url, _):
        (config,) = probe([url]).roles
    assert (config.tp, config.block_size, config.kv_cache_dtype, config.version) == (1, None, "auto", None)


def test_values_of_the_wrong_type_are_not_believed_of_vllm_either():
    wrong = {
        "cache_config": {"block_size": "64"},
        "parallel_config": {"tensor_parallel_size": True, "enable_expert_parallel": 1},
        "model_config": {"model": 5},
        "kv_transfer_config": [],
        "speculative_config": 7,
    }
    with serving({**vllm(), "/server_info": {"vllm_config": wrong}}) as (url, _):
        (config,) = probe([url]).roles
    assert (config.tp, config.ep, config.block_size, config.model, config.connector) == (
        1,
        False,
        16,
        "Qwen/Qwen3-32B",
        None,
    )


def test_labels_with_quotes_and_commas_are_read():
    line = 'vllm:cache_config_info{a="x,\\"y\\"",block_size="16"} 1.0'
    assert cache_labels(line) == [{"a": 'x,\\"y\\"', "block_size": "16"}]


def test_development_mode_tells_that_it_runs_on_a_cpu_and_blocks_that_are_packed_there_are_told():
    """As vLLM 0.32 says it: the device's type is left out of what it dumps."""
    on_cpu = {**DEVELOPMENT, "vllm_config": {**DEVELOPMENT["vllm_config"], "device_config": {"device": "cpu"}}}
    sides = []
    for role, size in (("kv_producer", 64), ("kv_consumer", 128)):
        config = {
            **on_cpu["vllm_config"],
            "cache_config": {"block_size": size, "cache_dtype": "auto"},
            "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"},
        }
        sides.append({**vllm(size), "/server_info": {**on_cpu, "vllm_config": config}})
    with serving(sides[0]) as (p, _), serving(sides[1]) as (d, _):
        report = check(probe([p, d]), Catalog.load())
    assert [config.gpu for config in report.deployment.roles] == ["cpu", "cpu"]
    assert "VN32" in [each.rule.id for each in report.broken]


def test_so_many_prefills_first_and_our_connector_by_its_metrics():
    ours = {**vllm(), "/metrics": vllm()["/metrics"].replace("vllm:nixl_num_failed_transfers", "vllm:diptych_sent")}
    with serving(ours) as (a, _), serving(ours) as (b, _), serving(ours) as (c, _):
        found = probe([a, b, c], prefills=2)
    assert [config.role for config in found.roles] == [Role.PREFILL, Role.PREFILL, Role.DECODE]
    assert {config.connector.name for config in found.roles} == {"DiptychConnector"}
    assert [each.rule.id for each in check(found, Catalog.load()).broken] == []
