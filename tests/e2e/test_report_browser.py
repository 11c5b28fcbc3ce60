"""The report in a real browser: every chart drawn, nothing complained of, nothing fetched, nothing run that was not ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from diptych.planner.plan import Plan
from diptych.report.html import render

GOLDEN = Path(__file__).parents[1] / "golden"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr",
    "--virtual-time-budget=20000",
)  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)"),
]


_NOBODY = "not an origin"


@dataclass(frozen=True)
class Visit:
    """What a browser made of a page: its elements afterwards, its console, the addresses it asked for."""

    dom: str
    console: tuple[str, ...]
    requests: frozenset[str]


def visit(page: Path, folder: Path, *flags: str) -> Visit:
    log = folder / "net.json"
    profile = folder / "profile"
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={profile}", f"--log-net-log={log}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    console = tuple(re.findall(r"CONSOLE[:(].*", done.stderr))
    return Visit(done.stdout, console, _addresses(log.read_text()))


def _addresses(log: str) -> frozenset[str]:
    """Every address that a page asked for, from the browser's own network log; what the browser asks for itself has no origin."""
    asked = (event.get("params", {}) for event in json.loads(log)["events"])
    return frozenset(p["url"] for p in asked if "url" in p and p.get("initiator", _NOBODY) != _NOBODY)


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Visit]:
    seen = {}
    for name in ("heterogeneous", "colocated", "hostile"):
        folder = tmp_path_factory.mktemp(name)
        page = folder / "report.html"
        page.write_text(render(Plan.load(GOLDEN / f"plan_{name}.json"), "diptych plan"), encoding="utf-8")
        seen[name] = visit(page, folder)
    return seen


@pytest.mark.parametrize("name", ["heterogeneous", "colocated", "hostile"])
def test_every_chart_is_drawn_without_a_complaint(visits: dict[str, Visit], name: str) -> None:
    seen = visits[name]
    assert seen.console == ()
    assert 'data-ready="yes"' in seen.dom
    figures = re.findall(r"<figure id=.*?</figure>", seen.dom, flags=re.DOTALL)
    assert len(figures) >= 9
    assert all("<svg" in figure and "mark-" in figure for figure in figures)
    assert "NaN" not in "".join(figures)


@pytest.mark.parametrize("name", ["heterogeneous", "hostile"])
def test_nothing_outside_the_file_is_asked_for(visits: dict[str, Visit], name: str) -> None:
    outside = {
        url for url in visits[name].requests if not url.startswith(("file:", "data:", "blob:", "chrome:", "chrome-"))
    }
    assert outside == set()


def test_hostile_names_run_nothing(visits: dict[str, Visit]) -> None:
    honest, hostile = Elements(visits["heterogeneous"].dom).seen, Elements(visits["hostile"].dom).seen
    assert "alert(1)" in visits["hostile"].dom
    assert [tag for tag, _ in hostile].count("script") == [tag for tag, _ in honest].count("script")
    assert not [tag for tag, names in hostile if tag == "img" or any(name.startswith("on") for name in names)]


class Elements(HTMLParser):
    """The tags of a page with the names of their attributes."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[str]]] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, [name for name, _ in attrs]))


def test_a_foreign_script_does_not_run_under_the_policy(tmp_path: Path) -> None:
    """The twin that must fail: the policy, not luck, keeps scripts out."""
    page = tmp_path / "report.html"
    text = render(Plan.load(GOLDEN / "plan_colocated.json"))
    foreign = '<script>document.title = "taken"</script><img src="http://192.0.2.1/x.png"></body>'
    page.write_text(text.replace("</body>", foreign), encoding="utf-8")
    seen = visit(page, tmp_path)
    assert "<title>taken</title>" not in seen.dom
    assert any("Content Security Policy" in line for line in seen.console)


def test_prints_to_a_pdf(tmp_path: Path) -> None:
    page, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(render(Plan.load(GOLDEN / "plan_heterogeneous.json")), encoding="utf-8")
    visit(page, tmp_path, f"--print-to-pdf={pdf}")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
    assert 3 <= pages <= 14


def test_the_network_log_would_show_a_request(tmp_path: Path) -> None:
    """The check itself: a page that does fetch is seen to."""
    page = tmp_path / "fetching.html"
    page.write_text('<img src="http://192.0.2.1/x.png">', encoding="utf-8")
    assert any("192.0.2.1" in url for url in visit(page, tmp_path).requests)
