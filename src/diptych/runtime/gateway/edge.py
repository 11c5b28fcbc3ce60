"""The HTTP edge: every route there is, who may use it, and one way in which things go wrong."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from diptych.runtime.gateway import asked as ask
from diptych.runtime.gateway.answer import Answer
from diptych.runtime.gateway.asked import Asked, Model
from diptych.runtime.gateway.fields import OUR_HEADERS, ChatFields, CompletionFields, read
from diptych.runtime.gateway.http import Gone, Headers, Receive, Request, Response, Scope, Send
from diptych.runtime.gateway.mailbox import Event, Lost
from diptych.runtime.gateway.meters import CONTENT_TYPE
from diptych.runtime.gateway.page import ASSETS, show
from diptych.runtime.gateway.refusal import Refusal, invalid
from diptych.runtime.gateway.service import Service
from diptych.runtime.gateway.snapshot import ledger, snapshot
from diptych.runtime.gateway.who import Doors
from diptych.runtime.gateway.writers import StreamWriter, WholeWriter

log = logging.getLogger("diptych.gateway")

Handler = Callable[[Request, Response], Awaitable[None]]

_FIXED: Headers = [(b"x-content-type-options", b"nosniff")]


class Edge:
    """An ASGI application over a service. What is not in its table is not there."""

    def __init__(self, service: Service) -> None:
        self._service, self._settings = service, service.settings
        self._doors = doors = Doors(self._settings)
        self._routes: dict[str, dict[str, tuple[Handler, Callable[[Request], None]]]] = {
            "/v1/chat/completions": {"POST": (self._chat, self._for_clients)},
            "/v1/completions": {"POST": (self._completion, self._for_clients)},
            "/v1/models": {"GET": (self._models, self._for_clients)},
            "/health": {"GET": (self._health, doors.for_all)},
            "/ready": {"GET": (self._ready, doors.for_all)},
            "/metrics": {"GET": (self._metrics, doors.for_clients_or_operators)},
            "/ui/data": {"GET": (self._data, doors.for_operators_here)},
            "/debug/ledger": {"GET": (self._ledger, doors.for_operators_here)},
            "/admin/drain": {"POST": (self._drain, doors.for_operators_here)},
            **{path: {"GET": (self._asset, doors.for_this_machine)} for path in ASSETS},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            return None
        request = Request(scope, receive, self._settings.limits)
        fixed = _FIXED if request.id is None else [*_FIXED, (b"x-request-id", request.id)]
        response = Response(send, fixed)
        try:
            await self._answer(request, response)
        except Gone:
            self._service.meters.responses.labels(self._name(request), "client gone").inc()
            return None
        self._service.meters.responses.labels(self._name(request), str(response.status)).inc()
        return None

    async def _answer(self, request: Request, response: Response) -> None:
        try:
            request.check_head()
            await self._find(request)(request, response)
        except Refusal as refusal:
            if response.status == 0:
                await response.refuse(refusal)
        except (Gone, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("a defect while answering %s", self._name(request))
            if response.status == 0:
                await response.refuse(Refusal(500, "a defect of this server; it was noted", "internal_error"))

    def _name(self, request: Request) -> str:
        """The route for a metric: never what a client made up."""
        return request.path if request.path in self._routes else "other"

    def _find(self, request: Request) -> Handler:
        """Raises Refusal: no such route, not by this method, not by this client."""
        methods = self._routes.get(request.path)
        if methods is None:
            raise Refusal(404, "there is nothing at this address", "not_found")
        method = "GET" if request.method == "HEAD" else request.method
        if method not in methods:
            allowed = ", ".join(methods)
            raise _NotAllowed(f"{request.method} is not possible here; {allowed} is", allowed)
        handler, check = methods[method]
        check(request)
        return handler

    # --- who --------------------------------------------------------------------------------------------------------

    def _for_clients(self, request: Request) -> None:
        for name in request.headers:
            if OUR_HEADERS.match(name):
                said = name[:64].decode("latin-1")
                raise invalid(f"the header {said} is not a client's to set", said, "forbidden_header")
        self._doors.for_clients(request)

    # --- answers ----------------------------------------------------------------------------------------------------

    async def _chat(self, request: Request, response: Response) -> None:
        fields = read(await request.body(), ChatFields)
        await self._serve(await ask.chat(fields, self._model(), self._tenant(request)), request, response)

    async def _completion(self, request: Request, response: Response) -> None:
        fields = read(await request.body(), CompletionFields)
        await self._serve(await ask.completion(fields, self._model(), self._tenant(request)), request, response)

    def _model(self) -> Model:
        model = self._service.model
        if model is None:
            raise Refusal(503, "no worker has said what it serves yet", "no_worker", after=2.0)
        return model

    def _tenant(self, request: Request) -> bytes:
        """Clients with one key share prefixes. There is one key, so there is one tenant."""
        return self._doors.key or b""

    async def _serve(self, asked: Asked, request: Request, response: Response) -> None:
        answers = self._service.submit(asked)
        left = asyncio.ensure_future(request.left())
        me = asyncio.current_task()
        left.add_done_callback(lambda done: None if done.cancelled() or me is None else me.cancel())
        why = "client gone"
        try:
            if asked.stream:
                await self._stream(asked, answers, response)
            else:
                await self._whole(asked, answers, response)
            why = "done"
        except asyncio.CancelledError:
            if not left.done():
                raise
            raise Gone from None
        except Refusal:
            why = "another answer was lost"
            raise
        finally:
            left.cancel()
            self._service.close(answers, why)

    async def _whole(self, asked: Asked, answers: list[Answer], response: Response) -> None:
        writer = WholeWriter(asked, answers, self._service.tokenizer, self._service.answers.finish_early)
        while writer.open:
            for event in await answers[0].mailbox.take():
                if isinstance(event, Lost):
                    raise _refusal(event)
                writer.write(event)
        await response.whole(200, writer.document())

    async def _stream(self, asked: Asked, answers: list[Answer], response: Response) -> None:
        """Nothing is sent before the first event, so that what fails at once fails with a status."""
        writer = StreamWriter(asked, answers, self._service.tokenizer, self._service.answers.finish_early)
        mailbox = answers[0].mailbox
        while writer.open:
            events = await mailbox.take()
            lost = next((each for each in events if isinstance(each, Lost)), None)
            if lost is not None and response.status == 0:
                raise _refusal(lost)
            if response.status == 0:
                await response.begin(b"text/event-stream; charset=utf-8")
            told = b"".join(_until_lost(writer, events))
            if lost is not None:
                return await response.piece(told + b"data: " + _refusal(lost).envelope() + b"\n\n", last=True)
            if told and writer.open:
                await response.piece(told)
        return await response.piece(told + writer.close(), last=True)

    async def _models(self, request: Request, response: Response) -> None:
        model = {
            "id": self._settings.model,
            "object": "model",
            "created": int(self._service.started),
            "owned_by": "diptych",
        }
        found = self._service.model
        if found is not None:
            model["max_model_len"] = found.max_context
        await response.whole(200, _document({"object": "list", "data": [model]}))

    # --- operators --------------------------------------------------------------------------------------------------

    async def _health(self, request: Request, response: Response) -> None:
        """Whether work moves, not whether a process lives."""
        stuck = self._service.stuck()
        up = [each.name for each in self._service.roster if each.up]
        is_well = bool(up) and not stuck
        said = {"status": "ok" if is_well else "stuck" if stuck else "no worker is up", "up": len(up), "stuck": stuck}
        await response.whole(200 if is_well else 503, _document(said))

    async def _ready(self, request: Request, response: Response) -> None:
        is_ready = self._service.is_ready
        state = "ready" if is_ready else "draining" if self._service.draining else "waiting for workers"
        await response.whole(200 if is_ready else 503, _document({"status": state}))

    async def _metrics(self, request: Request, response: Response) -> None:
        await response.whole(200, self._service.meters.text(), CONTENT_TYPE.encode())

    async def _data(self, request: Request, response: Response) -> None:
        await response.whole(200, _document(snapshot(self._service)), more=[(b"cache-control", b"no-store")])

    async def _ledger(self, request: Request, response: Response) -> None:
        self._service.workforce.ask_ledgers()
        await asyncio.sleep(0.02)
        await response.whole(200, _document(ledger(self._service)))

    async def _drain(self, request: Request, response: Response) -> None:
        name = parse_qs(request.query.decode("latin-1")).get("worker", [""])[0]
        if not self._service.workforce.drain(name):
            raise Refusal(404, f"there is no worker {name[:64]!r} that is connected", "no_such_worker", "worker")
        await response.whole(200, _document({"worker": name, "status": "draining"}))

    async def _asset(self, request: Request, response: Response) -> None:
        await show(request.path, response)


class _NotAllowed(Refusal):
    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(405, message, "method_not_allowed")
        self._allowed = allowed

    def headers(self) -> Headers:
        return [(b"allow", self._allowed.encode())]


def _until_lost(writer: StreamWriter, events: list[Event]) -> list[bytes]:
    told = []
    for event in events:
        if isinstance(event, Lost):
            break
        told.append(writer.write(event))
    return told


def _refusal(lost: Lost) -> Refusal:
    return Refusal(lost.status, lost.message, lost.code, after=lost.after)


def _document(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
