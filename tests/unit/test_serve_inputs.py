"""The words of `diptych serve`: what they come to, and everything that can be wrong with them."""

import os
from pathlib import Path

import pytest
import trustme

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.cli.serve_design import cut, nearest_kv, nearest_weights, of_design
from diptych.cli.serve_engines import read_engines
from diptych.cli.serve_inputs import read_setup
from diptych.cli.serve_pools import KV, WEIGHTS, parse_pool
from diptych.cli.serve_words import parse_policy, parse_residency
from diptych.design.text import parse_design
from diptych.errors import InvalidInput
from diptych.runtime.engines.torch.linear import Weights
from diptych.runtime.engines.torch.paged import STORED
from diptych.runtime.gateway.settings import OnLoss
from diptych.runtime.launch.machine import Machine
from diptych.runtime.remote.halves import Protocol
from diptych.runtime.worker.config import Toy, toy_format


def setup(pools=None, **given):
    return read_setup({"model": "toy", "port": 0, "host": "127.0.0.1", **given}, lambda text: None, pools or {})


def findings(**given):
    with pytest.raises(InvalidInput) as caught:
        setup(**given)
    return [str(each) for each in caught.value.findings]


def test_the_words_for_precisions_are_the_engines():
    assert list(WEIGHTS) == list(Weights)
    assert set(KV) == set(STORED)


def test_a_fleet_by_default_and_one_that_is_spelled_out():
    plain = setup().fleet
    assert [(pool.role, pool.count) for pool in plain.pools] == [("prefill", 1), ("decode", 1)]
    assert plain.gateway.port > 0
    full = setup(
        prefill="2 x cpu, kv=bf16, threads=2, blocks=99, usd=0.5", decode="3×cpu, kv=int8-token", ownership="pull",
        residency="dram:2MiB, nvme:/var/kv:20GiB, kvstore:1GiB", policy="prefill=other, decode=recompute",
        slo="ttft_p90<2s, ttft_p50<1s, tpot_p90<50ms", lease="5s", short_prompt=64, transport="shm",
    ).fleet  # fmt: skip
    prefill, decode = full.pools
    assert (prefill.count, prefill.engine, prefill.threads, prefill.usd) == (2, Toy(blocks=99, kv="bf16"), 2, 0.5)
    assert decode.names == ("decode-0", "decode-1", "decode-2")
    gateway = full.gateway
    assert (gateway.ownership, gateway.lease_seconds, gateway.short_prompt) == ("pull", 5.0, 64)
    assert (gateway.prefill_loss, gateway.decode_loss) == (OnLoss.OTHER, OnLoss.RECOMPUTE)
    assert (gateway.objectives.ttft, gateway.objectives.tpot) == (1.0, 0.05)
    assert [(tier.kind, tier.bytes, tier.place) for tier in full.tiers] == [
        ("dram", 2 << 20, ""),
        ("nvme", 20 << 30, "/var/kv"),
    ]
    assert full.store == 1 << 30
    assert (plain.transport, full.transport) == ("unix", "shm")


def test_colocated_workers_alone():
    (pool,) = setup(colocated="2 x cpu").fleet.pools
    assert (pool.role, pool.count) == ("colocated", 2)


def test_flags_override_the_design_that_is_served():
    fleet = setup({"prefill": "1 x cpu", "decode": "1 x cpu"}, decode="2 x cpu").fleet
    assert [pool.count for pool in fleet.pools] == [1, 2]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", 1),
        ("cpu:", 1),
        ("-1 x cpu", 1),
        ("1 x cpu:bf17", 1),
        ("0 x cpu:bf17, kv=int9, threads=0, blocks=-1, usd=nan, colour=red", 7),
        ("1 x cpu:bf16, kv", 1),
        ("1 x cpu:bf16, usd=1e400", 1),
        ("9999999 x cpu", 1),
        ("1 x cuda:0:bf16; rm -rf", 1),
        ("١ x cpu", 1),
    ],
)
def test_pools_that_are_none(text, problems):
    with pytest.raises(InvalidInput) as caught:
        parse_pool("decode", text, toy=False)
    assert len(caught.value.findings) == problems, caught.value


def test_pools_on_devices():
    assert parse_pool("decode", "cuda:1:int8, kv=fp8", toy=False).device == "cuda:1"
    assert parse_pool("decode", "cuda:bf16", toy=False).weights == "bf16"
    assert parse_pool("decode", "cpu", toy=False).weights == ""


@pytest.mark.parametrize("text", ["dram", "dram:0", "dram:1PB:", "nvme:2GiB", "nvme:rel:2GiB", "remote:", "remote:unix:x",
                                  "tape:1GiB", "dram:2GiB,,", "remote:unix:/a, kvstore:1GiB", "nvme:/a:nan GiB"])  # fmt: skip
def test_tiers_that_are_none(text):
    with pytest.raises(InvalidInput):
        parse_residency(text)


@pytest.mark.parametrize("text", ["prefill", "prefill=", "both=fail", "prefill=fail, prefill=other", "decode=Fail"])
def test_policies_that_are_none(text):
    with pytest.raises(InvalidInput):
        parse_policy(text)


def test_everything_wrong_is_told_at_once():
    told = findings(prefill="1 x tpu", decode="2 x cpu:int8", ownership="steal", residency="tape:1", policy="x", slo="y",
                    transport="rdma", lease="1ms", token_file="/nowhere", tls_cert="/nowhere", port=70000, host="0.0.0.0",
                    short_prompt=-1)  # fmt: skip
    for flag in ("--prefill", "--decode", "--ownership", "--residency", "--policy", "--slo", "--lease", "--token-file",
                 "--transport", "--tls-cert", "--port", "--short-prompt"):  # fmt: skip
        assert any(line.startswith(flag) for line in told), (flag, told)


# --- off loopback -----------------------------------------------------------------------------------------------------


@pytest.fixture
def secrets(tmp_path):
    token = tmp_path / "token"
    token.write_text("k" * 32 + "\n")
    token.chmod(0o600)
    made = trustme.CA().issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    return {"token_file": str(token), "tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.test"])
@pytest.mark.parametrize("missing", ["token_file", "tls_cert", "tls_key"])
def test_off_loopback_each_secret_is_needed(secrets, host, missing):
    given = {name: value for name, value in secrets.items() if name != missing}
    assert any(missing.replace("_", "-") in line for line in findings(host=host, **given))


def test_off_loopback_with_all_of_them(secrets):
    fleet = setup(host="0.0.0.0", **secrets).fleet
    assert fleet.gateway.api_key == "k" * 32
    assert fleet.url.startswith("https://127.0.0.1:")


def test_a_key_that_others_can_read_is_none(secrets):
    os.chmod(secrets["token_file"], 0o644)
    (line,) = findings(token_file=secrets["token_file"])
    assert "chmod 600" in line


@pytest.mark.parametrize("text", ["", "short", "k" * 300, "with a space in the middle", "ключ-ключ-ключ-ключ"])
def test_keys_that_are_none_are_never_shown(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    (line,) = findings(token_file=str(path))
    assert not text or text not in line


# --- designs ----------------------------------------------------------------------------------------------------------


def test_a_design_is_cut_to_the_machine_and_that_is_said():
    catalog = Catalog.load()
    model = catalog.model("Llama-3.1-70B")
    design = parse_design(
        "3xH100:tp2:w=fp8:a=fp8:kv=bf16 -> 5xH20:tp4:w=bf16:kv=fp8, link=rdma-400g, pull", catalog, model
    )
    stand = of_design(design, Machine(4, 1 << 34), "cpu", toy=False, named=False)
    assert stand.pools == {"prefill": "1 x cpu:int8, kv=bf16", "decode": "3 x cpu:bf16, kv=fp8"}
    assert stand.ownership == "pull"
    assert "weights fp8 as int8" in " ".join(stand.notes)
    assert "the demo model stands in for Llama-3.1-70B" in stand.notes[0]
    for role, text in stand.pools.items():
        parse_pool(role, text, toy=False)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_format_has_one_that_stands_in(dtype):
    assert nearest_weights(dtype) in WEIGHTS
    assert nearest_kv(dtype) in KV
    assert WEIGHTS[nearest_weights(dtype)] >= dtype.bytes or dtype.bytes > 4


@pytest.mark.parametrize("most", range(1, 12))
def test_cutting_keeps_every_role(most):
    kept = cut({"prefill": 7, "decode": 2}, most)
    assert min(kept.values()) >= 1
    assert sum(kept.values()) <= max(most, 2)
    assert toy_format("int8")


# --- prices -------------------------------------------------------------------------------------------------------------


def test_prices_by_role_and_a_pools_own_wins():
    fleet = setup({"prefill": "1 x cpu, usd=9", "decode": "2 x cpu"}, prices="prefill=4, decode=2.5").fleet
    assert [pool.usd for pool in fleet.pools] == [9, 2.5]
    assert fleet.gateway.alternative_usd is None


@pytest.mark.parametrize(
    "text", ["aws", "prefil=2", "prefill=-1", "prefill=x", "prefill=", "decode=2,,", "decode=1e99"]
)
def test_prices_that_are_none(text):
    assert any(line.startswith("--prices") for line in findings(prices=text)), findings(prices=text)


# --- other engines ----------------------------------------------------------------------------------------------------


def test_running_workers_and_what_may_not_be_said_beside_them():
    given = {"engine": "sglang", "prefill_url": ["http://p:1/"], "decode_url": ["http://d:2"], "port": 0,
             "host": "127.0.0.1", "bootstrap_port": 9001}  # fmt: skip
    foreign = read_engines(given, lambda text: None).foreign
    assert foreign.protocol is Protocol.SGLANG
    (prefill,) = foreign.prefills
    assert (prefill.url, prefill.bootstrap_host, prefill.bootstrap_port) == ("http://p:1", "p", 9001)
    assert not foreign.recompute
    assert read_engines({**given, "engine": "vllm", "policy": "prefill=recompute"}, lambda text: None).foreign.recompute
    with pytest.raises(InvalidInput, match="asks both halves at once"):
        read_engines({**given, "policy": "prefill=recompute"}, lambda text: None)
    with pytest.raises(InvalidInput) as caught:
        read_engines({"engine": "vlm", "prefill_url": ["p:1", "http://u:p@h:1", "http://h/path"], "model": "x",
                      "decode": "1 x cpu", "port": 0, "host": "0.0.0.0"}, lambda text: None)  # fmt: skip
    told = [str(each) for each in caught.value.findings]
    for flag in ("--engine", "--prefill-url", "--decode-url", "--model", "--decode", "--token-file", "--tls-cert"):
        assert any(line.startswith(flag) for line in told), (flag, told)


def test_no_word_of_the_checkpoint_of_a_folder_without_a_tokenizer(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    told = findings(model=str(tmp_path))
    assert any("config.json" in line for line in told)
