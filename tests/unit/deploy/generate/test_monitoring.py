"""Panels and alerts ask only for metrics that the engines define, in the form that Prometheus gives them."""

import csv
import json
import re
from pathlib import Path

import pytest
import yaml

from diptych.catalog.catalog import Catalog
from diptych.deploy.generate.monitoring import alerts, dashboard, monitoring
from diptych.deploy.generate.request import Request
from diptych.deploy.generate.target import Target
from diptych.design.text import parse_design
from diptych.metrics.slo import SLO

CATALOG = Catalog.load()
MODEL = CATALOG.model("Qwen3-32B")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count"), "unknown": ("",)}


def request_of(
    target, text="1xH100:tp2 -> 2xH20:tp4, kv=fp8, link=rdma-400g", slo="ttft_p90<2s, tpot_mean<50ms, e2e_p99<30s"
):
    way = ", push" if target.engine == "sglang" else ", pull"
    text = text + way if "->" in text else text
    return Request(parse_design(text, CATALOG, MODEL), MODEL, target, slo=SLO.parse(slo))


def defined(engine):
    path = Path(__file__).parents[3] / "data" / "engine_metrics" / "names.csv"
    names = set()
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        if row["engine"] == engine:
            base = row["name"].removesuffix("_total") if row["kind"] == "counter" else row["name"]
            names |= {base + suffix for suffix in SUFFIXES[row["kind"]]}
    return names


def asked(request):
    queries = [target["expr"] for panel in dashboard(request)["panels"] for target in panel["targets"]]
    queries += [rule["expr"] for rule in alerts(request)]
    return {name for query in queries for name in re.findall(r"(?:vllm|sglang):\w+", query)}


@pytest.mark.parametrize("target", [Target.VLLM, Target.SGLANG])
def test_every_metric_that_is_asked_for_is_defined_by_the_engine(target):
    request = request_of(target)
    names = asked(request)
    assert len(names) > 12
    assert names - defined(target.engine) == set()


@pytest.mark.parametrize("target", list(Target))
def test_queue_depth_per_role_comes_first(target):
    first = dashboard(request_of(target))["panels"][0]
    assert first["title"] == "Requests waiting per role"
    assert "by (role)" in first["targets"][0]["expr"]


@pytest.mark.parametrize("target", list(Target))
def test_every_promise_has_an_alert_and_every_file_can_be_read(target):
    request = request_of(target)
    files = monitoring(request)
    assert json.loads(files["monitoring/dashboard.json"])["panels"]
    documents = [
        document for name, text in files.items() if name.endswith(".yaml") for document in yaml.safe_load_all(text)
    ]
    assert all(isinstance(document, dict) for document in documents)
    says = [rule["annotations"]["summary"] for rule in alerts(request)]
    for promise in ("ttft_p90<2s", "tpot_mean<50ms", "e2e_p99<30s"):
        assert any(promise in sentence for sentence in says)
    kinds = {document.get("kind") for document in documents}
    assert ("PrometheusRule" in kinds) is target.is_kubernetes


def test_panels_do_not_overlap():
    places = [panel["gridPos"] for panel in dashboard(request_of(Target.VLLM))["panels"]]
    cells = [(place["x"] + x, place["y"] + y) for place in places for x in range(place["w"]) for y in range(place["h"])]
    assert len(cells) == len(set(cells))


def test_brackets_of_every_query_close():
    for target in (Target.VLLM, Target.SGLANG):
        request = request_of(target)
        for rule in alerts(request):
            for left, right in ("()", "{}", "[]"):
                assert rule["expr"].count(left) == rule["expr"].count(right), rule["expr"]


def test_a_colocated_fleet_is_not_alerted_about_handoffs():
    names = {rule["alert"] for rule in alerts(request_of(Target.VLLM, "4xH100:tp2"))}
    assert "HandoffInactive" not in names
    assert "RoleDown" in names
