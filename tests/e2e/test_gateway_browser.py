"""The gateway's live page in a real browser: drawn from a running gateway, without a complaint, nothing asked of anybody else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/runtime/gateway"))
from fake_workers import FakeWorker
from running import Running, post, running

from diptych.runtime.messages import Tier

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr",
    "--window-size=1280,1500", "--virtual-time-budget=3000",
)  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)"),
]


def tune(workers: dict[str, FakeWorker]) -> None:
    for worker in workers.values():
        worker.tiers = (Tier("dram", 3 << 20, 16 << 20, 100, 25, 1),)
        worker.pace.first = 0.02


@pytest.fixture(scope="module")
def gateway() -> Iterator[Running]:
    with running(
        roles="prefill decode decode", tune=tune, model_name="<img src=x onerror=alert(1)>", alternative_usd=9.0
    ) as made:
        for _ in range(20):
            post(
                made.port,
                "/v1/completions",
                json.dumps({"model": made.fleet.settings.model, "prompt": [1] * 40, "max_tokens": 30}).encode(),
            )
        yield made


def visit(url: str, folder: Path, *flags: str) -> tuple[str, list[str], set[str]]:
    """The page's elements afterwards, its console, and the addresses it asked for."""
    log = folder / "net.json"
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", "--dump-dom", url],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    events = json.loads(log.read_text())["events"]
    asked = {
        p["url"]
        for each in events
        if "url" in (p := each.get("params", {})) and p.get("initiator", "not an origin") != "not an origin"
    }
    return done.stdout, re.findall(r"CONSOLE[:(].*", done.stderr), asked


def test_everything_is_drawn_and_nothing_else_is_asked_for(gateway: Running, tmp_path: Path) -> None:
    dom, console, asked = visit(f"{gateway.url}/ui#token=operator", tmp_path)
    assert console == []
    assert 'data-ready="yes"' in dom
    assert 'id="status" role="status" class="good">ready' in dom
    for name in ("prefill0", "decode0", "decode1", "disaggregated", "int8 to bf16", "dram", "20 finished", "$9.00"):
        assert name in dom, name
    charts = re.findall(r"<svg id=\"chart-.*?</svg>", dom, flags=re.DOTALL)
    assert len(charts) == 4
    assert all("<path" in chart and "NaN" not in chart for chart in charts)
    assert {url.removeprefix(gateway.url).partition("#")[0] for url in asked} <= {
        "/ui",
        "/ui/ui.js",
        "/ui/ui.css",
        "/ui/data",
        "/favicon.ico",
    }


def test_a_hostile_name_is_text(gateway: Running, tmp_path: Path) -> None:
    dom, _, _ = visit(f"{gateway.url}/ui#token=operator", tmp_path)
    assert "&lt;img src=x" in dom
    assert "<img" not in dom


@pytest.mark.parametrize(("fragment", "said"), [("", "connecting"), ("#token=wrong", "that token is wrong")])
def test_without_the_token_nothing_is_shown(gateway: Running, tmp_path: Path, fragment: str, said: str) -> None:
    dom, _, _ = visit(f"{gateway.url}/ui{fragment}", tmp_path)
    assert said in dom
    assert 'data-ready="no"' in dom
    assert "prefill0" not in dom


def test_the_page_may_run_only_its_own_script(gateway: Running) -> None:
    with urllib.request.urlopen(f"{gateway.url}/ui") as response:
        policy, page = response.headers["content-security-policy"], response.read().decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?! src=)|style=| on[a-z]+=", page)
