"""What prefill's answer carries to decode (`kv_transfer_params`): which handoff, over which tokens, and whom to ask for it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from diptych.boundary.messages import MAX_LEASE_MS
from diptych.errors import InvalidInput
from diptych.integrations.vllm.jobs import Key
from diptych.runtime.peer.address import Address

RANKS = 1024


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prefill rank: its worker's name and the address where it is asked."""

    worker: Annotated[str, Meta(min_length=1, max_length=128)]
    doorbell: Annotated[str, Meta(min_length=1, max_length=200)]


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

    def params(self) -> dict[str, Any]:
        """The parameters of decode's request, as routers for vLLM pass them on."""
        first = self.ranks[0]
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": first.worker,
            "diptych": msgspec.to_builtins(self),
        }


def read_ticket(params: Mapping[str, Any], digest: str, ranks: int) -> tuple[Ticket | None, str]:
    """The ticket of a decode request, and why its KV must not be used if so."""
    try:
        ticket = msgspec.convert(params.get("diptych"), Ticket)
    except msgspec.ValidationError as error:
        return None, f"the ticket cannot be read: {error}"[:300]
    if not all(_is_here(place.doorbell) for place in ticket.ranks):
        return None, "the ticket names an address that leaves this host"
    if ticket.digest != digest:
        return ticket, "another prompt was prefilled than is asked for"
    if len(ticket.ranks) != ranks:
        return (
            ticket,
            f"prefill has {len(ticket.ranks)} tensor-parallel ranks and decode {ranks}: equal ones are needed",
        )
    return ticket, ""


def _is_here(doorbell: str) -> bool:
    try:
        return Address.of(doorbell).is_local
    except InvalidInput:
        return False


def digest_of(tokens: Sequence[int], beside: Sequence[str] = ()) -> str:
    """A digest of token numbers and of what else the KV is of: an adapter, images behind their placeholders."""
    found = blake2b(array("I", tokens).tobytes(), digest_size=16)
    for each in beside:
        found.update(b"\0" + each.encode())
    return found.hexdigest()
