"""What the two sides of a handoff say to each other: one schema for push and pull, in msgpack, with every size bounded.

The reservation and epoch that a message is about stand in its frame's header and not here, so they cannot disagree. Words and
order are those of `serving.handoff`; `docs/wire.md` lays the two beside each other. There are no lists, no maps, no extension
types and no floats; a field or message that is not here is refused, and so is a second spelling of the same message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from diptych.boundary.frame import MAX_MESSAGE, MAX_PAYLOAD

MAX_STATE = MAX_MESSAGE - 4096  # as long as `serial` reads
MAX_LEASE_MS = 24 * 3600 * 1000

_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Sentence = Annotated[str, Meta(max_length=500)]
_Digest = Annotated[bytes, Meta(max_length=32)]
_Milliseconds = Annotated[int, Meta(ge=0, le=MAX_LEASE_MS)]
_Lease = Annotated[int, Meta(ge=1, le=MAX_LEASE_MS)]
_Bytes = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Count = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_Rank = Annotated[int, Meta(ge=0, le=65535)]
_Version = Annotated[int, Meta(ge=1, le=65535)]


class Speaker(StrEnum):
    """Who speaks."""

    PREFILL = "prefill"
    DECODE = "decode"
    GATEWAY = "gateway"
    STORE = "store"


class Verdict(StrEnum):
    """What became of a transfer."""

    ARRIVED = "arrived"  # exactly the expected bytes, each digest right
    DAMAGED = "damaged"  # something is missing or did not match its digest: send again, what is here is passed over
    CORRUPT = "corrupt"  # refused for good


class Reason(StrEnum):
    """Why room is refused or a handoff ends before its time."""

    NO_ROOM = "no room"
    TOO_LARGE = "too large"  # would not fit if everything else were gone
    INCOMPATIBLE = "incompatible"
    STALE_EPOCH = "stale epoch"
    UNKNOWN = "unknown reservation"
    DRAINING = "draining"
    EXPIRED = "expired"
    CORRUPT = "corrupt"
    SOURCE_LOST = "source lost"
    TARGET_LOST = "target lost"
    FAULT = "fault"  # a mistake of the speaker's own


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """The base of every message."""


class Hello(Message, frozen=True, tag="hello"):
    """The first message of each side on a connection: who speaks, which frame versions, and the KV state it makes or takes.

    `life` changes at every start of the process. `state` is the digest (`serial.digest`, 32 bytes) of the KV state that this side
    makes or takes, empty where it does neither. `rank` of `ranks` is the speaker's shard.
    """

    speaker: Speaker
    worker: _Name
    life: Annotated[int, Meta(ge=0)]
    oldest: _Version
    newest: _Version
    state: _Digest
    max_payload: Annotated[int, Meta(ge=1, le=MAX_PAYLOAD)] = MAX_PAYLOAD
    rank: _Rank = 0
    ranks: Annotated[int, Meta(ge=1, le=65536)] = 1


class Reserve(Message, frozen=True, tag="reserve"):
    """Push, source to target: set room aside for KV that is still to be made. Asks for `Accept` or `Reject`.

    `state` is the runtime KV state in its own msgpack form, read by its own bounded reader; `total_bytes` is what would cross.
    """

    state: Annotated[bytes, Meta(max_length=MAX_STATE)]
    tokens: _Count
    total_bytes: _Bytes
    lease_ms: _Lease


class Offer(Message, frozen=True, tag="offer"):
    """Pull, or a second target, source to target: KV that is made and pinned under a lease. Asks for `Accept` or `Reject`."""

    state: Annotated[bytes, Meta(max_length=MAX_STATE)]
    tokens: _Count
    total_bytes: _Bytes
    lease_ms: _Lease


class Accept(Message, frozen=True, tag="accept"):
    """The target has reserved its blocks. After `Reserve` prefill may start; after `Offer` the source may send.

    The first `held_blocks` of every layer are there already and must not be sent; `total_bytes` is what the target now expects.
    """

    total_bytes: _Bytes
    held_blocks: _Count = 0


class Reject(Message, frozen=True, tag="reject"):
    """No room here; `retry_ms` of 0 means never for this one."""

    reason: Reason
    retry_ms: _Milliseconds = 0
    detail: _Sentence = ""


class LayerReady(Message, frozen=True, tag="layer_ready"):
    """Source to target: the first `blocks` blocks of a layer are made (pull may have them) and, under push, sent."""

    layer: _Count
    blocks: _Count


class Done(Message, frozen=True, tag="done"):
    """Source to target: everything has been sent, so much of it. Decode goes on behind `first_token`, which prefill chose."""

    frames: _Bytes
    total_bytes: _Bytes
    first_token: _Count = 0


class Validated(Message, frozen=True, tag="validated"):
    """Target to source: what its own count of distinct blocks says once the source is done."""

    verdict: Verdict
    arrived_bytes: _Bytes
    missing_bytes: _Bytes


class Commit(Message, frozen=True, tag="commit"):
    """Target to source and gateway: the KV is the target's from here on, and it may decode."""


class Release(Message, frozen=True, tag="release"):
    """Target to source: the source's copy is no longer needed."""


class Abort(Message, frozen=True, tag="abort"):
    """Either side: this handoff ends here, whatever it holds is given back."""

    reason: Reason
    detail: _Sentence = ""


class Renew(Message, frozen=True, tag="renew"):
    """Target to source, the heartbeat: keep the lease for `lease_ms` from when this is read."""

    lease_ms: _Lease


class Cancel(Message, frozen=True, tag="cancel"):
    """Gateway to both sides: nobody waits for this answer any more."""


Said = (
    Hello
    | Reserve
    | Offer
    | Accept
    | Reject
    | LayerReady
    | Done
    | Validated
    | Commit
    | Release
    | Abort
    | Renew
    | Cancel
)


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are not a message: why, in a short sentence without the sender's own text at length."""

    why: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Said)


def encode(message: Message) -> bytes:
    """A message as it goes into a frame. Its fields are checked here too: what is sent is what would be taken."""
    data = _encoder.encode(message)
    back = decode(data)
    assert back == message, f"{message!r} would be refused: {back!r}"
    return data


def decode(data: bytes | bytearray | memoryview) -> Said | Malformed:
    """The message in a frame's payload, or why there is none. Never raises and holds no more than the bytes it was given."""
    if len(data) > MAX_MESSAGE:
        return Malformed(f"{len(data):,} bytes; at most {MAX_MESSAGE:,}")
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        return Malformed(ascii(str(error))[1:-1][:160])
    if _encoder.encode(message) != bytes(data):
        return Malformed("spelled otherwise than the schema spells it")
    return message


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two sides that cannot talk, and why."""

    why: str


def agree(ours: Hello, theirs: Hello, expected: bytes) -> int | Disagreement:
    """The newest frame version that both speak, or why the connection must close.

    `expected` is the digest of the other side's state that the contract was checked with; a worker restarted with another
    configuration has another one.
    """
    version = min(ours.newest, theirs.newest)
    if version < max(ours.oldest, theirs.oldest):
        spoken = f"{ours.oldest} to {ours.newest} here, {theirs.oldest} to {theirs.newest} there"
        return Disagreement(f"no frame version in common: {spoken}")
    if theirs.state != expected:
        return Disagreement(f"its KV state is {theirs.state.hex()}; the contract was checked with {expected.hex()}")
    return version
