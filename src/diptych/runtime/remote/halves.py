"""What each half of a request looks like on the wire of each engine. Pure: dictionaries in, dictionaries out.

vLLM (NIXL, pull or push): prefill is asked for one token and answers with a ticket, an opaque object that decode gets verbatim
with the original request. vLLM (Mooncake) and SGLang are asked both at once: the two halves meet by a transfer id, or by a room
on the prefill worker's bootstrap server. Decode gets the client's own prompt: prefill's token is never appended to it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Body = dict[str, Any]

FOREIGN = (
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disagg_prefill_dp_rank",
    "routed_dp_rank",
    "data_parallel_rank",
    "disaggregated_params",
    "rid",
)
"""Fields by which a client could choose whose KV is read or which worker is asked: refused, and never passed on."""


class Protocol(StrEnum):
    """How two workers find each other's KV."""

    VLLM_NIXL = "vllm-nixl"
    VLLM_MOONCAKE = "vllm-mooncake"
    SGLANG = "sglang"

    @property
    def is_sequential(self) -> bool:
        """Whether decode is asked when prefill has answered, or both at once."""
        return self is Protocol.VLLM_NIXL


@dataclass(frozen=True, slots=True)
class Prefiller:
    """A prefill worker: its address, and where decode finds it (SGLang: host and port of its bootstrap server)."""

    url: str
    bootstrap_host: str = ""
    bootstrap_port: int = 0
    engine_id: str = ""


def foreign(body: Body) -> list[str]:
    """The fields of a client's request that must not be there."""
    return [name for name in FOREIGN if name in body]


def ask_vllm_prefill(body: Body) -> Body:
    """The whole prompt, one token, and KV kept for whoever has the ticket."""
    asked = {name: value for name, value in body.items() if name not in ("stream_options", "min_tokens", *FOREIGN)}
    asked |= {"stream": False, "max_tokens": 1}
    if "max_completion_tokens" in body:
        asked["max_completion_tokens"] = 1
    nothing = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    return {**asked, "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False, **nothing}}


def ask_vllm_decode(body: Body, ticket: Any) -> Body:
    """The client's own request, with the ticket as it came. Without one (prefill kept nothing) it is a plain request."""
    plain = {name: value for name, value in body.items() if name not in FOREIGN}
    return {**plain, "kv_transfer_params": ticket} if ticket else plain


def ask_mooncake(body: Body, prefiller: Prefiller) -> tuple[Body, Body]:
    """Both halves of a Mooncake transfer, under one new transfer id."""
    transfer = f"xfer-{secrets.token_hex(16)}"
    first = ask_vllm_prefill(body)
    first["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
    address = f"http://{prefiller.bootstrap_host}:{prefiller.bootstrap_port}"
    second = ask_vllm_decode(body, {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_bootstrap_addr": address,
        "remote_engine_id": prefiller.engine_id,
        "transfer_id": transfer,
    })  # fmt: skip
    return first, second


def ask_sglang(body: Body, prefiller: Prefiller) -> tuple[Body, Body]:
    """The same request for both, in a room of its own. Each has an id of ours, by which it can be aborted."""
    plain = {name: value for name, value in body.items() if name not in FOREIGN}
    room = secrets.randbits(63)
    place = {
        "bootstrap_host": prefiller.bootstrap_host,
        "bootstrap_port": prefiller.bootstrap_port,
        "bootstrap_room": room,
    }
    halves = ({**plain, **place, "rid": f"{name}-{secrets.token_hex(16)}"} for name in ("prefill", "decode"))
    first, second = halves
    first.pop("stream_options", None)
    return {**first, "stream": False}, second
