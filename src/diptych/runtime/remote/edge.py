"""The HTTP edge over another engine's workers: the same bounds, secrets, pages and envelope as over our own."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from diptych.errors import DiptychError
from diptych.runtime.gateway.http import Gone, Receive, Request, Response, Scope, Send
from diptych.runtime.gateway.meters import CONTENT_TYPE
from diptych.runtime.gateway.page import ASSETS, show
from diptych.runtime.gateway.refusal import Refusal, invalid
from diptych.runtime.gateway.snapshot import snapshot
from diptych.runtime.gateway.who import Doors
from diptych.runtime.remote.answer import STREAM, Answer
from diptych.runtime.remote.drive import PATHS
from diptych.runtime.remote.service import ForeignService
from diptych.runtime.remote.tally import Tally

log = logging.getLogger("diptych.gateway")

Handler = Callable[[Request, Response], Awaitable[None]]
Check = Callable[[Request], None]


class ForeignEdge:
    """An ASGI application over a service. What is not in its table is not there."""

    def __init__(self, service: ForeignService) -> None:
        self._service, self._settings = service, service.settings
        doors = Doors(self._settings)
        self._routes: dict[tuple[str, str], tuple[Handler, Check]] = {
            **{("POST", path): (self._ask, doors.for_clients) for path in PATHS},
            ("GET", "/v1/models"): (self._models, doors.for_clients),
            ("GET", "/health"): (self._health, doors.for_all),
            ("GET", "/ready"): (self._ready, doors.for_all),
            ("GET", "/metrics"): (self._metrics, doors.for_clients_or_operators),
            ("POST", "/admin/canary"): (self._canary, doors.for_operators),
            ("GET", "/ui/data"): (self._data, doors.for_operators_here),
            **{("GET", path): (self._asset, doors.for_this_machine) for path in ASSETS},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive, self._settings.limits)
        response = Response(send, [(b"x-content-type-options", b"nosniff")])
        try:
            request.check_head()
            await self._found(request)(request, response)
        except Refusal as refusal:
            if response.status == 0:
                await response.refuse(refusal)
            else:
                await response.piece(b"data: " + refusal.envelope() + b"\n\n", last=True)
        except Gone:
            self._service.left()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a defect while answering")
            if response.status == 0:
                await response.refuse(Refusal(500, "a defect of this server; it was noted", "internal_error"))
        route = request.path if (request.method, request.path) in self._routes else "other"
        self._service.meters.responses.labels(route, str(response.status or "client gone")).inc()

    # --- who ----------------------------------------------------------------------------------------------------------

    def _found(self, request: Request) -> Handler:
        """Raises Refusal: nothing there, or not for this client."""
        found = self._routes.get((request.method, request.path))
        if found is None:
            raise Refusal(404, "there is nothing at this address", "not_found")
        handler, check = found
        check(request)
        return handler

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request, response: Response) -> None:
        began = self._service.now()
        body = _object(await request.body())
        tally = Tally(began, body)
        self._service.open += 1
        try:
            answer = await _or_gone(request, self._service.ask(request.path, body))
            try:
                await _or_gone(request, self._pass_on(answer, response, tally))
            finally:
                answer.close()
        finally:
            self._service.open -= 1
        if tally.first and not tally.is_broken:
            self._service.finished(tally)

    async def _pass_on(self, answer: Answer, response: Response, tally: Tally) -> None:
        """A decode worker's bytes as they come; a whole answer is held back until it is whole, so that its end is its status."""
        if answer.kind != STREAM:
            body = b"".join([piece async for piece in answer])
            tally.whole(body, self._service.now())
            return await response.whole(200, body, answer.kind.encode())
        await response.begin(b"text/event-stream; charset=utf-8")
        async for piece in answer:
            told = tally.streamed(piece, self._service.now())
            if told:
                await response.piece(told)
        return await response.piece(tally.rest(), last=True)

    # --- operators ----------------------------------------------------------------------------------------------------

    async def _models(self, request: Request, response: Response) -> None:
        await response.whole(200, self._service.models)

    async def _health(self, request: Request, response: Response) -> None:
        up = {
            role: sum(each.up for each in self._service.roster if each.role == role) for role in ("prefill", "decode")
        }
        is_well = up["decode"] > 0 and not self._service.draining
        said = {"status": "ok" if is_well else "no decode worker answers", "up": sum(up.values()), **up}
        await response.whole(200 if is_well else 503, json.dumps(said).encode())

    async def _ready(self, request: Request, response: Response) -> None:
        is_ready = self._service.is_ready
        state = "ready" if is_ready else "draining" if self._service.draining else "waiting for workers"
        await response.whole(200 if is_ready else 503, json.dumps({"status": state}).encode())

    async def _metrics(self, request: Request, response: Response) -> None:
        lines = ["# TYPE diptych_decisions_total counter"]
        for (what, why), count in sorted(self._service.fleet.counts.items()):
            lines.append(f"diptych_decisions_total{{what={_quoted(what)},reason={_quoted(why)}}} {count}")
        body = self._service.meters.text() + ("\n".join(lines) + "\n").encode()
        await response.whole(200, body, CONTENT_TYPE.encode())

    async def _canary(self, request: Request, response: Response) -> None:
        try:
            told = await self._service.canary()
        except DiptychError as error:
            raise Refusal(502, str(error), "canary_failed") from None
        said = {"crossed": told.crossed, "ok": told.crossed > 0 and told.is_right, "right": told.is_right}
        await response.whole(200, json.dumps(said).encode())

    async def _data(self, request: Request, response: Response) -> None:
        told = json.dumps(shown(self._service), allow_nan=False).encode()
        await response.whole(200, told, more=[(b"cache-control", b"no-store")])

    async def _asset(self, request: Request, response: Response) -> None:
        await show(request.path, response)


def shown(service: ForeignService) -> dict[str, Any]:
    """The gateway at one moment, as over our own workers; ways and fallbacks are those that the driver counts."""
    found = snapshot(service)
    fallbacks = ("fallback", "prefill failed", "decode failed", "handoff")
    for (what, why), count in service.fleet.counts.most_common(40):
        if what == "route":
            found["routes"].append({"path": why, "reason": str(service.foreign.protocol), "count": count})
        elif what in fallbacks:
            reason = why if what == "fallback" else f"{what}: {why}"
            found["fallbacks"].append({"reason": reason, "count": count})
    return found


async def _or_gone(request: Request, work: Awaitable[Any]) -> Any:
    """What `work` gives, unless the client leaves first: then it is cancelled. Raises Gone."""
    working, left = asyncio.ensure_future(work), asyncio.ensure_future(request.left())
    try:
        await asyncio.wait((working, left), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        for each in (working, left):
            each.cancel()
        await asyncio.gather(working, left, return_exceptions=True)


def _object(body: bytes) -> dict[str, Any]:
    """Raises Refusal."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise invalid("the body is no JSON object")
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
