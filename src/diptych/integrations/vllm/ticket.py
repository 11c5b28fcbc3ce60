"""What prefill's answer carries to decode (`kv_transfer_params`): which handoff, over which tokens, and whom to ask for it.

Under push there is no answer yet. Whoever routes asks both at once and names the meeting, as routers for Mooncake do: a
`transfer_id` of its own, and decode is told where prefill is asked, in `remote_bootstrap_addr`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from diptych.boundary.messages import MAX_LEASE_MS
from diptych.errors import InvalidInput
from diptych.runtime.peer.address import Address

Key = tuple[bytes, int]
"""A handoff: its id and epoch."""
RANKS = 1024
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Doorbell = Annotated[str, Meta(min_length=1, max_length=200)]


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prefill rank: its worker's name and the address where it is asked."""

    worker: Name
    doorbell: Doorbell


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt that a prefill worker keeps. `digest` is over the prompt; `ranks` has one place per TP rank."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    epoch: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    tokens: Annotated[int, Meta(ge=1, lt=1 << 32)]
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    lease_ms: Annotated[int, Meta(ge=1, le=MAX_LEASE_MS)]
    ranks: Annotated[tuple[Place, ...], Meta(min_length=1, max_length=RANKS)]

    @property
    def key(self) -> Key:
        """The handoff's id and epoch."""
        return bytes.fromhex(self.id), self.epoch

    @property
    def doorbells(self) -> tuple[str, ...]:
        """Where it is asked for."""
        return tuple(each.doorbell for each in self.ranks)

    def params(self) -> dict[str, Any]:
        """The parameters of decode's request, as routers for vLLM pass them on."""
        first = self.ranks[0]
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": first.worker,
            "diptych": msgspec.to_builtins(self),
        }


class Meeting(msgspec.Struct, frozen=True):
    """Where decode asks for a prompt that prefill is about to make."""

    key: Key
    doorbell: str

    @property
    def doorbells(self) -> tuple[str, ...]:
        """Where it is asked for first."""
        return (self.doorbell,)


def transfer_key(params: Mapping[str, Any]) -> Key | None:
    """The handoff that a router named, if it did. It names each attempt anew, so that all have one epoch."""
    named = params.get("transfer_id")
    if not isinstance(named, str) or not 8 <= len(named) <= 256:
        return None
    return blake2b(named.encode(), digest_size=16, person=b"diptych").digest(), 1


def read_ticket(params: Mapping[str, Any], digest: str, afar: bool = False) -> tuple[Ticket | Meeting | None, str]:
    """The ticket or meeting of a decode request, and why its KV must not be used if so. `afar`: other hosts may be asked."""
    key = transfer_key(params)
    if key is not None:
        return _meeting(key, params, afar)
    try:
        ticket = msgspec.convert(params.get("diptych"), Ticket)
    except msgspec.ValidationError as error:
        return None, f"the ticket cannot be read: {error}"[:300]
    if not all(_is_near(doorbell, afar) for doorbell in ticket.doorbells):
        return None, "the ticket names an address that leaves this host, or none"
    if ticket.digest != digest:
        return ticket, "another prompt was prefilled than is asked for"
    return ticket, ""


def _meeting(key: Key, params: Mapping[str, Any], afar: bool) -> tuple[Meeting | None, str]:
    named = str(params.get("remote_bootstrap_addr", ""))[:200]
    doorbell = f"tcp:{named.removeprefix('http://').rstrip('/')}"
    if not _is_near(doorbell, afar):
        return None, "remote_bootstrap_addr names an address that leaves this host, or none"
    return Meeting(key, doorbell), ""


def _is_near(doorbell: str, afar: bool) -> bool:
    try:
        return Address.of(doorbell).is_local or afar
    except InvalidInput:
        return False


def share_key(key: Key, source: int, target: int) -> Key:
    """The handoff of the share that one prefill rank hands to one decode rank."""
    said = key[0] + source.to_bytes(4, "big") + target.to_bytes(4, "big")
    return blake2b(said, digest_size=16, person=b"share").digest(), key[1]


def digest_of(tokens: Sequence[int], beside: Sequence[str] = ()) -> str:
    """A digest of token numbers and of what else the KV is of: an adapter, images behind their placeholders."""
    found = blake2b(array("I", tokens).tobytes(), digest_size=16)
    for each in beside:
        found.update(b"\0" + each.encode())
    return found.hexdigest()
