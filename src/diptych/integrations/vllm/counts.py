"""What a worker's handoffs have come to, by name: what its metrics show."""

from __future__ import annotations

COUNTERS = {
    "sent": "prompts handed over to decode workers",
    "received": "prompts taken over from prefill workers",
    "sent_bytes": "bytes of KV sent",
    "received_bytes": "bytes of KV received and counted",
    "early_bytes": "bytes of KV that left before their prompt was whole (push)",
    "seconds": "seconds from asking for a prompt to having it",
    "conversions": "prompts that were rewritten in another form",
    "conversion_seconds": "seconds of rewriting on this side",
    "refused": "prompts refused before any was sent",
    "failed": "prompts that did not arrive whole, and are failed or recomputed as the policy says",
    "expired": "prompts dropped because nobody asked for them in time",
}
GAUGES = {
    "open_leases": "prompts whose blocks are kept for a decode worker",
    "open_transfers": "prompts on their way here",
}

Counts = dict[str, float]


def nothing() -> Counts:
    """Every counter at zero."""
    return dict.fromkeys(COUNTERS, 0.0)


def added(one: Counts, other: Counts) -> Counts:
    """Two intervals, or two workers, as one; gauges add up over workers."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {*one, *other}}
