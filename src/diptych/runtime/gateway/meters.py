"""What is counted, in Prometheus' form: names that users of vLLM know for what vLLM has too, `diptych_…` for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from diptych.runtime.gateway.roster import Condition, Roster

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_LONG = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_TOKENS = tuple(1 << power for power in range(21))


class Meters:
    """Every counter of one gateway, in a registry of its own."""

    def __init__(self, model: str) -> None:
        self.registry = registry = CollectorRegistry()

        def seconds(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, what, ("model_name",), registry=registry, buckets=buckets).labels(model)

        self.ttft = seconds("vllm:time_to_first_token_seconds", "From arrival to the first token.", _LONG)
        self.itl = seconds("vllm:inter_token_latency_seconds", "Between two tokens of a stream.", _SHORT)
        self.tpot = seconds("vllm:request_time_per_output_token_seconds", "Mean per token after the first.", _SHORT)
        self.e2e = seconds("vllm:e2e_request_latency_seconds", "From arrival to the last token.", _LONG)
        self.prompt_length = seconds("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.answer_length = seconds("vllm:request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self.max_tokens = seconds("vllm:request_params_max_tokens", "Most tokens asked for.", _TOKENS)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(name, what, labels, registry=registry)

        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of requests taken.", "model_name").labels(
            model
        )
        self.output_tokens = counter("vllm:generation_tokens", "Tokens given to clients.", "model_name").labels(model)
        self.cached_tokens = counter(
            "vllm:prompt_tokens_cached", "Prompt tokens found in a cache.", "model_name"
        ).labels(model)
        self.done = counter("vllm:request_success", "Answers by how they ended.", "model_name", "finished_reason")
        self.refused = counter("diptych_refused", "Requests not served, by reason.", "reason")
        self.responses = counter("diptych_http_responses", "HTTP answers by route and status.", "route", "status")
        self.routes = counter("diptych_route", "Decisions: the way a request took, and why.", "path", "reason")
        self.fallbacks = counter("diptych_fallback", "Attempts that were lost, by reason.", "reason")
        self.cancelled = counter("diptych_cancelled", "Answers that nobody waited for, by reason.", "reason")
        self.retries_refused = counter("diptych_retry_budget_exhausted", "Attempts not made for want of budget.")
        self.worker_losses = counter("diptych_worker_lost", "Workers lost.", "worker", "role", "reason")
        pair = ("source", "target")
        self.transfer_seconds = Histogram(
            "diptych_kv_transfer_seconds", "A handoff's transfer.", pair, registry=registry, buckets=_SHORT
        )
        self.transfer_bytes = counter("diptych_kv_transfer_bytes", "Bytes of KV on the wire.", *pair)
        self.conversions = counter("diptych_kv_conversions", "Handoffs whose KV was converted.", "conversion")
        self.convert_seconds = counter("diptych_kv_convert_seconds", "Seconds spent converting.", "conversion")
        self.open = Gauge("diptych_requests_open", "Requests that a client waits for.", registry=registry)
        self.held = Gauge("diptych_requests_held", "Requests that wait for a worker.", registry=registry)
        self.cost = Gauge(
            "diptych_cost_per_million_tokens_usd", "Over the last minute, where prices are known.", registry=registry
        )
        self.alternative = Gauge(
            "diptych_alternative_cost_per_million_tokens_usd",
            "In the plan's homogeneous design.",
            ("design",),
            registry=registry,
        )

    def text(self) -> bytes:
        """The exposition."""
        return bytes(generate_latest(self.registry))


class OfWorkers(Collector):
    """What workers last said of themselves."""

    def __init__(self, roster: Roster, model: str) -> None:
        self._roster, self._model = roster, model

    def collect(self) -> Iterable[Metric]:
        yield from self._queues()
        yield from self._conditions()
        yield from self._memory()

    def _queues(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily("diptych_queue_depth", "Requests at a worker.", labels=("role", "worker", "stage"))
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests waiting.", labels=("model_name", "engine"))
        running = GaugeMetricFamily("vllm:num_requests_running", "Requests running.", labels=("model_name", "engine"))
        for each in self._roster:
            if each.last is not None:
                stages = ("queued", each.last.queued), ("running", each.last.running), ("handing", each.last.handing)
                for stage, count in stages:
                    depth.add_metric((each.role, each.name, stage), count)
                waiting.add_metric((self._model, each.name), each.last.queued)
                running.add_metric((self._model, each.name), each.last.running)
        yield from (depth, waiting, running)

    def _conditions(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("diptych_worker_up", "1 when it takes requests.", labels=("role", "worker", "condition"))
        steps = CounterMetricFamily("diptych_worker_steps", "Engine steps since its start.", labels=("role", "worker"))
        for each in self._roster:
            up.add_metric((each.role, each.name, str(each.condition)), float(each.condition is Condition.UP))
            if each.last is not None:
                steps.add_metric((each.role, each.name), each.last.steps)
        yield from (up, steps)

    def _memory(self) -> Iterator[Metric]:
        who = ("role", "worker")
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of KV blocks in use.", labels=("model_name", "engine")
        )
        asked = CounterMetricFamily(
            "vllm:prefix_cache_queries", "Blocks asked of a cache.", labels=("model_name", "engine")
        )
        found = CounterMetricFamily("vllm:prefix_cache_hits", "Blocks found there.", labels=("model_name", "engine"))
        ledger = GaugeMetricFamily("diptych_ledger", "Open entries; 0 at rest.", labels=(*who, "kind"))
        used = GaugeMetricFamily("diptych_kv_tier_bytes", "Bytes of KV in a tier.", labels=(*who, "tier", "what"))
        hits = CounterMetricFamily(
            "diptych_kv_tier_blocks", "Blocks asked, found, damaged.", labels=(*who, "tier", "what")
        )
        for each in self._roster:
            last = each.last
            if last is None:
                continue
            usage.add_metric((self._model, each.name), 1 - last.blocks_free / last.blocks if last.blocks else 0)
            asked.add_metric((self._model, each.name), last.prefix_asked)
            found.add_metric((self._model, each.name), last.prefix_found)
            for kind in ("reservations", "pins", "leases", "transfers"):
                ledger.add_metric((each.role, each.name, kind), getattr(last, kind))
            for tier in last.tiers:
                for what in ("used", "capacity"):
                    used.add_metric((each.role, each.name, tier.name, what), getattr(tier, what))
                for what in ("asked", "found", "damaged"):
                    hits.add_metric((each.role, each.name, tier.name, what), getattr(tier, what))
        yield from (usage, asked, found, ledger, used, hits)
