"""`diptych check` and `diptych deploy` as a stranger uses them: commands, files, scripts of our own making, and wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MANIFESTS = Path(__file__).parents[1] / "data" / "manifests"
NIXL = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"%s"}'"""
HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.%d"
PREFILL = f"{HOST % 1} vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 {NIXL % 'kv_producer'}"
DECODE = f"{HOST % 2} vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 {NIXL % 'kv_consumer'}"
DESIGN = "3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, pull"


def test_a_pair_of_one_format_passes(told) -> None:
    code, out, _ = told(
        "check", "--prefill", PREFILL, "--decode", DECODE, "--prefill-gpu", "H100", "--decode-gpu", "H20"
    )
    assert code == 0
    assert "compatible" in out
    assert "nothing found" in out


def test_a_clash_is_told_by_what_is_stored(told) -> None:
    code, out, _ = told("check", "--prefill", f"{PREFILL} --kv-cache-dtype fp8", "--decode", DECODE,
                           "--prefill-gpu", "H100", "--decode-gpu", "H20")  # fmt: skip
    assert code == 1
    for said in (
        "VN4",
        "fails each request while pods look healthy",
        "e4m3fn ('fp8')",
        "bf16 ('auto')",
        "change",
        "source",
    ):
        assert said in out


def test_silent_garbage_across_vendors_is_named(told) -> None:
    pinned = "--kv-cache-dtype fp8_e4m3 --attention-backend TRITON_ATTN --block-size 16"
    code, out, _ = told("check", "--prefill", f"{PREFILL} {pinned}", "--decode", f"{DECODE} {pinned}",
                           "--prefill-gpu", "H100", "--decode-gpu", "MI300X")  # fmt: skip
    assert code == 1
    assert "silently wrong output" in out
    assert "e4m3fnuz" in out


def test_two_spellings_of_one_format_are_told_as_such(told) -> None:
    code, out, _ = told("check", "--prefill", f"{PREFILL} --kv-cache-dtype bfloat16", "--decode", DECODE,
                           "--prefill-gpu", "H100", "--decode-gpu", "H20")  # fmt: skip
    assert code == 1  # vLLM refuses it all the same
    assert "the bytes are the same, only the spelling differs" in out
    assert "write --kv-cache-dtype bfloat16 on both roles" in out
    assert "compatible" in out


def test_unlike_sizes_that_the_engine_brings_together_are_told_as_fine(told) -> None:
    code, out, _ = told("check", "--prefill", PREFILL, "--decode", DECODE,
                           "--prefill-gpu", "H100", "--decode-gpu", "H20")  # fmt: skip
    assert code == 0
    assert "fine, though it looks wrong  TP 2 against TP 4" in out


@pytest.mark.parametrize("name", ["dynamo_vllm", "dynamo_sglang", "kserve", "llm_d"])
def test_the_hand_written_manifests_pass(told, name) -> None:
    code, out, _ = told("check", MANIFESTS / f"{name}.yaml", "--strict")
    assert code == 0, out


def test_json_sarif_and_annotations_say_the_same(told, tmp_path) -> None:
    text = (MANIFESTS / "dynamo_vllm.yaml").read_text(encoding="utf-8")
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace('"--kv-cache-dtype", "fp8_e4m3"', '"--kv-cache-dtype", "auto"', 1), encoding="utf-8")
    _, out, _ = told("check", broken, "--json")
    found = json.loads(out)["findings"]
    assert [each["rule"] for each in found] == ["VN4"]
    _, out, _ = told("check", broken, "--format", "sarif")
    sarif = json.loads(out)["runs"][0]
    assert sarif["results"][0]["ruleId"] == "VN4"
    (first, *_) = sarif["results"][0]["locations"]
    assert first["physicalLocation"]["artifactLocation"]["uri"] == str(broken)
    assert first["physicalLocation"]["region"]["startLine"] > 1
    code, out, _ = told("check", broken, "--format", "github")
    assert code == 1
    assert out.startswith(f"::error file={broken},line=")
    assert out.count("\n") == 1


def test_a_typo_in_a_manifest_is_found(told, tmp_path) -> None:
    text = (MANIFESTS / "dynamo_vllm.yaml").read_text(encoding="utf-8")
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace("nodeSelector:", "nodeSelectr:", 1), encoding="utf-8")
    code, out, err = told("check", broken)
    assert code in (1, 2)
    assert "nodeSelectr" in out + err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check",), "nothing to check"),
        (("check", "--prefill", PREFILL), "--decode: is missing"),
        (("check", "nosuch.yaml"), "no such file"),
        (("check", "--prefill", "echo hello", "--decode", DECODE), "no engine that is known"),
        (("check", "--prefill", "vllm serve 'open", "--decode", DECODE), "prefill"),
        (("check", "--prefill", PREFILL, "--decode", DECODE, "--prefill-gpu", "H10"), "did you mean"),
        (("check", "--prefill", PREFILL, "--decode", DECODE, "--engine", "vlm@0.33"), "did you mean vllm"),
        (("check", "--prefill", PREFILL, "--decode", DECODE, "--engine", "vllm@x"), "not a version"),
        (("check", "--prefill", PREFILL, "--decode", DECODE, "--engine", "vllm@9.9"), "vllm 9.9.0 is not known"),
        (("check", "--prefill", PREFILL, "--decode", DECODE, "--decode-gpu", "H1000"), "--decode-gpu: unknown"),
        (
            ("deploy", "--design", DESIGN, "--model", "Qwen3-32B", "--target", "vllm", "--engine-version", "9.9"),
            "9.9.0",
        ),
        (("check", "--prefill", PREFILL, "--decode", DECODE, "--format", "xml"), "unknown format"),
        (("check", "--live", "ftp://x"), "ftp"),
        (("check", "--live", "http://127.0.0.1:9"), "127.0.0.1:9"),
        (("deploy",), "--target: is missing"),
        (("deploy", "--design", DESIGN, "--model", "Qwen3-32B", "--target", "vlm"), "did you mean vllm"),
        (("deploy", "--design", DESIGN, "--model", "Qwen3-32B", "--target", "vllm", "--image", "x y"), "not an image"),
    ],
)
def test_wrong_input_is_a_sentence_and_exit_code_2(told, words, says) -> None:
    code, out, err = told(*words)
    assert code == 2, out
    assert says in err
    assert "Traceback" not in err


def test_a_file_of_ten_megabytes_and_a_yaml_bomb_are_sentences(told, tmp_path) -> None:
    large = tmp_path / "large.yaml"
    large.write_bytes(b"a: " + b"x" * 10_000_000)
    bomb = tmp_path / "bomb.yaml"
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    bomb.write_text("apiVersion: v1\nkind: List\n" + "\n".join(levels), encoding="utf-8")
    for file in (large, bomb):
        code, _, err = told("check", file)
        assert code == 2
        assert str(file) in err


def test_secrets_are_never_echoed(told) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz012345"
    for form in ("text", "json", "sarif", "github"):
        _, out, err = told("check", "--prefill", f"HF_TOKEN={secret} {PREFILL} --api-key {secret} --nonsense {secret}",
                              "--decode", DECODE, "--format", form)  # fmt: skip
        assert secret not in out + err


def test_what_deploy_writes_check_accepts(told, tmp_path) -> None:
    code, out, _ = told(
        "deploy", "--design", DESIGN, "--model", "Qwen3-32B", "--target", "vllm", "--out", tmp_path / "d"
    )
    assert code == 0
    assert "README.md" in out
    assert (tmp_path / "d" / "prefill.sh").stat().st_mode & 0o100
    code, out, _ = told("check", *sorted((tmp_path / "d").glob("*.sh")))
    assert code == 0, out


def test_a_refusal_names_the_nearest_design_which_can_be_deployed(told, tmp_path) -> None:
    mixed = "3xH100:kv=bf16 -> 5xH20:tp4:kv=fp8, link=rdma-400g, pull"
    code, _, err = told(
        "deploy", "--design", mixed, "--model", "Qwen3-32B", "--target", "vllm", "--out", tmp_path / "d"
    )
    assert code == 1
    assert "converts nothing" in err
    assert not (tmp_path / "d").exists()
    nearest = err.split('--design "')[1].split('"')[0]
    code, _, err = told(
        "deploy", "--design", nearest, "--model", "Qwen3-32B", "--target", "vllm", "--out", tmp_path / "d"
    )
    assert code == 0, err


def test_deploy_does_not_write_over_a_strangers_folder(told, tmp_path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    code, _, err = told("deploy", "--design", DESIGN, "--model", "Qwen3-32B", "--target", "vllm", "--out", tmp_path)
    assert code == 2
    assert "did not write" in err


def test_check_is_quick_to_load() -> None:
    """What it needs is loaded and nothing slow besides: neither arrays, nor the planner, nor a database."""
    script = (
        "import sys; from diptych.cli import main\n"
        f"sys.argv = ['diptych', 'check', '--prefill', {PREFILL!r}, '--decode', {DECODE!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('numpy', 'duckdb', 'highspy', 'jinja2', 'diptych.planner') if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr.strip().endswith("[]")
