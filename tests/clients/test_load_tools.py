"""GuideLLM, lm-evaluation-harness and AIPerf before `diptych serve` with the demo model: what each measures must be so.

`make test-clients` makes an environment for each in the folder that DIPTYCH_CLIENTS names; without it they are skipped.
"""

import contextlib
import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

FOLDER = os.environ.get("DIPTYCH_CLIENTS", "")
MODEL, REVISION = "SmolLM2-135M-Instruct", "0" * 40
TASKS = Path(__file__).parent / "tasks"
pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="make test-clients makes their environments"),
    pytest.mark.timeout(900),
]


@contextlib.contextmanager
def serving(*arguments):
    """`diptych serve` as a user starts it: its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "diptych", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    try:
        said = ""
        while not (found := re.search(r"is served at (http://\S+)/v1", said)):
            line = process.stdout.readline()
            assert line, said
            said += line
        yield found[1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def url():
    with serving("--prefill", "1 x cpu:fp32", "--decode", "1 x cpu:fp32") as found:
        yield found


@pytest.fixture(scope="module")
def model(url):
    """The demo's folder, which `serve` has fetched by now."""
    return Path.home() / ".cache/diptych/models" / MODEL


def told(command, folder, **environ):
    """A tool's command in a folder of its own, without a hub."""
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=600,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"} | environ,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def counted(url):
    """The gateway's own counters."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        found = re.findall(r"^(vllm:\w+_total|diptych_requests_open)(?:{.*?})? (\S+)$", answer.read().decode(), re.M)
    return {name: float(value) for name, value in found}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_guidellm(url, model, tmp_path, path):
    before, asked, size = counted(url), 8, 12
    told(
        [
            f"{FOLDER}/guidellm/bin/guidellm", "run", "--disable-progress",
            "--backend", f"kind=openai_http,target={url},model={MODEL},request_format={path}",
            "--tokenizer", f"kind=hf_auto,model={model}",
            "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={size}",
            "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={asked}",
            "--output", f"kind=json,path={tmp_path}/found.json",
        ],
        tmp_path,
    )  # fmt: skip
    (found,) = json.loads((tmp_path / "found.json").read_text())["benchmarks"]
    answers = found["requests"]["successful"]
    assert not found["requests"]["errored"]
    assert not found["requests"]["incomplete"]
    assert len(answers) == asked
    for each in answers:
        assert each["output_tokens"] == size
        assert each["prompt_tokens"] >= 32
        assert 0 < each["time_to_first_token_ms"] / 1e3 < each["request_latency"]
    after = counted(url)
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] >= asked * size
    assert after["diptych_requests_open"] == 0


def test_lm_evaluation_harness(url, model, tmp_path):
    """Its log likelihoods are those that transformers finds; its answers are those of a greedy completion."""
    for name in TASKS.iterdir():
        shutil.copyfile(name, tmp_path / name.name)
    arguments = f"base_url={url}/v1/completions,model={MODEL},tokenizer={model},num_concurrent=2,max_retries=1"
    told(
        [
            f"{FOLDER}/lm_eval/bin/lm_eval", "--model", "local-completions", "--model_args", arguments,
            "--tasks", "tiny_choice,tiny_words", "--include_path", tmp_path, "--output_path", "out", "--log_samples",
        ],
        tmp_path, HF_DATASETS_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    choices = samples(tmp_path, "tiny_choice")
    assert [each["acc"] for each in choices] == [1.0] * 4
    for each in choices:
        for place, ((value, is_greedy),) in enumerate(each["resps"]):
            asked = each["arguments"][f"gen_args_{place}"]
            wanted, greedy = likelihood(model, asked["arg_0"], asked["arg_1"])
            assert math.isclose(float(value), wanted, abs_tol=2e-3), asked
            assert is_greedy == str(greedy)
    for each in samples(tmp_path, "tiny_words"):
        ((said,),) = each["resps"]
        whole = completion(url, each["arguments"]["gen_args_0"]["arg_0"], 8)
        assert said == re.split(r"[.\n]", whole)[0]


def samples(folder, task):
    (file,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@functools.cache
def reference(model):
    """Its tokenizer and network by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def likelihood(model, context, continuation):
    """Log likelihood of a continuation, and whether it is what greedy decoding gives, by the reference."""
    import torch

    tokenizer, network = reference(model)
    before, whole = tokenizer.encode(context), tokenizer.encode(context + continuation)
    with torch.no_grad():
        found = torch.log_softmax(network(torch.tensor([whole])).logits[0], -1)
    places = range(len(before), len(whole))
    greedy = all(int(found[place - 1].argmax()) == whole[place] for place in places)
    return sum(float(found[place - 1, whole[place]]) for place in places), greedy


def completion(url, prompt, count):
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": count, "temperature": 0}).encode()
    asked = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        return json.loads(answer.read())["choices"][0]["text"]


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf(url, model, tmp_path, kind):
    """It takes a tokenizer offline only out of a hub's cache, so it is given one."""
    hub = tmp_path / "hf/hub/models--local--demo"
    snapshot = hub / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text(REVISION)
    for each in model.iterdir():
        if each.suffix != ".safetensors":
            (snapshot / each.name).symlink_to(each)
    asked, size = 8, 12
    told(
        [
            f"{FOLDER}/aiperf/bin/aiperf", "profile", "--model", MODEL, "--url", url, "--endpoint-type", kind,
            "--streaming", "--tokenizer", "local/demo", "--use-server-token-count", "--concurrency", "2",
            "--request-count", asked, "--random-seed", "1", "--ui-type", "none", "--workers-max", "1",
            "--synthetic-input-tokens-mean", "32", "--synthetic-input-tokens-stddev", "0",
            "--output-tokens-mean", size, "--output-tokens-stddev", "0",
            "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{size}", "--output-artifact-dir", "out",
        ],
        tmp_path, HF_HOME=str(tmp_path / "hf"),
    )  # fmt: skip
    found = json.loads((tmp_path / "out/profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == asked
    assert not found["error_summary"]
    assert not found["was_cancelled"]
    lengths = found["output_sequence_length"]
    assert (lengths["min"], lengths["max"]) == (size, size)
    assert 0 < found["time_to_first_token"]["p50"] < found["request_latency"]["p50"]
    seen = json.loads((tmp_path / "out/server_metrics_export.json").read_text())["metrics"]
    assert {"vllm:time_to_first_token_seconds", "vllm:generation_tokens", "diptych_kv_transfer_bytes"} <= set(seen)
    assert counted(url)["diptych_requests_open"] == 0
