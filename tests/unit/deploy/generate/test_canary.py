"""The canary against small servers that behave as engines do, rightly and wrongly."""

import http.server
import json
import runpy
import subprocess
import sys
import threading
from importlib.resources import files

import pytest

from diptych.runtime.remote.canary import COUNTERS

SCRIPT = str(files("diptych.deploy.generate") / "canary.py")


class Fleet(http.server.ThreadingHTTPServer):
    """Router, prefill and decode in one: `moves` is added to the counter by a routed request."""

    def __init__(self, engine, moves, text=" Item 400", alone=" Item 400", status=200):
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine, self.moves, self.text, self.alone, self.status = engine, moves, text, alone, status
        self.counted = 5.0
        self.asked = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        fleet = self.server
        vllm = f'vllm:prompt_tokens_by_source_total{{engine="0",source="external_kv_transfer"}} {fleet.counted}\n'
        other = 'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 999.0\n'
        sglang = f'sglang:kv_transfer_total_mb_sum{{tp_rank="0"}} {fleet.counted}\n'
        self.answer(vllm + other if fleet.engine == "vllm" else sglang)

    def do_POST(self):
        fleet = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fleet.asked.append(body)
        if "cache_salt" not in body:
            fleet.counted += fleet.moves
        text = fleet.alone if "cache_salt" in body else fleet.text
        self.answer(json.dumps({"choices": [{"text": text}]}), fleet.status)

    def answer(self, text, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


def canary(fleet, *more):
    thread = threading.Thread(target=fleet.serve_forever, daemon=True)
    thread.start()
    try:
        words = [sys.executable, SCRIPT, "--router", fleet.url, "--prefill", fleet.url, "--decode", fleet.url]
        words += ["--model", "m", "--engine", fleet.engine, "--settle", "0", *more]
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    finally:
        fleet.shutdown()
        fleet.server_close()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_kv_that_arrives_with_equal_text_passes(engine):
    fleet = Fleet(engine, moves=512)
    shown = canary(fleet)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "OK" in shown.stdout
    assert "512" in shown.stdout
    assert len(fleet.asked[0]["prompt"]) > 2000  # long enough for whole blocks, and new each time
    assert ["cache_salt" in body for body in fleet.asked] == [False, True]


def test_a_prompt_that_decode_computed_itself_fails_and_says_where_to_look():
    shown = canary(Fleet("vllm", moves=0))
    assert shown.returncode == 1
    assert "nothing was transferred" in shown.stdout
    assert "no KVConnector found" in shown.stdout


def test_other_text_than_one_engine_gives_alone_fails():
    shown = canary(Fleet("vllm", moves=512, text=" garbage"))
    assert shown.returncode == 1
    assert "the texts differ" in shown.stdout


def test_an_engine_that_fails_is_reported_without_a_traceback():
    shown = canary(Fleet("vllm", moves=512, status=500))
    assert shown.returncode == 1
    assert "answered 500" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_only_http_addresses_are_asked():
    shown = canary(Fleet("vllm", moves=512), "--alone", "file:///etc/passwd")
    assert shown.returncode == 1
    assert "not an http address" in shown.stderr


def test_the_script_counts_what_the_gateway_counts():
    """The script stands alone on an operator's machine, so its patterns are written there once more, and must be the same."""
    said = runpy.run_path(SCRIPT)["COUNTERS"]
    assert said == {engine: pattern.pattern for engine, pattern in COUNTERS.items()}
