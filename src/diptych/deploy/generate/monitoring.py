"""What to watch: a Grafana dashboard with queue depth per role first, alert rules, and how Prometheus learns a worker's role."""

from __future__ import annotations

import csv
import json
from functools import cache
from importlib.resources import files as package
from typing import Any

from diptych.deploy.generate.pods import Fields, as_yaml
from diptych.deploy.generate.request import Request
from diptych.deploy.generate.scripts import addresses
from diptych.design.axes import Role
from diptych.engines.engine import Engine
from diptych.engines.role import RoleConfig
from diptych.metrics.slo import Objective

_LATENCIES = {
    (Engine.VLLM, "ttft"): "vllm:time_to_first_token_seconds",
    (Engine.VLLM, "tpot"): "vllm:request_time_per_output_token_seconds",
    (Engine.VLLM, "e2e"): "vllm:e2e_request_latency_seconds",
    (Engine.SGLANG, "ttft"): "sglang:time_to_first_token_seconds",
    (Engine.SGLANG, "tpot"): "sglang:request_time_per_output_token_seconds",
    (Engine.SGLANG, "e2e"): "sglang:e2e_request_latency_seconds",
}
"""The histogram that holds each latency of an SLO. Decode's own: what the router adds before it is not in them."""


def monitoring(request: Request) -> dict[str, str]:
    """The dashboard, the alert rules, and the scrape configuration or pod monitor."""
    rules = {"groups": [{"name": request.name, "rules": alerts(request)}]}
    dashboard_text = json.dumps(dashboard(request), indent=2) + "\n"
    found = {"monitoring/dashboard.json": dashboard_text}
    if not request.target.is_kubernetes:
        found["monitoring/alerts.yaml"] = as_yaml(rules)
        found["monitoring/prometheus.yaml"] = as_yaml(scrape(request))
        return found
    found["monitoring/alerts.yaml"] = as_yaml(_resource("PrometheusRule", request, rules))
    found["monitoring/podmonitors.yaml"] = as_yaml(
        *(_pod_monitor(request, config) for config in request.deployment.roles)
    )
    return found


def dashboard(request: Request) -> Fields:
    """A Grafana dashboard for this engine; it asks for its data source when it is imported."""
    panels = [_panel(index, row) for index, row in enumerate(_rows("panels.csv", request.target.engine))]
    source = {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}
    return {
        "__inputs": [source],
        "title": f"{request.name}: prefill and decode",
        "uid": f"diptych-{request.name}"[:40],
        "tags": ["diptych", str(request.target.engine)],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": panels,
    }


def _panel(index: int, row: dict[str, str]) -> Fields:
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": row["title"],
        "datasource": {"type": "prometheus", "uid": "${DS_PROMETHEUS}"},
        "gridPos": {"h": 8, "w": 12, "x": 12 * (index % 2), "y": 8 * (index // 2)},
        "fieldConfig": {"defaults": {"unit": row["unit"], "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": row["query"], "legendFormat": "__auto"}],
    }


def alerts(request: Request) -> list[Fields]:
    """Alert rules of the engine, and one for each promise of the SLO."""
    rows = _rows("alerts.csv", request.target.engine)
    if not request.design.is_disaggregated:
        rows = tuple(row for row in rows if row["name"] in ("RoleDown",))
    fixed = [_alert(row["name"], row["query"], row["for"], row["severity"], row["says"]) for row in rows]
    return fixed + [_promise(request, objective) for objective in request.slo.objectives]


def _promise(request: Request, objective: Objective) -> Fields:
    name = _LATENCIES[request.target.engine, objective.metric]
    role = Role.DECODE if request.design.is_disaggregated else Role.COLOCATED
    rate = f'rate({name}_{{}}{{{{role="{role}"}}}}[5m])'
    if objective.quantile is None:
        query = f"sum({rate.format('sum')}) / sum({rate.format('count')}) > {objective.limit:g}"
    else:
        query = (
            f"histogram_quantile({objective.quantile:g}, sum by (le) ({rate.format('bucket')})) > {objective.limit:g}"
        )
    return _alert(f"SLO_{objective.metric}", query, "10m", "warning", f"The SLO {objective} is missed.")


def _alert(name: str, query: str, hold: str, severity: str, says: str) -> Fields:
    return {
        "alert": name,
        "expr": query,
        "for": hold,
        "labels": {"severity": severity},
        "annotations": {"summary": says},
    }


def scrape(request: Request) -> Fields:
    """Prometheus jobs for bare machines: the addresses are hosts.env's examples, the role is a label."""
    jobs = [
        {
            "job_name": config.name,
            "static_configs": [{"targets": addresses(index, config), "labels": {"role": str(config.role)}}],
        }
        for index, config in enumerate(request.deployment.roles)
    ]
    return {"global": {"scrape_interval": "10s"}, "rule_files": ["alerts.yaml"], "scrape_configs": jobs}


def _pod_monitor(request: Request, config: RoleConfig) -> Fields:
    endpoint = {
        "portNumber": request.target.metrics_port(config.role),
        "path": "/metrics",
        "relabelings": [{"targetLabel": "role", "replacement": str(config.role)}],
    }
    spec = {
        "selector": {"matchLabels": request.target.pod_labels(request.name, config.name)},
        "podMetricsEndpoints": [endpoint],
    }
    return _resource("PodMonitor", request, spec, config.name)


def _resource(kind: str, request: Request, spec: Fields, suffix: str = "") -> Fields:
    name = f"{request.name}-{suffix}" if suffix else request.name
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@cache
def _table(name: str) -> tuple[dict[str, Any], ...]:
    text = (package("diptych.deploy") / "data" / name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _rows(name: str, engine: Engine) -> tuple[dict[str, Any], ...]:
    return tuple(row for row in _table(name) if row["engine"] == engine)
