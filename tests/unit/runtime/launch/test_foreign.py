"""The gateway over other engines: same refusals, same envelope, a canary before traffic."""

import asyncio
import json

import aiohttp
import pytest

from diptych.errors import DiptychError
from diptych.runtime.gateway.server import Listening
from diptych.runtime.gateway.settings import Endpoint, Limits, Settings
from diptych.runtime.remote.edge import ForeignEdge
from diptych.runtime.remote.halves import Protocol
from diptych.runtime.remote.service import ForeignService
from diptych.runtime.remote.settings import Foreign, Prefill
from fake_engines import Worker, running

KEY, ADMIN = "a-key-of-sixteen-letters", "an-admin-key-of-letters"


def through(test, prefill, decode, limits=None, listen=None, **more):
    """`test(session, service)` with a gateway over these two."""

    async def go():
        async with running(prefill, decode) as (first, second):
            settings = Settings(model="m", workers=(Endpoint("n", "decode", "unix:/n"),), port=0, api_key=KEY,
                                admin_token=ADMIN, limits=limits or Limits(), **(listen or {}))  # fmt: skip
            service = ForeignService(Foreign(settings, Protocol.VLLM_NIXL, (Prefill(first),), (second,), **more))
            async with (
                Listening(service, ForeignEdge(service)) as gateway,
                aiohttp.ClientSession(
                    f"http://127.0.0.1:{gateway.port}", headers={"authorization": f"Bearer {KEY}"}
                ) as session,
            ):
                await test(session, service)
                for _ in range(100):
                    if not service.open:
                        break
                    await asyncio.sleep(0.02)
                assert service.open == 0

    asyncio.run(go())


BODY = {"model": "m", "prompt": "hello", "max_tokens": 9}


def test_a_canary_first_then_whole_answers_and_streams_as_the_worker_gives_them():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(session, service):
        assert len(decode.asked) == 2  # alone, and with prefill's KV
        assert {body["model"] for body in decode.asked} == {"m"}
        async with session.post("/v1/completions", json=BODY) as answer:
            assert answer.status == 200
            assert (await answer.json())["choices"] == [{"text": " right", "finish_reason": "length"}]
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
    async def never(session, service):
        raise AssertionError("it serves")

    with pytest.raises(DiptychError, match="did not cross"):
        through(never, Worker("prefill", ticket=None), Worker("decode"))

    async def test(session, service):
        async with session.post("/v1/completions", json=BODY) as answer:
            assert answer.status == 200

    through(test, Worker("prefill", ticket=None), Worker("decode"), recompute=True)


def test_when_kv_means_something_else_on_the_other_side_nobody_is_served_whatever_is_allowed():
    async def never(session, service):
        raise AssertionError("it serves")

    with pytest.raises(DiptychError, match="Alone ' right', with prefill's KV ' wrong'"):
        through(never, Worker("prefill"), Worker("decode", garbles=True), recompute=True)


@pytest.mark.parametrize("wants", [True, False])
def test_a_stream_is_counted_by_its_usage_which_only_those_see_who_asked(wants):
    decode = Worker("decode")
    options = {"stream_options": {"include_usage": True}} if wants else {}

    async def test(session, service):
        async with session.post("/v1/completions", json={**BODY, "stream": True, **options}) as answer:
            assert ("usage" in await answer.text()) is wants
        async with session.get("/metrics") as answer:
            told = await answer.text()
        assert 'vllm:generation_tokens_total{model_name="m"} 3.0' in told
        assert 'vllm:prompt_tokens_total{model_name="m"} 7.0' in told
        assert 'vllm:request_success_total{finished_reason="stop",model_name="m"} 1.0' in told
        assert 'vllm:time_to_first_token_seconds_count{model_name="m"} 1.0' in told

    through(test, Worker("prefill"), decode)
    assert decode.asked[-1]["stream_options"]["include_usage"] is True


def test_what_operators_see_is_what_they_see_of_our_own_workers():
    prefill, decode = Worker("prefill"), Worker("decode")
    priced = {"alternative_usd": 7.5, "alternative_name": "2x H100"}

    async def test(session, service):
        admin = {"authorization": f"Bearer {ADMIN}"}
        for _ in range(4):
            async with session.post("/v1/completions", json=BODY) as answer:
                assert answer.status == 200
        data = await until(session, lambda data: data["transfers"] and data["cost"]["usd_per_million_tokens"])
        assert (data["status"], data["model"]) == ("ready", "m")
        assert {each["role"]: each["usd_per_hour"] for each in data["workers"]} == {"prefill": 2.0, "decode": 3.0}
        assert all(each["blocks"] == 100 and each["blocks_free"] == 75 for each in data["workers"])
        assert data["transfers"][0]["bytes"] == data["transfers"][0]["count"] * 102_400
        assert data["routes"] == [{"path": "remote prefill", "reason": "vllm-nixl", "count": 5}]
        assert data["cost"]["alternative_usd"] == 7.5
        assert data["requests"]["finished"] == 4
        async with session.get("/metrics", headers=admin) as answer:
            told = await answer.text()
        assert 'diptych_alternative_cost_per_million_tokens_usd{design="2x H100"} 7.5' in told
        assert 'diptych_queue_depth{role="decode",' in told
        async with session.get("/ui/data") as answer:
            assert answer.status == 401
        async with session.get("/ui", headers={"authorization": ""}) as answer:
            assert "<!doctype html>" in await answer.text()
        rebound = {**admin, "host": "evil.example"}
        async with session.get("/ui/data", headers=rebound) as answer:
            assert answer.status == 403

    through(test, prefill, decode, listen=priced, prefill_usd=2.0, decode_usd=3.0)


async def until(session, holds, seconds=10):
    """The gateway's snapshot once something holds of it."""
    for _ in range(int(seconds / 0.05)):
        async with session.get("/ui/data", headers={"authorization": f"Bearer {ADMIN}"}) as answer:
            assert answer.status == 200
            data = await answer.json()
        if holds(data):
            return data
        await asyncio.sleep(0.05)
    raise AssertionError(data)


def test_a_worker_that_is_ill_is_down_and_up_again_when_it_is_well():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(session, service):
        prefill.fail = "ill"
        data = await until(session, lambda data: data["status"] != "ready")
        down = next(each for each in data["workers"] if each["role"] == "prefill")
        assert (down["condition"], down["why"]) == ("down", "does not answer: Refusal")
        assert [each["kind"] for each in data["events"]] == ["worker lost"]
        async with session.get("/ready") as answer:
            assert answer.status == 503
        async with session.post("/v1/completions", json=BODY) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "no_prefill_worker")
        prefill.fail = 0
        await until(session, lambda data: data["status"] == "ready")

    through(test, prefill, decode)


def test_workers_that_ask_for_a_key_get_it():
    key = "a-workers-key-of-letters"

    async def test(session, service):
        async with session.post("/v1/completions", json=BODY) as answer:
            assert answer.status == 200

    through(test, Worker("prefill", key=key), Worker("decode", key=key), listen={"worker_token": key})
    with pytest.raises(DiptychError, match="401"):
        through(test, Worker("prefill", key=key), Worker("decode", key=key))


def test_the_canary_on_demand_is_the_operators():
    async def test(session, service):
        async with session.post("/admin/canary") as answer:
            assert answer.status == 401
        async with session.post("/admin/canary", headers={"authorization": f"Bearer {ADMIN}"}) as answer:
            assert await answer.json() == {"crossed": 100.0, "ok": True, "right": True}

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
    async def test(session, service):
        async with session.post("/v1/completions", data=body, headers={"content-type": "application/json"}) as answer:
            told = await answer.json()
            assert (answer.status, told["error"]["code"]) == (status, code), told

    limits = Limits(body_bytes=2048) if status == 413 else None
    through(test, Worker("prefill"), Worker("decode"), limits=limits)


def test_no_key_wrong_paths_and_methods():
    async def test(session, service):
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

    async def test(session, service):
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

    async def test(session, service):
        decode.fail = "slow"
        async with session.post("/v1/completions", json={**BODY, "stream": True}) as answer:
            await answer.content.readany()
        for _ in range(100):
            if not service.open:
                break
            await asyncio.sleep(0.02)
        assert service.open == 0
        assert service.fleet.second[0].load == 0

    through(test, prefill, decode)
