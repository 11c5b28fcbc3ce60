"""What a generated README tells an operator to run, run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from diptych.deploy.read import read_deployment
from diptych.design.axes import Role

GOLDEN = Path(__file__).parents[3] / "golden" / "deploy"
DISAGGREGATED = ("compose", "dynamo-sglang", "dynamo-vllm", "kserve", "llm-d", "sglang", "vllm")


def block(target: str, heading: str) -> str:
    text = (GOLDEN / target / "README.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```(?:bash)?\n(.*?)```", section, re.DOTALL)
    return code


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_the_way_back_is_a_colocated_worker(target: str, tmp_path: Path) -> None:
    (tmp_path / "decode.sh").write_text((GOLDEN / target / "decode.sh").read_text(encoding="utf-8"), encoding="utf-8")
    edit = block(target, "Fall back").split("&&")[0]
    subprocess.run(["bash", "-c", edit], cwd=tmp_path, check=True)
    assert subprocess.run(["bash", "-n", "colocated.sh"], cwd=tmp_path, check=False).returncode == 0
    (role,) = read_deployment(tmp_path / "colocated.sh").roles
    (decode,) = read_deployment(tmp_path / "decode.sh").roles
    assert decode.role is not Role.COLOCATED
    assert role.role is Role.COLOCATED
    assert (role.model, role.tp, role.kv_cache_dtype) == (decode.model, decode.tp, decode.kv_cache_dtype)


@pytest.mark.parametrize("target", ["vllm", "sglang", "compose"])
def test_the_canary_is_given_every_worker_of_the_hosts_file(target: str, tmp_path: Path) -> None:
    hosts = (GOLDEN / target / "hosts.env").read_text(encoding="utf-8")
    (tmp_path / "hosts.env").write_text(hosts, encoding="utf-8")
    code = block(target, "Prove that KV arrives").replace("python3 canary.py", "echo")
    said = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    for role in ("prefill", "decode"):
        (listed,) = re.findall(rf'^{role.upper()}_WORKERS="(.*)"$', hosts, re.MULTILINE)
        given = [said[index + 1] for index, word in enumerate(said) if word == f"--{role}"]
        assert given == [f"http://{address}" for address in listed.split()]


@pytest.mark.parametrize("target", DISAGGREGATED)
def test_every_block_is_valid_shell(target: str) -> None:
    code = block(target, "Prove that KV arrives")
    assert subprocess.run(["bash", "-n"], input=code, text=True, check=False).returncode == 0


@pytest.mark.parametrize("target", DISAGGREGATED)
def test_sentences_end_once_and_no_paragraphs_gape(target: str) -> None:
    text = (GOLDEN / target / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"[a-z)]\.\.(\s|$)", text)
    assert "\n\n\n" not in text
