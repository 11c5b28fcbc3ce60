"""The scheduler's side of the connector: which prompts are kept for others, and which are fetched into which blocks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from diptych.integrations.vllm.jobs import Fetch, Keep, Tell
from diptych.integrations.vllm.settings import Settings
from diptych.integrations.vllm.ticket import Place, Ticket, digest_of, read_ticket

BEATS = 6
"""Times in a lease that decode says it still waits, as `runtime.handoff` has it."""
WHOLE = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")
"""vLLM's names for an end that leaves a whole prompt behind."""


@dataclass
class Step:
    """What the workers are told with one step. A `Fetch` comes with its ticket, which has a place per rank."""

    keep: list[Keep] = field(default_factory=list)
    fetch: list[tuple[Fetch, Ticket | None]] = field(default_factory=list)
    tell: list[tuple[Tell, Ticket]] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)


class SchedulerSide:
    """Which prompts are kept for others, and which are fetched into which blocks. It moves nothing."""

    def __init__(self, ranks: int, settings: Settings) -> None:
        self._settings, self._tp = settings, ranks
        self.ranks: tuple[Place, ...] = ()
        self.loading: set[str] = set()
        self._epoch = time.time_ns()
        self._waiting: dict[str, tuple[Ticket, float]] = {}
        self._next = Step()

    def waits(self, request: Any) -> None:
        """A request has come and may wait long for room: its prompt must be kept meanwhile."""
        if _wants(request):
            ticket, refused = self._ticket(request)
            if ticket is not None and not refused:
                self._waiting[request.request_id] = (ticket, time.monotonic())

    def matched(self, request: Any, computed: int) -> tuple[int, bool]:
        """Tokens that prefill has beyond those that are here; asked again and again, so nothing is changed."""
        missing = request.num_prompt_tokens - computed if _wants(request) else 0
        return (missing, True) if missing > 0 else (0, False)

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        """Blocks are there; a prompt is fetched once."""
        if not _wants(request):
            return
        request.kv_transfer_params["do_remote_prefill"] = False
        self._waiting.pop(request.request_id, None)
        ticket, refused = self._ticket(request)
        if external <= 0:
            self._drop(ticket)
            return
        key = ticket.key if ticket is not None else (secrets.token_bytes(16), 0)
        (ids,) = blocks.get_block_ids()
        tokens = request.num_prompt_tokens
        job = Fetch(key, request.request_id, tuple(ids), tokens, tokens - external, "", "", refused)
        self._next.fetch.append((job, ticket))
        if refused:
            self._drop(ticket)
        self.loading.add(request.request_id)

    def finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended: a prefill whole and asked for is kept; a decode that still waits no longer does."""
        self._waiting.pop(request.request_id, None)
        if _wants(request):
            self._drop(self._ticket(request)[0])
            return False, None
        if request.request_id in self.loading:
            self._next.cancel.append(request.request_id)
            return False, None
        params = request.kv_transfer_params or {}
        whole = request.num_computed_tokens >= request.num_prompt_tokens
        if (
            not params.get("do_remote_decode")
            or not whole
            or not block_ids
            or not request.prompt_token_ids
            or request.status.name not in WHOLE
        ):
            return False, None
        return True, self._kept(request, block_ids)

    def step(self) -> Step:
        """What the workers are told with this step."""
        now = time.monotonic()
        for request, (ticket, told) in self._waiting.items():
            if (now - told) * 1000 * BEATS >= ticket.lease_ms:
                self._waiting[request] = (ticket, now)
                self._next.tell.append((Tell(ticket.key, "", "keep"), ticket))
        found, self._next = self._next, Step()
        return found

    def _kept(self, request: Any, block_ids: Iterable[int]) -> dict[str, Any]:
        self._epoch += 1
        prompt = request.prompt_token_ids
        lease_ms = int(self._settings.lease_s * 1000)
        ticket = Ticket(secrets.token_hex(16), self._epoch, len(prompt), _digest(request), lease_ms, self.ranks)
        self._next.keep.append(Keep(ticket.key, request.request_id, tuple(block_ids), len(prompt)))
        return ticket.params()

    def _ticket(self, request: Any) -> tuple[Ticket | None, str]:
        return read_ticket(request.kv_transfer_params, _digest(request), self._tp)

    def _drop(self, ticket: Ticket | None) -> None:
        if ticket is not None:
            self._next.tell.append((Tell(ticket.key, "", "drop"), ticket))


def _wants(request: Any) -> bool:
    return bool((request.kv_transfer_params or {}).get("do_remote_prefill"))


def _digest(request: Any) -> str:
    """Of everything that decides a prompt's KV beside the model."""
    adapter = request.lora_request.lora_name if getattr(request, "lora_request", None) else ""
    seen = [str(feature.identifier) for feature in getattr(request, "mm_features", None) or ()]
    return digest_of(request.prompt_token_ids or (), [adapter, *seen])
