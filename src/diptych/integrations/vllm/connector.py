"""The connector that vLLM loads: a scheduler's side that names prompts, and a worker's side that has a joint move them.

Written for the V1 connector API of vLLM 0.32 and 0.33.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base  # type: ignore[import-not-found, unused-ignore]
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (  # type: ignore[import-not-found, unused-ignore]
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.logger import init_logger  # type: ignore[import-not-found, unused-ignore]

import vllm  # type: ignore[import-not-found, unused-ignore]
from diptych.boundary.messages import Speaker
from diptych.design.boundary import Ownership
from diptych.integrations.vllm.counts import COUNTERS, GAUGES, added
from diptych.integrations.vllm.host import Rank
from diptych.integrations.vllm.joint import Joint
from diptych.integrations.vllm.scheduling import SchedulerSide, Step
from diptych.integrations.vllm.settings import Settings
from diptych.integrations.vllm.ticket import Place

KNOWN = ("0.32", "0.33")
"""Releases of vLLM whose connector API this follows."""
ABSTRACT = {
    "build_connector_meta",
    "get_num_new_matched_tokens",
    "save_kv_layer",
    "start_load_kv",
    "update_state_after_alloc",
    "wait_for_layer_load",
    "wait_for_save",
}
PATIENCE_S = 0.002
"""How long a step without tokens may wait for a handoff: as long as a request that has just come then waits."""
log = init_logger(f"vllm.{__name__}")


@dataclass
class DiptychMetadata(base.KVConnectorMetadata):  # type: ignore[misc, unused-ignore]
    """From the scheduler's side to the workers', once a step."""

    step: Step


@dataclass
class DiptychHandshake(base.KVConnectorHandshakeMetadata):  # type: ignore[misc, unused-ignore]
    """From a worker at its start: its name and where it is asked."""

    worker: str
    doorbell: str


@dataclass
class DiptychRooms(base.KVConnectorWorkerMetadata):  # type: ignore[misc, unused-ignore]
    """From the workers to the scheduler's side: ranks that have room for a prompt that is to be made, and prompts for nobody."""

    roomy: dict[str, int]
    forsaken: set[str]

    def aggregate(self, other: Any) -> DiptychRooms:
        """All ranks' words as one."""
        names = {*self.roomy, *other.roomy}
        roomy = {name: self.roomy.get(name, 0) + other.roomy.get(name, 0) for name in names}
        return DiptychRooms(roomy, self.forsaken | other.forsaken)


class DiptychStats(KVConnectorStats):  # type: ignore[misc, unused-ignore]
    """An interval's counts, by name."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: Any) -> DiptychStats:
        return DiptychStats(added(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log, which adds intervals up: what is open would be counted in each."""
        return {name: value for name, value in self.data.items() if value and name in COUNTERS}

    def is_empty(self) -> bool:
        return not any(self.data.get(name) for name in COUNTERS)


class DiptychMetrics(KVConnectorPromMetrics):  # type: ignore[misc, unused-ignore]
    """The counts in vLLM's own registry, as `vllm:diptych_*`."""

    def __init__(self, config: Any, types: Any, labels: list[str], values: dict[int, list[object]]) -> None:
        super().__init__(config, types, labels, values)
        self._metrics: dict[str, Any] = {}
        for kind, names in ((self._counter_cls, COUNTERS), (self._gauge_cls, GAUGES)):
            for name, said in names.items():
                metric = kind(name=f"vllm:diptych_{name}", documentation=said.capitalize() + ".", labelnames=labels)
                self._metrics[name] = {engine: metric.labels(*value) for engine, value in values.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in COUNTERS and value:
                self._metrics[name][engine_idx].inc(value)
            elif name in GAUGES:
                self._metrics[name][engine_idx].set(value)


class DiptychConnector(base.KVConnectorBase_V1):  # type: ignore[misc, unused-ignore]
    """Hands prompts from a prefill to a decode vLLM that may keep its KV in another form."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        refuse_unknown_api()
        super().__init__(vllm_config, role, kv_cache_config)
        config = self._kv_transfer_config
        self._settings = Settings.of(config.kv_connector_extra_config, is_prefill=config.is_kv_producer)
        scheduler = role is base.KVConnectorRole.SCHEDULER
        self._scheduler = (
            SchedulerSide(vllm_config.parallel_config.tensor_parallel_size, self._settings) if scheduler else None
        )
        self._joint: Joint | None = None
        self._layers: dict[str, int] = {}
        self._rooms: DiptychRooms | None = None
        self._gauges: dict[str, float] = {}

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Blocks that move while prompts are kept would be read elsewhere (asked by vLLM 0.33)."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Under push each layer's blocks are sent as it ends, which a graph of the whole pass would not show."""
        return extra_config.get("ownership") == Ownership.PUSH

    # --- the scheduler's side ---------------------------------------------------------------------------------------

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self._side.ranks = tuple(Place(metadata[rank].worker, metadata[rank].doorbell) for rank in sorted(metadata))

    def on_new_request(self, request: Any) -> None:
        self._side.waits(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._side.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._side.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> DiptychMetadata:
        state = scheduler_output.kv_connector_block_state
        return DiptychMetadata(self._side.step(scheduler_output.num_scheduled_tokens, state.get_block_ids))

    def update_connector_output(self, connector_output: Any) -> None:
        self._side.loading -= set(connector_output.finished_recving or ())
        rooms = connector_output.kv_connector_worker_meta
        if rooms is not None:
            self._side.heard(rooms.roomy, rooms.forsaken)

    def has_pending_push_work(self) -> bool:
        return self._side.is_making

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._side.finished(request, block_ids)

    @property
    def _side(self) -> SchedulerSide:
        assert self._scheduler is not None, "asked of a worker"
        return self._scheduler

    # --- the worker's side ------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        from diptych.integrations.vllm.selftest import blocks_of

        blocks = blocks_of(self._vllm_config, kv_caches, self._kv_cache_config, self._settings)
        from vllm.distributed import (  # type: ignore[import-not-found, unused-ignore]
            get_tensor_model_parallel_rank,
            get_tensor_model_parallel_world_size,
        )

        self._layers = {name: number for number, name in enumerate(kv_caches)}
        engine = str(self._kv_transfer_config.engine_id)
        rank = Rank(engine, int(get_tensor_model_parallel_rank()), int(get_tensor_model_parallel_world_size()))
        speaker = Speaker.PREFILL if self._kv_transfer_config.is_kv_producer else Speaker.DECODE
        self._joint = Joint(rank, blocks, self._settings, log.warning, speaker)
        log.info("diptych: %s in blocks of %d tokens, asked at %s", blocks.state.format,
                 blocks.state.storage.block_tokens, self._joint.doorbell)  # fmt: skip

    def get_handshake_metadata(self) -> DiptychHandshake | None:
        return DiptychHandshake(self._joint.rank.name, self._joint.doorbell) if self._joint else None

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        for request, tell in kv_connector_metadata.step.halt:
            if self._joint is not None:
                self._joint.halt(request, tell)  # before this step's forward pass fills its blocks for others

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        joint, step = self._joint, self._get_connector_metadata().step
        assert joint is not None
        for carry, jobs in ((joint.make, step.make), (joint.keep, step.keep), (joint.fetch, step.fetch),
                            (joint.say, step.tell if joint.rank.number == 0 else ()), (joint.cancel, step.cancel)):  # fmt: skip
            for job in jobs:
                carry(job)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass  # nothing is loaded while a forward pass needs it

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        if self._joint is not None:
            for job in self._get_connector_metadata().step.made:
                self._joint.made(job, self._layers[layer_name])

    def wait_for_save(self) -> None:
        pass

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        if self._joint is None:
            return base.KVConnectorTransferResults()
        found = self._joint.take(PATIENCE_S if self._get_connector_metadata().step.is_idle else 0.0)
        roomy = dict.fromkeys(found.roomy, 1)
        self._rooms = DiptychRooms(roomy, found.forsaken) if roomy or found.forsaken else None
        return base.KVConnectorTransferResults(found.sent, found.received, found.failed)

    def build_connector_worker_meta(self) -> DiptychRooms | None:
        rooms, self._rooms = self._rooms, None
        return rooms

    def get_kv_connector_stats(self) -> DiptychStats | None:
        if self._joint is None:
            return None
        counts = self._joint.counted()
        gauges = {name: counts[name] for name in GAUGES}
        if gauges == self._gauges and not any(counts[name] for name in COUNTERS):
            return None
        self._gauges = gauges
        return DiptychStats(counts)

    def shutdown(self) -> None:
        if self._joint is not None:
            self._joint.close()

    # --- metrics ----------------------------------------------------------------------------------------------------

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> DiptychStats:
        return DiptychStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> Any:
        return DiptychMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def refuse_unknown_api() -> None:
    """Raise a sentence unless this vLLM's connector API is one that this was written for."""
    found = ".".join(re.split(r"[.+]", str(vllm.__version__))[:2])
    abstract = set(base.KVConnectorBase_V1.__abstractmethods__)
    if found not in KNOWN or abstract != ABSTRACT or not hasattr(base, "KVConnectorTransferResults"):
        raise ValueError(
            f"DiptychConnector follows the connector API of vLLM {' and '.join(KNOWN)}; this is vLLM {vllm.__version__},"
            " whose API it does not know. Use one of those, or a newer diptych."
        )
