"""What the gateway and a worker say to each other: one schema in msgpack, every size bounded, behind a length of four bytes.

Prompts and answers are tokens here; text is the gateway's business. A request is 16 random bytes that the gateway made: nothing
that a client sends becomes a name. `epoch` counts the attempts at one request, and what is said under an older one is ignored.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

OLDEST, NEWEST = 1, 1
MAX_BYTES = 64 << 20
MAX_TOKENS = 1 << 22

_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Token = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Tokens = Annotated[tuple[_Token, ...], Meta(max_length=MAX_TOKENS)]
_Sentence = Annotated[str, Meta(max_length=1000)]
_Share = Annotated[float, Meta(ge=0)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """The base of every message."""


# --- both ways --------------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    """First of each side. `life` changes at every start; `token` proves the right to speak where the socket is not a file."""

    name: _Name
    role: Annotated[str, Meta(pattern="^(gateway|prefill|decode|colocated)$")]
    life: _Count
    oldest: Annotated[int, Meta(ge=1, le=65535)] = OLDEST
    newest: Annotated[int, Meta(ge=1, le=65535)] = NEWEST
    token: Annotated[str, Meta(max_length=256)] = ""


class Ready(Message, frozen=True, tag="ready"):
    """A worker after its hello: what it can do. `state` is its KV state in msgpack; `address` is where peers reach it."""

    state: Annotated[bytes, Meta(max_length=4 << 20)]
    address: Annotated[str, Meta(max_length=512)]
    blocks: _Count
    block_tokens: _Count
    vocabulary: _Count
    max_context: _Count
    model: _Name
    precision: Annotated[str, Meta(max_length=128)] = ""
    hardware: Annotated[str, Meta(max_length=128)] = ""


# --- gateway to worker ------------------------------------------------------------------------------------------------


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`Sampling`, and when to end: at `max_tokens`, at a stop token unless `ignore_eos`. Stop strings are the gateway's."""

    max_tokens: _Count
    temperature: _Share = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: _Count = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    seed: int = 0
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    min_tokens: _Count = 0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    bias: Annotated[tuple[tuple[_Token, float], ...], Meta(max_length=1024)] = ()
    stop_tokens: Annotated[tuple[_Token, ...], Meta(max_length=64)] = ()
    ignore_eos: bool = False


class Submit(Message, frozen=True, tag="submit"):
    """Do a request, or this worker's half of it.

    `half` is 'whole' (compute and answer here), 'prefill' (compute the prompt, hand its KV and first token to `peer`) or 'decode'
    (expect the KV from `peer`, answer). `generated` are tokens that an earlier attempt has already given to the client: they
    belong to the context and are not said again. `salt` keeps tenants' prefixes apart. Deadlines and leases are durations (ms):
    clocks of two processes are never compared.
    """

    request: _Id
    epoch: _Count
    half: Annotated[str, Meta(pattern="^(whole|prefill|decode)$")]
    prompt: _Tokens
    params: Params
    generated: _Tokens = ()
    peer: Annotated[str, Meta(max_length=128)] = ""
    peer_address: Annotated[str, Meta(max_length=512)] = ""
    ownership: Annotated[str, Meta(pattern="^(push|pull)$")] = "push"
    wire: Annotated[str, Meta(max_length=32)] = ""
    salt: Annotated[bytes, Meta(max_length=32)] = b""
    lease_ms: _Count = 30_000
    deadline_ms: _Count = 600_000


class Cancel(Message, frozen=True, tag="cancel"):
    """Nobody waits for this request any more: give everything back."""

    request: _Id
    epoch: _Count


class Drain(Message, frozen=True, tag="drain"):
    """Take nothing new, finish what is here, say `Drained`."""


class Ask(Message, frozen=True, tag="ask"):
    """Say `Load` now, with the ledger."""


# --- worker to gateway ------------------------------------------------------------------------------------------------


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token with its log probabilities."""

    token: _Token
    logprob: float | None = None
    top: Annotated[tuple[tuple[_Token, float], ...], Meta(max_length=100)] = ()


class Tokens(Message, frozen=True, tag="tokens", omit_defaults=True):
    """Tokens of an answer; `index` is the place of the first among all generated, so that none is lost or doubled unseen.

    The answer's last ones say so by `finish`, so that an end and its tokens cannot be parted. A prefill half says the first
    token, and its target says it again: whichever comes first is the client's. `cached` goes with a half's first: prompt tokens
    that were here, said before anybody can have the end of the answer.
    """

    request: _Id
    epoch: _Count
    index: _Count
    tokens: Annotated[tuple[Chosen, ...], Meta(max_length=4096)]
    finish: Annotated[str, Meta(pattern="^(|stop|length)$")] = ""
    prompt: Annotated[tuple[Chosen, ...], Meta(max_length=MAX_TOKENS)] = ()
    cached: _Count = 0


class Ended(Message, frozen=True, tag="ended"):
    """The half is done: an answer by 'stop' or 'length', a prefill half by 'handed'. `cached` prompt tokens were here."""

    request: _Id
    epoch: _Count
    reason: Annotated[str, Meta(pattern="^(stop|length|handed)$")]
    generated: _Count = 0
    cached: _Count = 0
    transferred: _Count = 0


class Failed(Message, frozen=True, tag="failed"):
    """The half could not be done. `retry` says whether another attempt may succeed, `after_ms` how long to wait first.

    What was held has been given back.
    """

    request: _Id
    epoch: _Count
    reason: _Name
    detail: _Sentence = ""
    retry: bool = False
    after_ms: _Count = 0


class Handed(Message, frozen=True, tag="handed"):
    """What a handoff took, said by the receiving side: bytes on the wire, seconds, and what was converted."""

    request: _Id
    epoch: _Count
    bytes: _Count
    seconds: _Share
    converted: Annotated[str, Meta(max_length=128)] = ""
    convert_seconds: _Share = 0.0
    source: Annotated[str, Meta(max_length=128)] = ""


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One residency tier: bytes in use and at most, and blocks asked of it, found and damaged."""

    name: _Name
    used: _Count
    capacity: _Count
    asked: _Count = 0
    found: _Count = 0
    damaged: _Count = 0


class Load(Message, frozen=True, tag="load"):
    """Twice a second, the heartbeat: queues, memory, and how much has been done since the start (proof of progress).

    The ledger's counts (`reservations`, `pins`, `leases`, `transfers`) are zero when nothing is under way.
    """

    queued: _Count
    running: _Count
    handing: _Count
    blocks_free: _Count
    blocks: _Count
    steps: _Count
    prompt_tokens: _Count
    output_tokens: _Count
    reservations: _Count = 0
    pins: _Count = 0
    leases: _Count = 0
    transfers: _Count = 0
    prefix_asked: _Count = 0
    prefix_found: _Count = 0
    tiers: Annotated[tuple[Tier, ...], Meta(max_length=16)] = ()
    draining: bool = False


class Drained(Message, frozen=True, tag="drained"):
    """Nothing is left here."""


FromGateway = Hello | Submit | Cancel | Drain | Ask
FromWorker = Hello | Ready | Tokens | Ended | Failed | Handed | Load | Drained

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(FromGateway)
_to_gateway = msgspec.msgpack.Decoder(FromWorker)


class Malformed(Exception):
    """Bytes that are no message; the connection cannot go on."""


def encode(message: Message) -> bytes:
    """A message with its length before it."""
    body = _encoder.encode(message)
    assert len(body) <= MAX_BYTES, f"a message of {len(body):,} bytes"
    return len(body).to_bytes(4, "little") + body


def length(head: bytes) -> int:
    """How many bytes follow these four.

    Raises:
        Malformed: more than a message may have.
    """
    size = int.from_bytes(head, "little")
    if size > MAX_BYTES:
        raise Malformed(f"a message of {size:,} bytes; at most {MAX_BYTES:,}")
    return size


def decode_at_worker(body: bytes) -> FromGateway:
    """What the gateway said. Raises Malformed."""
    try:
        return _to_worker.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(str(error)[:200]) from None


def decode_at_gateway(body: bytes) -> FromWorker:
    """What a worker said. Raises Malformed."""
    try:
        return _to_gateway.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(str(error)[:200]) from None
