"""Every target's files, read back by our own reader: the settings that were meant, and no rule broken."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from diptych.catalog.catalog import Catalog
from diptych.deploy.generate import canary
from diptych.deploy.generate.generate import generate
from diptych.deploy.generate.request import Answer, Request, inexpressible, nearest
from diptych.deploy.generate.target import Target
from diptych.deploy.read import read_deployment
from diptych.design.axes import Role
from diptych.design.text import parse_design
from diptych.engines.check import check
from diptych.engines.deployment import Deployment
from diptych.engines.rule import Severity
from diptych.metrics.slo import SLO

CATALOG = Catalog.load()
GOLDEN = Path(__file__).parents[3] / "golden" / "deploy"
APART = "3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g"
DESIGNS = {
    "fp8 KV over RDMA": APART,
    "two generations share a backend": "2xH100:tp2 -> 4xL40S:tp4, kv=fp8, link=tcp-100g",
    "16-bit KV, more ranks on prefill": "1xH100:tp4 -> 2xA100-80GB:tp2, kv=bf16, link=rdma-200g",
    "on EFA": "1xH100:tp2 -> 2xH100:tp2:w=fp8, kv=fp8, link=efa",
}
FILES = {
    Target.VLLM: ("prefill.sh", "decode.sh"),
    Target.SGLANG: ("prefill.sh", "decode.sh"),
    Target.COMPOSE: ("compose.yaml",),
    Target.DYNAMO_VLLM: ("dynamo.yaml",),
    Target.DYNAMO_SGLANG: ("dynamo.yaml",),
    Target.KSERVE: ("llminferenceservice.yaml",),
    Target.LLM_D: ("values.yaml",),
}


def request_of(target: Target, text: str = APART, model: str = "Qwen3-32B", **more: object) -> Request:
    known = CATALOG.model(model)
    if "->" in text and "push" not in text and "pull" not in text:
        text += ", push" if "sglang" in target else ", pull"
    return Request(parse_design(text, CATALOG, known), known, target, **more)  # type: ignore[arg-type]


def read_back(target: Target, files: dict[str, str]) -> Deployment:
    """The files of a target as one deployment."""
    parts = [read_deployment(files[name], name) for name in FILES[target]]
    roles = tuple(config for part in parts for config in part.roles)
    findings = tuple(finding for part in parts for finding in part.findings)
    return Deployment(roles, parts[0].router, parts[0].launcher, findings=findings)


@pytest.mark.parametrize("text", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("target", list(Target))
def test_what_is_written_is_read_back_as_it_was_meant(target: Target, text: str) -> None:
    request = request_of(target, text)
    made = generate(request, CATALOG)
    assert not made.is_refused, (made.refused, made.broken)
    found = read_back(target, dict(made.files))
    assert found.findings == ()
    for role in (Role.PREFILL, Role.DECODE):
        (meant,), (seen,) = request.deployment.of(role), found.of(role)
        for name in (
            "engine",
            "model",
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "block_size",
            "tp",
            "attention_backend",
        ):
            assert getattr(seen, name) == getattr(meant, name), name
        assert seen.env.keys() >= meant.env.keys()
        assert (seen.connector and seen.connector.fields) == (meant.connector and meant.connector.fields)
        if target.is_kubernetes:
            assert seen.replicas == meant.replicas
            assert CATALOG.accelerator(meant.gpu).name == meant.gpu
            assert seen.gpus_per_worker == meant.gpus_per_worker
    serious = [each for each in check(found, CATALOG).broken if each.severity is not Severity.SLOW]
    assert serious == []


@pytest.mark.parametrize("target", [Target.VLLM, Target.COMPOSE, Target.DYNAMO_VLLM, Target.KSERVE, Target.LLM_D])
def test_a_colocated_fleet_is_written_without_a_handoff(target: Target) -> None:
    made = generate(request_of(target, "4xH100:tp2:w=fp8"), CATALOG)
    assert not made.is_refused
    text = "".join(text for name, text in made.files.items() if not name.startswith("monitoring"))
    assert "kv-transfer-config" not in text
    assert "canary.py" not in made.files


@pytest.mark.parametrize("target", list(Target))
def test_the_folder_of_a_target_is_the_one_kept(target: Target) -> None:
    """Golden files: a change is reviewed as a diff. UPDATE_GOLDEN=1 writes them again."""
    request = request_of(
        target,
        slo=SLO.parse("ttft_p90<2s, tpot_p90<50ms"),
        headline="Prefill on H100-SXM-80GB, decode on H20-96GB.",
        checklist=(
            Answer("Is the link fast enough?", "yes", "40 % used"),
            Answer("Measured?", "no", "a preset", "measure"),
        ),
        command=f"diptych deploy runs/conv --target {target} --out deploy",
    )
    kept_as(str(target), dict(generate(request, CATALOG).files))


def kept_as(name: str, files: dict[str, str]) -> None:
    """The files are those of a golden folder, and the canary is the package's own script."""
    folder = GOLDEN / name
    assert files.pop("canary.py") == Path(canary.__file__).read_text(encoding="utf-8")
    if os.environ.get("UPDATE_GOLDEN"):
        for file, text in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
    kept = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()
    }
    assert sorted(files) == sorted(kept)
    for file, text in files.items():
        assert text == kept[file], file


CONVERTING = {
    "KV and dtype differ, prefill writes": "3xH100:tp2:kv=bf16 -> 5xH20:tp4:kv=fp8, link=rdma-400g, push",
    "int8 between, decode reads": "3xH100:tp2 -> 5xH20:tp4, kv=bf16, wire=int8, link=tcp-100g, pull",
    "layer by layer": "3xH100:tp2 -> 5xH20:tp4, kv=bf16, link=tcp-100g, push, layerwise",
}


@pytest.mark.parametrize("text", CONVERTING.values(), ids=CONVERTING)
def test_our_connector_carries_what_the_engines_own_refuses(text: str) -> None:
    request = request_of(Target.VLLM, text, connector="diptych")
    made = generate(request, CATALOG)
    assert not made.is_refused, (made.refused, made.broken)
    assert generate(request_of(Target.VLLM, text), CATALOG).is_refused
    found = read_back(Target.VLLM, dict(made.files))
    (prefill,), (decode,) = found.of(Role.PREFILL), found.of(Role.DECODE)
    assert prefill.connector.fields["kv_connector_module_path"] == "diptych.integrations.vllm"
    assert (prefill.connector.extra.get("ownership", "pull") == "push") is ("push" in text)
    assert not {"wire", "lease_s", "ownership"} & decode.connector.extra.keys()
    assert all(role.connector.extra["certificate"] for role in (prefill, decode))
    assert found.findings == ()
    assert [each for each in check(found, CATALOG).broken if each.severity is not Severity.SLOW] == []
    assert "NIXL_SIDE_CHANNEL" not in "".join(made.files.values())


def test_the_folder_with_our_connector_is_the_one_kept() -> None:
    request = request_of(
        Target.VLLM,
        CONVERTING["KV and dtype differ, prefill writes"],
        connector="diptych",
        command="diptych deploy runs/conv --target vllm --connector diptych --out deploy",
    )
    kept_as("vllm-diptych", dict(generate(request, CATALOG).files))


REFUSED_OF_OURS = [
    (Target.KSERVE, "1xH100 -> 1xH20, kv=bf16, link=rdma-400g, pull", "Qwen3-32B", "--connector diptych"),
    (Target.VLLM, "4xH100:tp2", "Qwen3-32B", "--connector diptych"),
    (Target.VLLM, "1xH100:tp8:pp2 -> 1xH20, kv=bf16, link=rdma-400g, pull", "Qwen3-32B", "over 2 nodes"),
    (Target.VLLM, "1xH100 -> 1xH20, kv=bf16, link=rdma-400g, local=800, pull", "Qwen3-32B", "prompts under 800"),
    (Target.VLLM, "1xH100:tp8 -> 1xH20:tp8, kv=fp8, link=rdma-400g, pull", "DeepSeek-V3", "VD8"),
    (Target.VLLM, "1xH100 -> 1xH20:kv=int8, link=rdma-400g, pull", "Qwen3-32B", "KV int8"),
]


@pytest.mark.parametrize(("target", "text", "model", "why"), REFUSED_OF_OURS)
def test_what_our_connector_does_not_serve_is_refused(target: Target, text: str, model: str, why: str) -> None:
    made = generate(request_of(target, text, model, connector="diptych"), CATALOG)
    assert made.files == {}
    assert why in " ".join([*(each.choice for each in made.refused), *(each.rule.id for each in made.broken)])


def test_prefill_workers_of_a_host_are_met_at_ports_of_their_own(tmp_path: Path) -> None:
    """Run for real with a stand-in for the engine and for the router."""
    text = CONVERTING["KV and dtype differ, prefill writes"]
    made = generate(request_of(Target.VLLM, text, connector="diptych"), CATALOG)
    for name in ("prefill.sh", "router.sh", "hosts.env"):
        (tmp_path / name).write_text(made.files[name], encoding="utf-8")
    for name in ("vllm", "diptych"):
        (tmp_path / name).write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOST_IP": "10.0.1.1"}

    def ran(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", *words], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return done.stdout.splitlines()

    worker = ran("prefill.sh", "1")
    extra = json.loads(worker[worker.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    assert (extra["port"], extra["host"]) == (8402, "10.0.1.1")
    assert "http://10.0.1.1:8100,8400" in ran("router.sh")


@pytest.mark.parametrize("target", [Target.VLLM, Target.SGLANG, Target.COMPOSE])
@pytest.mark.parametrize("text", [APART, "1xH100:tp2 -> 1xH20:tp8:pp2, kv=fp8, link=rdma-400g"])
def test_every_script_is_valid_shell(target: Target, text: str, tmp_path: Path) -> None:
    made = generate(request_of(target, text), CATALOG)
    for name, script in made.files.items():
        if name.endswith((".sh", ".env")):
            (tmp_path / name).write_text(script, encoding="utf-8")
            checked = subprocess.run(["bash", "-n", str(tmp_path / name)], capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stderr


def test_a_script_starts_the_engine_that_its_flags_say(tmp_path: Path) -> None:
    """Run for real with a stand-in for the engine: ports and accelerators move with the worker, words stay whole."""
    made = generate(request_of(Target.VLLM), CATALOG)
    (tmp_path / "decode.sh").write_text(made.files["decode.sh"], encoding="utf-8")
    shim = tmp_path / "vllm"
    shim.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" "$CUDA_VISIBLE_DEVICES" "$VLLM_NIXL_SIDE_CHANNEL_PORT"\n')
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOST_IP": "10.0.2.1"}
    ran = subprocess.run(
        ["bash", str(tmp_path / "decode.sh"), "1"], env=environment, capture_output=True, text=True, check=True
    )
    words = ran.stdout.splitlines()
    assert words[:2] == ["serve", "Qwen/Qwen3-32B"]
    assert words[words.index("--port") + 1] == "8201"
    assert words[words.index("--host") + 1] == "10.0.2.1"
    assert words[-2:] == ["4,5,6,7", "5801"]
    assert '"kv_role":"kv_consumer"' in words[words.index("--kv-transfer-config") + 1]


def test_the_router_is_given_every_worker(tmp_path: Path) -> None:
    made = generate(request_of(Target.SGLANG), CATALOG)
    for name in ("router.sh", "hosts.env"):
        (tmp_path / name).write_text(made.files[name], encoding="utf-8")
    shim = tmp_path / "python3"
    shim.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    shim.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", str(tmp_path / "router.sh")], env=environment, capture_output=True, text=True, check=True
    )
    words = ran.stdout.splitlines()
    assert words.count("--prefill") == 3
    assert words.count("--decode") == 5
    first = words.index("--prefill")
    assert words[first + 1 : first + 3] == ["http://10.0.1.1:8100", "8998"]


REFUSED = [
    (Target.VLLM, "1xH100:kv=bf16 -> 1xH20:kv=fp8, link=rdma-400g, pull", "KV bf16"),
    (Target.SGLANG, "1xH100 -> 1xH20, kv=fp8, link=rdma-400g, pull", "ownership pull"),
    (Target.VLLM, "1xH100 -> 1xH20, kv=fp8, link=rdma-400g, local=800, pull", "prompts under 800"),
    (Target.VLLM, "1xH100:w=int4 -> 1xH20, kv=bf16, link=rdma-400g, pull", "int4 weights for prefill"),
    (Target.KSERVE, "1xH100:tp8:pp2 -> 1xH20, kv=fp8, link=rdma-400g, pull", "over 2 nodes"),
    (Target.LLM_D, "1xH100+1xH200 -> 1xH20, kv=fp8, link=rdma-400g, pull", "a mixed prefill pool"),
]


@pytest.mark.parametrize(("target", "text", "choice"), REFUSED, ids=[choice for _, _, choice in REFUSED])
def test_what_a_target_cannot_express_is_refused_with_the_nearest(target: Target, text: str, choice: str) -> None:
    request = request_of(target, text)
    made = generate(request, CATALOG)
    assert made.files == {}
    (refusal,) = [each for each in made.refused if choice in each.choice]
    assert refusal.sentence
    assert refusal.nearest


@pytest.mark.parametrize(("target", "text"), [(target, text) for target, text, _ in REFUSED[:3]])
def test_the_nearest_design_is_expressible_and_keeps_the_hardware(target: Target, text: str) -> None:
    request = request_of(target, text)
    close = Request(nearest(request), request.model, target)
    assert inexpressible(close) == ()
    assert not generate(close, CATALOG).is_refused
    workers = [[member.worker.accelerator.name for pool in design.pools for member in pool.members]
               for design in (request.design, close.design)]  # fmt: skip
    assert workers[0] == workers[1]


def test_a_rule_that_the_result_would_break_stops_it() -> None:
    made = generate(request_of(Target.VLLM, "1xH100:tp2 -> 1xH20:tp3, kv=fp8, link=rdma-400g"), CATALOG)
    assert made.files == {}
    assert "VN7" in [each.rule.id for each in made.broken]


def test_a_short_prompt_threshold_reaches_each_router_that_has_one() -> None:
    text = "1xH100 -> 1xH20, kv=fp8, link=rdma-400g, local=800, pull"
    assert '"eff_isl_threshold": 800' in generate(request_of(Target.DYNAMO_VLLM, text), CATALOG).files["dynamo.yaml"]
    for target, name in ((Target.KSERVE, "llminferenceservice.yaml"), (Target.LLM_D, "epp-config.yaml")):
        assert "nonCachedTokens: 800" in generate(request_of(target, text), CATALOG).files[name]


def test_secrets_are_passed_through_never_written() -> None:
    for target in Target:
        text = "".join(generate(request_of(target), CATALOG).files.values())
        assert "HF_TOKEN" not in text or "${HF_TOKEN:-}" in text
