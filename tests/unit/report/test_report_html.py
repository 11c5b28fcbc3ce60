"""The page: one file, its own strict policy, nothing a name can break out of."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kept import same
from sample_plan import colocated_plan, heterogeneous_plan, hostile_plan

from diptych.planner.plan import Plan
from diptych.report.html import embedded_json, render

COMMAND = "diptych plan --model Llama-3.1-70B --out runs/conv"
VENDOR = Path(__file__).parents[3] / "src/diptych/report/vendor"


class Page(HTMLParser):
    """Elements with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style"):
            tag, attributes = self.elements[-1]
            if data.strip():
                self.raw.append((tag, attributes, data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(heterogeneous_plan(), COMMAND))


def test_golden_page() -> None:
    text = render(heterogeneous_plan(), COMMAND)
    text = re.sub(r'<script type="application/json".*', "", text, flags=re.DOTALL)
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    same("report_heterogeneous.html", re.sub(r'content="default-src[^"]*"', 'content="…"', text))


def test_policy_allows_exactly_the_scripts_and_style_on_the_page(page: Page) -> None:
    metas = [meta for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    policy = metas[0]["content"] or ""
    code = [text for tag, attributes, text in page.raw if attributes.get("type") != "application/json"]
    digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code}
    assert set(re.findall(r"sha256-([^']+)'", policy)) == digests
    assert len(code) == 5
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_nothing_is_fetched_and_nothing_is_styled_or_scripted_inline(page: Page) -> None:
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "href", "action", "style", "background", "data"} & set(attributes), (
            tag,
            attributes,
        )
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")


def test_no_chart_names_a_place_to_fetch_from(page: Page) -> None:
    charts = next(text for _, attributes, text in page.raw if attributes.get("id") == "charts")
    assert '"url"' not in charts
    assert set(re.findall(r"https?://[^\"]+", charts)) == {"https://vega.github.io/schema/vega-lite/v6.json"}


def test_plan_on_the_page_is_the_plan() -> None:
    for plan in (heterogeneous_plan(), hostile_plan()):
        page = Page(render(plan, COMMAND))
        text = next(text for _, attributes, text in page.raw if attributes.get("id") == "plan")
        assert Plan.from_dict(json.loads(text)) == plan


def test_hostile_names_stay_text() -> None:
    honest, hostile = (
        Page(render(heterogeneous_plan(), COMMAND)),
        Page(render(hostile_plan(), "diptych plan --model '<script>'")),
    )
    assert len(hostile.all("script")) == len(honest.all("script"))
    assert not hostile.all("img")
    assert "onerror" not in {name for _, attributes in hostile.elements for name in attributes}


def test_embedded_json_cannot_end_its_element() -> None:
    text = embedded_json({"a": "</script><!--\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--\u2028&"}


def test_headings_descend_by_one_and_tables_name_their_columns(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(header.get("scope") in ("col", "row") for header in page.all("th"))


def test_every_chart_has_a_description_and_its_numbers(page: Page) -> None:
    figures = [a for a in page.all("figure") if a.get("id")]
    drawings = [a for a in page.all("div") if a.get("role") == "img"]
    assert len(figures) == len(drawings) == len(page.all("details")) >= 9
    assert all(len(a.get("aria-label") or "") > 20 for a in drawings)
    assert all("open" in a for a in page.all("details")), "without scripts the numbers are in sight"


def test_ids_are_unique(page: Page) -> None:
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert len(ids) == len(set(ids))


def test_colocated_page_has_no_hinge_and_a_bare_plan_still_renders() -> None:
    text = render(colocated_plan())
    assert '<div class="hinge">' not in text
    assert "Do not disaggregate" in text
    bare = replace(colocated_plan(), pareto=(), alternatives=(), sensitivity=(), checklist=(), assumptions=(), colocated=None,
                   disaggregated=None, heterogeneous=None)  # fmt: skip
    assert "Do not disaggregate" in render(bare)


def test_vendored_files_are_the_ones_their_table_names() -> None:
    table = dict(re.findall(r"`([\w.-]+\.js)` \|[^`]*`([0-9a-f]{64})`", (VENDOR / "README.md").read_text()))
    assert set(table) == {file.name for file in VENDOR.glob("*.js")}
    for name, digest in table.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
        assert (VENDOR / f"LICENSE.{name.removesuffix('.min.js')}").is_file()
