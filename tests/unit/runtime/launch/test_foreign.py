"""The gateway over other engines: same refusals, same envelope, a canary before traffic."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from diptych.errors import DiptychError
from diptych.runtime.gateway.server import Listening
from diptych.runtime.gateway.settings import Endpoint, Limits, Settings
from diptych.runtime.launch.foreign import Foreign, ForeignEdge, Prefill
from diptych.runtime.remote.halves import Protocol

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))
from engines import Worker

KEY, ADMIN = "a-key-of-sixteen-letters", "an-admin-key-of-letters"


@asynccontextmanager
async def servers(*workers, models=("m",)):
    """Addresses of fake workers that also say what they serve."""
    made = []

    async def told(request):
        return web.json_response({"object": "list", "data": [{"id": name} for name in models]})

    for worker in workers:
        app = web.Application()
        app.router.add_post("/v1/completions", worker.complete)
        app.router.add_post("/v1/chat/completions", worker.complete)
        app.router.add_get("/metrics", worker.metrics)
        app.router.add_get("/v1/models", told)
        made.append(TestServer(app))
        await made[-1].start_server()
    try:
        yield [str(each.make_url("")).rstrip("/") for each in made]
    finally:
        for each in made:
            await each.close()


def through(test, prefill, decode, models=("m",), limits=None, **more):
    """`test(session, edge)` with a gateway over these two."""

    async def go():
        async with servers(prefill, decode, models=models) as (first, second):
            listen = Settings(model="remote", workers=(Endpoint("n", "decode", "unix:/n"),), port=0, api_key=KEY,
                              admin_token=ADMIN, limits=limits or Limits())  # fmt: skip
            edge = ForeignEdge(Foreign(listen, Protocol.VLLM_NIXL, (Prefill(first),), (second,), **more))
            async with (
                Listening(edge, edge) as gateway,
                aiohttp.ClientSession(
                    f"http://127.0.0.1:{gateway.port}", headers={"authorization": f"Bearer {KEY}"}
                ) as session,
            ):
                await test(session, edge)
                for _ in range(100):
                    if not edge.open:
                        break
                    await asyncio.sleep(0.02)
                assert edge.open == 0

    asyncio.run(go())


BODY = {"model": "m", "prompt": "hello", "max_tokens": 9}


def test_a_canary_first_then_whole_answers_and_streams_as_the_worker_gives_them():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(session, edge):
        assert len(decode.asked) == 1
        assert decode.asked[0]["model"] == "m"
        async with session.post("/v1/completions", json=BODY) as answer:
            assert (answer.status, await answer.json()) == (200, {"choices": [{"text": " right"}]})
        async with session.post("/v1/completions", json={**BODY, "stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        async with session.get("/v1/models") as answer:
            assert (await answer.json())["data"][0]["id"] == "m"
        async with session.get("/health") as answer:
            assert (await answer.json())["up"] == 2
        async with session.get("/metrics") as answer:
            assert 'diptych_decisions_total{what="route",reason="remote prefill"} 3' in await answer.text()

    through(test, prefill, decode)


def test_when_kv_does_not_cross_nobody_is_served_unless_that_is_allowed():
    async def never(session, edge):
        raise AssertionError("it serves")

    with pytest.raises(DiptychError, match="did not cross"):
        through(never, Worker("prefill", ticket=None), Worker("decode"))

    async def test(session, edge):
        async with session.post("/v1/completions", json=BODY) as answer:
            assert answer.status == 200

    through(test, Worker("prefill", ticket=None), Worker("decode"), recompute=True)


def test_the_canary_on_demand_is_the_operators():
    async def test(session, edge):
        async with session.post("/admin/canary") as answer:
            assert answer.status == 401
        async with session.post("/admin/canary", headers={"authorization": f"Bearer {ADMIN}"}) as answer:
            assert await answer.json() == {"crossed": 100.0, "ok": True}

    through(test, Worker("prefill"), Worker("decode"))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, None),
        (b"[1]", 400, None),
        (b"\xff\xfe", 400, None),
        (b"[" * 100_000, 400, None),
        (json.dumps({**BODY, "kv_transfer_params": {}}).encode(), 400, "forbidden_field"),
        (json.dumps({**BODY, "bootstrap_host": "evil"}).encode(), 400, "forbidden_field"),
        (b" " * 3000, 413, "body_too_large"),
    ],
)
def test_what_a_client_may_not_say_gets_the_envelope(body, status, code):
    async def test(session, edge):
        async with session.post("/v1/completions", data=body, headers={"content-type": "application/json"}) as answer:
            told = await answer.json()
            assert (answer.status, told["error"]["code"]) == (status, code), told

    limits = Limits(body_bytes=2048) if status == 413 else None
    through(test, Worker("prefill"), Worker("decode"), limits=limits)


def test_no_key_wrong_paths_and_methods():
    async def test(session, edge):
        for headers in (
            {"authorization": ""},
            {"authorization": f"Bearer {KEY}x"},
            {"authorization": f"Bearer {KEY[:-1]}"},
        ):
            async with session.post("/v1/completions", json=BODY, headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["type"]) == (401, "authentication_error")
        for method, path in (("GET", "/v1/completions"), ("POST", "/pause"), ("GET", "/../etc/passwd")):
            async with session.request(method, path) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")

    through(test, Worker("prefill"), Worker("decode"))


def test_a_worker_that_fails_is_a_typed_error_and_a_stream_that_breaks_says_so():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(session, edge):
        prefill.fail = 500
        async with session.post("/v1/completions", json=BODY) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "prefill_failed")
        prefill.fail, decode.fail = 0, "cut"
        async with session.post("/v1/completions", json={**BODY, "stream": True}) as answer:
            text = await answer.text()
            assert "decode_failed" in text
            assert "[DONE]" not in text

    through(test, prefill, decode)


def test_a_client_that_leaves_frees_what_it_had():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(session, edge):
        decode.fail = "slow"
        async with session.post("/v1/completions", json={**BODY, "stream": True}) as answer:
            await answer.content.readany()
        for _ in range(100):
            if not edge.open:
                break
            await asyncio.sleep(0.02)
        assert edge.open == 0
        assert edge._drive().fleet.second[0].load == 0

    through(test, prefill, decode)
