"""What each half of a request looks like on the wire of each engine. Pure: dictionaries in, dictionaries out.

vLLM (NIXL, pull or push, and our connector): prefill is asked for one token and answers with a ticket, an opaque object that
decode gets verbatim with the original request. vLLM (Mooncake, and our connector under push) and SGLang are asked both at once:
the two halves meet by a transfer id, or by a room on the prefill worker's bootstrap server. Decode gets the client's own prompt:
prefill's token is never appended to it.
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
    VLLM_PUSH = "vllm-diptych-push"  # our connector, where decode reserves before prefill computes
    SGLANG = "sglang"

    @property
    def is_sequential(self) -> bool:
        """Whether decode is asked when prefill has answered, or both at once."""
        return self is Protocol.VLLM_NIXL


@dataclass(frozen=True, slots=True)
class Prefiller:
    """A prefill worker: its address, and the host and port of its bootstrap server, by which decode finds it."""

    url: str
    bootstrap_host: str = ""
    bootstrap_port: int = 0

    @property
    def bootstrap(self) -> str:
        """The bootstrap server's address, which speaks plain HTTP."""
        host = f"[{self.bootstrap_host}]" if ":" in self.bootstrap_host else self.bootstrap_host
        return f"http://{host}:{self.bootstrap_port}"


def foreign(body: Body) -> list[str]:
    """The fields of a client's request that must not be there."""
    return [name for name in FOREIGN if name in body]


def several(body: Body) -> str:
    """The field by which a request asks for more than one answer; '' where it does not.

    Each answer would read the KV of one ticket, or meet in one room, and the prefill worker frees it after the first.

    >>> several({"prompt": "x"}), several({"prompt": [1, 2]}), several({"prompt": ["x", "y"]}), several({"n": 2})
    ('', '', 'prompt', 'n')
    """
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            return name
    if body.get("use_beam_search"):
        return "use_beam_search"
    prompt = body.get("prompt")
    many = isinstance(prompt, list) and len(prompt) > 1 and not all(isinstance(each, int) for each in prompt)
    return "prompt" if many else ""


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


def ask_meeting(body: Body, prefiller: Prefiller, engine: str = "") -> tuple[Body, Body]:
    """Both halves under one new transfer id; `engine` is the one of a Mooncake worker's that has the KV, '' without Mooncake."""
    transfer = f"xfer-{secrets.token_hex(16)}"
    first = ask_vllm_prefill(body)
    first["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
    params = {"do_remote_prefill": True, "do_remote_decode": False, "remote_bootstrap_addr": prefiller.bootstrap,
              **({"remote_engine_id": engine} if engine else {}), "transfer_id": transfer}  # fmt: skip
    return first, ask_vllm_decode(body, params)


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
