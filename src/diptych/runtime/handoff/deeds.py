"""What a side of a handoff asks of the worker that runs it. A side returns them in order; it never does them."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.boundary.messages import Message


@dataclass(frozen=True, slots=True)
class Deed:
    """The base: about one handoff under one epoch."""

    id: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class Say(Deed):
    """Send a message to the other worker. A message that cannot be sent is lost, and `lost` is called for the peer."""

    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class Prefill(Deed):
    """Source: compute the prompt; `produced` when it is done."""


@dataclass(frozen=True, slots=True)
class Send(Deed):
    """Source: send what the target does not have; `sent` when the last frame is out. Called again after damage."""

    peer: str


@dataclass(frozen=True, slots=True)
class FreeSource(Deed):
    """Source: stop computing and sending, then unpin the blocks; they may be reused once no system call reads them."""


@dataclass(frozen=True, slots=True)
class MakeRoom(Deed):
    """Target: reserve blocks for so many tokens once there are any, then `room`. `total_bytes` is what would cross."""

    tokens: int
    total_bytes: int
    state: bytes


@dataclass(frozen=True, slots=True)
class Count(Deed):
    """Target: look up what has arrived; `counted` with the bytes that are here and that are missing."""


@dataclass(frozen=True, slots=True)
class Activate(Deed):
    """Target: the KV is this worker's; the sequence joins the batch, and `first_token` is the first of its answer."""

    first_token: int


@dataclass(frozen=True, slots=True)
class FreeTarget(Deed):
    """Target: give the reservation up, filled or not; blocks may be reused once no system call writes them."""


@dataclass(frozen=True, slots=True)
class Report(Deed):
    """Tell the gateway that this half failed, whether another attempt may succeed, and how long to wait first."""

    reason: str
    detail: str = ""
    retry: bool = True
    after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Handed(Deed):
    """Source: the target has taken over and this half is done."""
