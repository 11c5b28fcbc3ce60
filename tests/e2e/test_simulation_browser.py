"""The page of a simulation in a real browser: every chart drawn, nothing complained of, nothing fetched."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_report_browser import CHROMIUM, Elements, Visit, visit

from diptych.report.simulation_html import render

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/report"))
from sample_simulation import FAULTS, TOGETHER, judged_run, seen_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)"),
]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Visit]:
    apart, together = judged_run(faults=FAULTS), judged_run(TOGETHER)
    told = {"apart": (apart, seen_run(apart, FAULTS)), "together": (together, seen_run(together))}
    told["hostile"] = apart, replace(told["apart"][1], workload=EVIL, model=EVIL, faults=(EVIL,))
    seen = {}
    for name, (judged, document) in told.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "report.html").write_text(render(judged, document, "diptych simulate"), encoding="utf-8")
        seen[name] = visit(folder / "report.html", folder)
    return seen


@pytest.mark.parametrize(("name", "count"), [("apart", 12), ("together", 11), ("hostile", 12)])
def test_every_chart_is_drawn_without_a_complaint(visits: dict[str, Visit], name: str, count: int) -> None:
    seen = visits[name]
    assert seen.console == ()
    assert 'data-ready="yes"' in seen.dom
    figures = re.findall(r"<figure id=.*?</figure>", seen.dom, flags=re.DOTALL)
    assert len(figures) == count
    assert all("<svg" in figure and "mark-" in figure for figure in figures)
    assert "NaN" not in "".join(figures)


@pytest.mark.parametrize("name", ["apart", "hostile"])
def test_nothing_outside_the_file_is_asked_for(visits: dict[str, Visit], name: str) -> None:
    inside = ("file:", "data:", "blob:", "chrome:", "chrome-")
    assert {url for url in visits[name].requests if not url.startswith(inside)} == set()


def test_hostile_names_run_nothing(visits: dict[str, Visit]) -> None:
    honest, hostile = (Elements(visits[name].dom).seen for name in ("apart", "hostile"))
    assert "alert(1)" in visits["hostile"].dom
    assert [tag for tag, _ in hostile].count("script") == [tag for tag, _ in honest].count("script")
    assert not [tag for tag, names in hostile if tag == "img" or any(name.startswith("on") for name in names)]
