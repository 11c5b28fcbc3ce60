"""Small servers that behave on the wire as vLLM's and SGLang's workers do, rightly and wrongly."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

TICKET = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[3, 4]], "remote_engine_id": "e1",
    "remote_host": "10.0.0.1", "remote_port": 5600, "remote_num_tokens": 2**62 + 1,
}  # fmt: skip


class Worker:
    """Records what it is asked; `fail` is a status to answer with, or 'hang', or 'cut' for a stream that breaks."""

    def __init__(self, role: str, fail: int | str = 0, ticket: object = TICKET) -> None:
        self.role, self.fail, self.ticket = role, fail, ticket
        self.asked: list[dict] = []
        self.ids: list[str] = []
        self.aborted: list[str] = []
        self.transferred = 0
        self.left = asyncio.Event()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.ids.append(request.headers["X-Request-Id"])
        try:
            return await self.answer(request, body)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def answer(self, request: web.Request, body: dict) -> web.StreamResponse:
        if self.fail == "hang":
            await asyncio.sleep(30)
        if isinstance(self.fail, int) and self.fail:
            return web.json_response({"error": {"message": "no", "code": self.fail}}, status=self.fail)
        if self.role == "prefill":
            long = {"choices": [{"text": "X" * 300_000}], "kv_transfer_params": self.ticket}  # more than one read
            return web.json_response(long)
        if body.get("kv_transfer_params"):
            self.transferred += 100
        if not body.get("stream"):
            return web.json_response({"choices": [{"text": " right"}]})
        told = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await told.prepare(request)
        for word in ("a", "b", "c"):
            await told.write(f"data: {json.dumps({'choices': [{'text': word}]})}\n\n".encode())
            if self.fail == "cut":
                request.transport.abort()
                return told
            if self.fail == "slow":
                await asyncio.sleep(0.2)
        await told.write(b"data: [DONE]\n\n")
        return told

    async def metrics(self, request: web.Request) -> web.Response:
        name = 'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"}'
        return web.Response(
            text=f'{name} {float(self.transferred)}\nsglang:kv_transfer_total_mb_sum{{a="b"}} {len(self.asked)}.0\n'
        )

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.json_response({})


@asynccontextmanager
async def running(*workers: Worker):
    """Their addresses, while they run."""
    servers = []
    for worker in workers:
        app = web.Application()
        app.router.add_post("/v1/completions", worker.complete)
        app.router.add_post("/v1/chat/completions", worker.complete)
        app.router.add_post("/abort_request", worker.abort)
        app.router.add_get("/metrics", worker.metrics)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
    try:
        yield [str(server.make_url("")).rstrip("/") for server in servers]
    finally:
        for server in servers:
            await server.close()
