"""The scheduler's side of the connector: which prompts are kept or made for others, and which are fetched into which blocks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych.design.boundary import Ownership
from diptych.integrations.vllm.jobs import Fetch, Keep, Made, Make, Tell
from diptych.integrations.vllm.settings import Settings
from diptych.integrations.vllm.ticket import Key, Meeting, Place, Ticket, digest_of, read_ticket, transfer_key

BEATS = 6
"""Times in a lease that decode says it still waits, as `runtime.handoff` has it."""
WHOLE = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")
"""vLLM's names for an end that leaves a whole prompt behind."""
BlocksOf = Callable[[str], Sequence[Sequence[int]] | None]


@dataclass
class Step:
    """What the workers are told with one step. `halt`: requests that are given up, and whether vLLM waits for their blocks.

    `is_idle`: no token is computed.
    """

    make: list[Make] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    keep: list[Keep] = field(default_factory=list)
    halt: list[tuple[str, bool]] = field(default_factory=list)
    fetch: list[Fetch] = field(default_factory=list)
    tell: list[Tell] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)
    is_idle: bool = False


@dataclass
class _Making:
    """A prompt that decode asks for before it is computed. `roomy`: ranks whose takers have room."""

    request: Any
    key: Key
    roomy: int = 0
    is_forsaken: bool = False


class SchedulerSide:
    """Which prompts are kept or made for others, and which are fetched into which blocks. It moves nothing."""

    def __init__(self, ranks: int, settings: Settings) -> None:
        self._settings, self._tp = settings, ranks
        self.ranks: tuple[Place, ...] = ()
        self.loading: set[str] = set()
        self._epoch = time.time_ns()
        self._making: dict[str, _Making] = {}
        self._waiting: dict[str, tuple[Ticket | Meeting, float]] = {}
        self._next = Step()

    @property
    def is_making(self) -> bool:
        """Whether prompts wait for decode's room, or are computed for it."""
        return bool(self._making)

    # --- before it is computed --------------------------------------------------------------------------------------

    def waits(self, request: Any) -> None:
        """A request has come and may wait long for room: its prompt must be kept meanwhile."""
        if _wants(request):
            ticket, refused = self._ticket(request)
            if ticket is not None and not refused:
                self._waiting[request.request_id] = (ticket, time.monotonic())

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Tokens that prefill has beyond those that are here; asked again and again, so nothing is changed.

        None: prefill itself, under push, while decode has no room for what it would make.
        """
        if _wants(request):
            missing = request.num_prompt_tokens - computed
            return (missing, True) if missing > 0 else (0, False)
        key = self._pushed(request)
        if key is None:
            return 0, False
        making = self._making.get(request.request_id)
        if making is None:
            making = self._making[request.request_id] = _Making(request, key)
            self._next.make.append(Make(key, request.request_id, request.num_prompt_tokens, _digest(request)))
        return (0 if making.is_forsaken or making.roomy == self._tp else None), False

    def heard(self, roomy: Mapping[str, int], forsaken: Iterable[str]) -> None:
        """From the workers: how many ranks have room for a prompt, and which prompts go to nobody."""
        for request, ranks in roomy.items():
            if request in self._making:
                self._making[request].roomy += ranks
        for request in forsaken:
            if request in self._making:
                self._making[request].is_forsaken = True

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
        ranks = ticket.ranks if isinstance(ticket, Ticket) else ()
        meeting = ticket.doorbell if isinstance(ticket, Meeting) else ""
        self._next.fetch.append(
            Fetch(
                key,
                request.request_id,
                tuple(ids),
                tokens,
                tokens - external,
                _digest(request),
                ranks,
                meeting,
                refused,
            )
        )
        if refused:
            self._drop(ticket)
        self.loading.add(request.request_id)

    # --- each step --------------------------------------------------------------------------------------------------

    def step(self, scheduled: Mapping[str, int], blocks_of: BlocksOf) -> Step:
        """What the workers are told with this step, in which so many tokens of each request are computed."""
        now = time.monotonic()
        for request, (ticket, told) in self._waiting.items():
            if isinstance(ticket, Ticket) and (now - told) * 1000 * BEATS >= ticket.lease_ms:
                self._waiting[request] = (ticket, now)
                self._next.tell.append(Tell(ticket.key, ticket.doorbells, "keep"))
        for name, making in list(self._making.items()):
            if making.request.status.name == "PREEMPTED":
                self._preempted(name, making)
            elif name in scheduled and not making.is_forsaken:
                self._makes(name, making, scheduled[name], blocks_of)
        found, self._next = self._next, Step()
        found.is_idle = not scheduled
        return found

    def _makes(self, name: str, making: _Making, count: int, blocks_of: BlocksOf) -> None:
        ids = blocks_of(name)
        if ids is not None and making.request.num_computed_tokens < making.request.num_prompt_tokens:
            self._next.made.append(Made(making.key, tuple(ids[0]), making.request.num_computed_tokens + count))

    def _preempted(self, name: str, making: _Making) -> None:
        """Its blocks are another's with this step; it is computed again later, and handed to nobody."""
        del self._making[name]
        making.request.kv_transfer_params["do_remote_decode"] = False
        self._next.halt.append((name, False))

    # --- once it is computed ----------------------------------------------------------------------------------------

    def finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended: a prefill whole and asked for is kept; a decode that still waits no longer does."""
        self._waiting.pop(request.request_id, None)
        if _wants(request):
            self._drop(self._ticket(request)[0])
            return False, None
        if request.request_id in self.loading:
            self._next.cancel.append(request.request_id)
            return False, None
        making = self._making.pop(request.request_id, None)
        is_whole = bool(
            block_ids
            and request.num_computed_tokens >= request.num_prompt_tokens
            and request.prompt_token_ids
            and request.status.name in WHOLE
        )
        if making is not None:
            return self._made(making, is_whole, block_ids), None
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_decode") or transfer_key(params) or not is_whole:
            return False, None
        return True, self._kept(request, block_ids)

    def _made(self, making: _Making, is_whole: bool, block_ids: list[int]) -> bool:
        """Whether vLLM keeps the blocks of what was made until the workers say so."""
        name = making.request.request_id
        if is_whole and not making.is_forsaken:
            self._next.keep.append(Keep(making.key, name, tuple(block_ids), making.request.num_prompt_tokens))
        else:
            self._next.halt.append((name, bool(block_ids)))
        return bool(block_ids)

    def _kept(self, request: Any, block_ids: Iterable[int]) -> dict[str, Any]:
        self._epoch += 1
        prompt = request.prompt_token_ids
        lease_ms = int(self._settings.lease_s * 1000)
        ticket = Ticket(secrets.token_hex(16), self._epoch, len(prompt), _digest(request), lease_ms, self.ranks)
        self._next.keep.append(Keep(ticket.key, request.request_id, tuple(block_ids), len(prompt)))
        return ticket.params()

    def _ticket(self, request: Any) -> tuple[Ticket | Meeting | None, str]:
        return read_ticket(request.kv_transfer_params, _digest(request), self._settings.tls is not None)

    def _pushed(self, request: Any) -> Key | None:
        """The handoff for which this prompt is made, where it was named before and push is this worker's way."""
        params = request.kv_transfer_params or {}
        is_push = self._settings.ownership is Ownership.PUSH and params.get("do_remote_decode")
        return transfer_key(params) if is_push else None

    def _drop(self, ticket: Ticket | Meeting | None) -> None:
        if ticket is not None:
            self._next.tell.append(Tell(ticket.key, ticket.doorbells, "drop"))


def _wants(request: Any) -> bool:
    return bool((request.kv_transfer_params or {}).get("do_remote_prefill"))


def _digest(request: Any) -> str:
    """Of everything that decides a prompt's KV beside the model."""
    adapter = request.lora_request.lora_name if getattr(request, "lora_request", None) else ""
    seen = [str(feature.identifier) for feature in getattr(request, "mm_features", None) or ()]
    return digest_of(request.prompt_token_ids or (), [adapter, *seen])
