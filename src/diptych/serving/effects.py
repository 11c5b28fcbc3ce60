"""The closed set of things a driver must be able to do for a handoff. A rule returns them, in order; it never does them."""

from __future__ import annotations

from enum import IntEnum


class Effect(IntEnum):
    """What a handoff asks of its driver. Small integers: a driver keeps one function per effect in a list."""

    ASK_ROOM = 0  # tell the target to reserve blocks, now or as soon as it has them
    START_TRANSFER = 1  # move the bytes: the source writes (push) or the target reads (pull)
    STOP_TRANSFER = 2
    COMMIT = 3  # the target owns the KV and may decode
    ACKNOWLEDGE = 4  # tell the source that its copy is no longer needed
    FREE_SOURCE = 5
    FREE_TARGET = 6
    FALL_BACK = 7  # no copy is left, or nobody to take it: ask `fallback` what now
    PREFILL = 8  # queue it at the source
    CHOOSE_TARGET = 9  # the source still holds the KV: route to another target
