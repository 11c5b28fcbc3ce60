"""Small servers that behave on the wire as vLLM's and SGLang's workers do, rightly and wrongly."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

TICKET = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[3, 4]], "remote_engine_id": "e1",
    "remote_host": "10.0.0.1", "remote_port": 5600, "remote_num_tokens": 2**62 + 1,
}  # fmt: skip
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
EXTERNAL = 'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"}'


class Worker:
    """Records what it is asked; `fail` is a status to answer with, or 'hang', 'slow', or 'cut' for a stream that breaks.

    `garbles`: what it says of transferred KV is not what it says by itself. `key`: what it asks for in `Authorization`. `block`,
    `model`, `connector` and `kv` are what it says of itself.
    """

    def __init__(self, role: str, fail: int | str = 0, ticket: object = TICKET, engine: str = "vllm", *,
                 block: int = 128, model: str = "m", connector: str = "nixl", kv: str = "auto", key: str = "",
                 garbles: bool = False, development: dict | None = None) -> None:  # fmt: skip
        self.role, self.fail, self.ticket, self.engine = role, fail, ticket, engine
        self.block, self.model, self.connector, self.kv, self.key = block, model, connector, kv, key
        self.garbles, self.development = garbles, development
        self.asked: list[dict] = []
        self.ids: list[str] = []
        self.ranks: list[str | None] = []
        self.aborted: list[str] = []
        self.transferred = 0
        self.answered = 0
        self.left = asyncio.Event()

    @property
    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_post("/abort_request", self.abort)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/query", self.query)
        app.router.add_get("/server_info", self.server_info)
        if self.engine == "vllm":
            app.router.add_get("/version", self.version)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler) -> web.StreamResponse:
        if (
            self.key
            and request.path.startswith("/v1/")
            and request.headers.get("Authorization") != f"Bearer {self.key}"
        ):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.ids.append(request.headers["X-Request-Id"])
        self.ranks.append(request.headers.get("X-data-parallel-rank"))
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
        if body.get("model") != self.model:
            message = f"The model `{body.get('model')}` does not exist."
            return web.json_response({"error": {"message": message, "code": 404}}, status=404)
        self.answered += 1
        if self.role == "prefill":
            long = {"choices": [{"text": "X" * 300_000}], "kv_transfer_params": self.ticket}  # more than one read
            return web.json_response(long)
        remote = bool(body.get("kv_transfer_params"))
        if remote:
            self.transferred += 100
        text = " wrong" if remote and self.garbles else " right"
        if not body.get("stream"):
            chat = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
            return web.json_response({"choices": [{**chat, "finish_reason": "length"}], "usage": USAGE})
        return await self.stream(request, body)

    async def stream(self, request: web.Request, body: dict) -> web.StreamResponse:
        told = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await told.prepare(request)
        for word in ("a", "b", "c"):
            choice = {"text": word, "finish_reason": "stop" if word == "c" else None}
            await told.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            if self.fail == "cut":
                request.transport.abort()
                return told
            if self.fail == "slow":
                await asyncio.sleep(0.2)
        if (body.get("stream_options") or {}).get("include_usage"):
            await told.write(f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\n".encode())
        await told.write(b"data: [DONE]\n\n")
        return told

    # --- what it says of itself ---------------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.fail == "ill" else 200)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": self.model, "root": self.model, "max_model_len": 2048}]}
        )

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.33.0"})

    async def server_info(self, request: web.Request) -> web.Response:
        if self.engine == "sglang":
            told = {"version": "0.5.23", "tp_size": 1, "model_path": self.model, "served_model_name": self.model,
                    "page_size": self.block, "kv_cache_dtype": self.kv, "disaggregation_mode": self.role,
                    "disaggregation_transfer_backend": "nixl", "disaggregation_bootstrap_port": 8998}  # fmt: skip
            return web.json_response(told)
        return web.json_response(self.development or {}, status=200 if self.development else 404)

    async def query(self, request: web.Request) -> web.Response:
        """Mooncake's bootstrap server."""
        return web.json_response({"0": {"engine_id": "e0", "worker_addr": {"0": {"0": "x"}}},
                                  "1": {"engine_id": "e1", "worker_addr": {"0": {"0": "y"}}}})  # fmt: skip

    async def metrics(self, request: web.Request) -> web.Response:
        if self.engine not in ("vllm", "sglang"):
            raise web.HTTPNotFound
        if self.engine == "sglang":
            lines = [f'sglang:kv_transfer_total_mb_sum{{a="b"}} {len(self.asked)}.0', "sglang:num_running_reqs 0.0",
                     f"sglang:kv_transfer_total_mb_count {len(self.asked)}.0"]  # fmt: skip
        else:
            labels = f'block_size="{self.block}",cache_dtype="{self.kv}",engine="0",num_gpu_blocks="100"'
            lines = [
                f"{EXTERNAL} {float(self.transferred)}",
                f"vllm:cache_config_info{{{labels}}} 1.0",
                'vllm:num_requests_running{engine="0"} 1.0',
                f'vllm:iteration_tokens_total_count{{engine="0"}} {3.0 * self.answered}',
                f'vllm:generation_tokens_total{{engine="0"}} {3.0 * self.answered}',
                'vllm:kv_cache_usage_perc{engine="0"} 0.25',
            ]
            if self.connector:
                size = f"vllm:{self.connector}_bytes_transferred"
                lines += [f"{size}_count {self.transferred / 100}", f"{size}_sum {self.transferred * 1024.0}"]
        return web.Response(text="\n".join(lines) + "\n")

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.json_response({})


@asynccontextmanager
async def running(*workers: Worker, tls: ssl.SSLContext | None = None):
    """Their addresses, while they run."""
    servers = []
    for worker in workers:
        server = TestServer(worker.app, scheme="https" if tls else "http")
        await server.start_server(ssl=tls) if tls else await server.start_server()
        servers.append(server)
    try:
        yield [str(server.make_url("")).rstrip("/") for server in servers]
    finally:
        for server in servers:
            await server.close()
