"""What a driver may choose beyond the design: how to route, batch, admit, retain and fall back. Defaults are engines' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diptych.catalog.memory import MemoryTier
from diptych.design.axes import Role
from diptych.serving.admission import Admission
from diptych.serving.fallback import Fallback
from diptych.serving.ownership import Heartbeats
from diptych.serving.residency import Retention
from diptych.serving.router import Routing


@dataclass(frozen=True, slots=True)
class Policy:
    """How a fleet is run. Times are seconds.

    `reserve`: hold prompt and answer blocks from admission on; without it decodes grow and may be preempted, as in vLLM.
    `prefix_cache`: share blocks by hash where requests carry hashes, in device memory and then in `tiers` below it.
    `per_chunk`: a push sends every chunk when it is computed; a layer-wise boundary sends within the chunk too.
    `round_trip`: from prefill's answer through the gateway to decode's read, in a pull.
    `lease`, `heartbeat`: how long a source is pinned for a target that is no longer heard (vLLM NIXL: 30 s, 5 s).
    `heartbeat_from`: whether a target keeps a source alive that it has no room for yet, in a pull.
    `cancel_twin`: a client's cancel reaches both halves of a handoff; without it the other one waits `handoff_timeout`.
    `handoff_timeout`: how long a handoff may wait or move (SGLang: 300 s). `detection`: from a loss to the gateway's answer.
    `start_up`: a new or switched worker loads weights and warms up.
    `instances`: accelerators of an instance by offer. Workers of one share its NICs: each may use all of them, and together they
    get no more than there are. A worker of an offer that is not named has its accelerators' NICs to itself.
    `entry`: from a client to the first worker and back, for a first token. `slowed`: how much longer a role's steps take while
    other workers of the fleet compute, where all share one machine. `role_blocks`: KV blocks of the workers of a role.
    `fabric`: bytes/s that all handoffs together get through, where something between the ports is narrower than they are.
    """

    prefill_routing: Routing = Routing.LEAST_LOADED
    decode_routing: Routing = Routing.LEAST_LOADED
    shortest_first: bool = False
    chunked: bool = True
    reserve: bool = False
    block: int = 16
    prefix_cache: bool = True
    tiers: tuple[MemoryTier, ...] = ()
    retention: Retention = Retention.ALL
    per_chunk: bool = False
    round_trip: float = 1e-3
    lease: float = 30.0
    heartbeat: float = 5.0
    heartbeat_from: Heartbeats = Heartbeats.ENQUEUE
    cancel_twin: bool = True
    handoff_timeout: float = 300.0
    detection: float = 1.0
    start_up: float = 60.0
    admission: Admission | None = None
    fallback: Fallback = field(default_factory=Fallback)
    instances: Mapping[str, int] = field(default_factory=dict)
    fabric: float | None = None
    kv_blocks: int | None = None  # of every worker, instead of what memory leaves
    entry: float = 0.0
    slowed: Mapping[Role, float] = field(default_factory=dict)
    role_blocks: Mapping[Role, int] = field(default_factory=dict)
