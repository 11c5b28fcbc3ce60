"""What the engine's thread is told, and what it tells: commands of gateways, answers with the connection they go to."""

from __future__ import annotations

from dataclasses import dataclass, field

from diptych.runtime.messages import Message
from diptych.runtime.worker.owner import Limits
from diptych.serving.batching import BatchRules

EVERYBODY = -1
"""The route of what every gateway is told."""

Out = list[tuple[int, Message]]


@dataclass(frozen=True, slots=True)
class Command:
    """What a gateway said, and over which of the control connections."""

    route: int
    message: Message


@dataclass(frozen=True, slots=True)
class Gone:
    """A gateway's connection has ended: nobody waits for what it asked."""

    route: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How a worker runs its engine. `role` is 'prefill', 'decode' or 'colocated'; `life` changes at every start."""

    name: str
    role: str
    life: int
    rules: BatchRules = field(default_factory=BatchRules)
    limits: Limits = field(default_factory=Limits)
    prefixes: bool = True
