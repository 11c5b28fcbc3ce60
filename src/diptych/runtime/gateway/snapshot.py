"""The gateway at one moment, for people: what the live page, `diptych top` and `diptych status` show."""

from __future__ import annotations

import time
from typing import Any, Protocol

from diptych.runtime.gateway.history import History
from diptych.runtime.gateway.roster import Roster, Worker
from diptych.runtime.gateway.settings import Settings


class Shown(Protocol):
    """What people can look at: a gateway over our own workers, or over another engine's. Times as `now` tells them."""

    settings: Settings
    history: History
    roster: Roster
    started: float
    draining: bool

    @property
    def is_ready(self) -> bool: ...

    @property
    def retries_refused(self) -> int: ...

    def now(self) -> float: ...

    def ledger(self) -> dict[str, int]: ...

    def stuck(self) -> list[str]: ...


def snapshot(service: Shown) -> dict[str, Any]:
    """Seconds, bytes, tokens, USD; None is what is not known."""
    now, history, settings = service.now(), service.history, service.settings
    return {
        "at": time.time(),
        "model": settings.model,
        "uptime": time.time() - service.started,
        "status": _status(service),
        "requests": {
            **service.ledger(),
            **{name: history.counts[name] for name in ("finished", "cancelled", "refused")},
        },
        "workers": [_worker(each, now) for each in service.roster],
        "latency": history.latencies(now),
        "routes": [{"path": path, "reason": why, "count": n} for (path, why), n in history.routes.most_common(20)],
        "fallbacks": [{"reason": why, "count": n} for why, n in history.fallbacks.most_common(20)],
        "refusals": [{"reason": why, "count": n} for why, n in history.refusals.most_common(20)],
        "transfers": [
            {"source": source, "target": target, "count": int(n), "bytes": int(size), "seconds": seconds}
            for (source, target), (n, size, seconds) in history.pairs.items()
        ],
        "conversions": [{"what": what, "count": n} for what, n in history.conversions.most_common(20)],
        "pairs_refused": [
            {"source": source, "target": target, "reason": why, "count": n}
            for (source, target, why), n in service.roster.pairs_refused.most_common(20)
        ],
        "cost": {
            "usd_per_million_tokens": history.cost(),
            "alternative_usd": settings.alternative_usd,
            "alternative": settings.alternative_name,
        },
        "retry_budget_refused": service.retries_refused,
        "events": list(history.events)[-20:],
        "history": list(history.points),
    }


def _status(service: Shown) -> str:
    if service.draining:
        return "draining"
    if service.stuck():
        return "stuck"
    return "ready" if service.is_ready else "waiting for workers"


def _worker(worker: Worker, now: float) -> dict[str, Any]:
    ready, last = worker.ready, worker.last
    return {
        "name": worker.name,
        "role": worker.role,
        "condition": str(worker.condition),
        "why": worker.why,
        "age": now - worker.since if worker.since else None,
        "heard": now - worker.heard if last else None,
        "hardware": ready.hardware if ready else "",
        "precision": ready.precision if ready else "",
        "restarts": worker.restarts,
        "usd_per_hour": worker.endpoint.usd_per_hour,
        "output_rate": worker.output_rate,
        "prompt_rate": worker.prompt_rate,
        "queued": last.queued if last else None,
        "running": last.running if last else None,
        "handing": last.handing if last else None,
        "blocks": last.blocks if last else None,
        "blocks_free": last.blocks_free if last else None,
        "prefix_asked": last.prefix_asked if last else None,
        "prefix_found": last.prefix_found if last else None,
        "tiers": [
            {name: getattr(tier, name) for name in ("name", "used", "capacity", "asked", "found", "damaged")}
            for tier in (last.tiers if last else ())
        ],
    }


def ledger(service: Shown) -> dict[str, Any]:
    """Everything that must be zero at rest, here and at the workers."""
    kinds = ("queued", "running", "handing", "reservations", "pins", "leases", "transfers")
    return {
        "gateway": service.ledger(),
        "workers": {
            each.name: {kind: getattr(each.last, kind) for kind in kinds}
            for each in service.roster
            if each.last is not None
        },
    }
