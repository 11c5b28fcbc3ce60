"""vLLM's and SGLang's disaggregation protocols, driven against servers that speak them."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.settings import Endpoint
from diptych.runtime.remote.canary import send
from diptych.runtime.remote.drive import Driver
from diptych.runtime.remote.fleet import Fleet, Policy
from diptych.runtime.remote.halves import FOREIGN, Prefiller, Protocol, ask_sglang
from fake_engines import TICKET, Worker, running

BODY = {
    "model": "m",
    "prompt": "hello",
    "max_tokens": 9,
    "stream": True,
    "stream_options": {"include_usage": True},
    "min_tokens": 4,
}


def driven(test, prefills, decodes, protocol=Protocol.VLLM_NIXL, policy=Policy(), bootstrap=("10.0.0.1", 8998)):  # noqa: B008
    """`bootstrap` is an address, or none for the prefill worker's own, whose fake answers as such a server too."""

    async def run():
        async with running(*prefills, *decodes) as urls:
            places = [bootstrap or (urlsplit(url).hostname, urlsplit(url).port) for url in urls[: len(prefills)]]
            first = [Prefiller(url, *place) for url, place in zip(urls, places, strict=False)]
            fleet = Fleet(protocol, first, urls[len(prefills) :], policy)
            driver = Driver(fleet)
            try:
                await test(driver)
            finally:
                await driver.close()
            assert [peer.load for peer in (*fleet.first, *fleet.second)] == [0] * len(urls)

    asyncio.run(run())


async def text(answer) -> str:
    return b"".join([piece async for piece in answer]).decode()


def test_nixl_asks_prefill_for_one_token_and_gives_decode_the_ticket_verbatim():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(driver):
        assert "[DONE]" in await text(await driver.ask("/v1/completions", dict(BODY)))

    driven(test, [prefill], [decode])
    (first,), (second,) = prefill.asked, decode.asked
    assert (first["max_tokens"], first["stream"]) == (1, False)
    assert not {"stream_options", "min_tokens"} & first.keys()
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert second == {**BODY, "kv_transfer_params": TICKET}
    assert second["kv_transfer_params"]["remote_num_tokens"] == 2**62 + 1  # not through a float
    assert prefill.ids == decode.ids


def test_both_names_of_the_limit_are_cut_to_one():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(driver):
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 9}
        await text(await driver.ask("/v1/chat/completions", body))

    driven(test, [prefill], [decode])
    assert (prefill.asked[0]["max_tokens"], prefill.asked[0]["max_completion_tokens"]) == (1, 1)
    assert decode.asked[0]["max_completion_tokens"] == 9


def test_no_ticket_means_a_plain_request_and_is_counted():
    prefill, decode = Worker("prefill", ticket=None), Worker("decode")

    async def test(driver):
        await text(await driver.ask("/v1/completions", dict(BODY)))
        assert driver.fleet.counts["fallback", "no ticket"] == 1
        assert driver.fleet.counts["route", "local"] == 1

    driven(test, [prefill], [decode])
    assert "kv_transfer_params" not in decode.asked[0]


def test_a_failed_prefill_is_an_error_unless_the_policy_says_otherwise():
    async def fails(driver):
        with pytest.raises(Refusal, match="prefill worker failed") as refused:
            await driver.ask("/v1/completions", dict(BODY))
        assert (refused.value.status, refused.value.code) == (502, "prefill_failed")
        assert driver.fleet.counts["prefill failed", "answered 502"] == 1

    decode = Worker("decode")
    driven(fails, [Worker("prefill", fail=500)], [decode])
    assert decode.asked == []


def test_recompute_is_a_choice_and_is_counted():
    decode = Worker("decode")

    async def test(driver):
        assert "[DONE]" in await text(await driver.ask("/v1/completions", dict(BODY)))
        assert driver.fleet.counts["fallback", "answered 502"] == 1

    driven(test, [Worker("prefill", fail=500)], [decode], policy=Policy(recompute=True))
    assert "kv_transfer_params" not in decode.asked[0]


def test_another_prefill_worker_is_tried_when_the_policy_says_so():
    async def test(driver):
        driver.fleet.first[1].load = 5  # the broken one is asked first
        await text(await driver.ask("/v1/completions", dict(BODY)))
        driver.fleet.first[1].load = 0

    good = Worker("prefill")

    async def gone(driver):
        driver.fleet.first[0].endpoint = Endpoint("gone", "prefill", "http://127.0.0.1:9")
        await test(driver)
        assert not driver.fleet.first[0].up

    driven(gone, [Worker("prefill"), good], [Worker("decode")], policy=Policy(retries=1))
    assert len(good.asked) == 1


def test_what_the_client_did_wrong_is_told_as_such():
    async def test(driver):
        with pytest.raises(Refusal) as refused:
            await driver.ask("/v1/completions", dict(BODY))
        assert (refused.value.status, refused.value.kind) == (400, "invalid_request_error")

    driven(test, [Worker("prefill", fail=422)], [Worker("decode")])


def test_a_stream_that_breaks_ends_in_a_typed_error():
    async def test(driver):
        told = await text(await driver.ask("/v1/completions", dict(BODY)))
        last = json.loads(told.strip().rsplit("data: ", 1)[1])
        assert last["error"]["code"] == "decode_failed"
        assert "[DONE]" not in told
        assert not driver.fleet.second[0].up

    driven(test, [Worker("prefill")], [Worker("decode", fail="cut")])


@pytest.mark.parametrize("name", FOREIGN)
def test_a_client_cannot_choose_whose_kv_is_read(name):
    async def test(driver):
        with pytest.raises(Refusal) as refused:
            await driver.ask("/v1/completions", {**BODY, name: "x"})
        assert (refused.value.status, refused.value.param) == (400, name)

    driven(test, [Worker("prefill")], [Worker("decode")])


def test_sglang_meets_in_a_room_of_its_own():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(driver):
        for _ in range(2):
            assert "[DONE]" in await text(await driver.ask("/v1/completions", dict(BODY)))

    driven(test, [prefill], [decode], Protocol.SGLANG)
    rooms = [body["bootstrap_room"] for body in decode.asked]
    assert sorted(rooms) == sorted(body["bootstrap_room"] for body in prefill.asked)
    assert len(set(rooms)) == 2
    assert all(0 <= room < 2**63 for room in rooms)
    assert {(body["bootstrap_host"], body["bootstrap_port"]) for body in decode.asked} == {("10.0.0.1", 8998)}


@pytest.mark.parametrize("broken", ["prefill", "decode"])
def test_when_one_half_fails_the_other_is_aborted(broken):
    prefill, decode = (Worker(role, fail=500 if role == broken else "hang") for role in ("prefill", "decode"))

    async def test(driver):
        with pytest.raises(Refusal):
            await asyncio.wait_for(driver.ask("/v1/completions", dict(BODY)), 5)

    driven(test, [prefill], [decode], Protocol.SGLANG)
    assert decode.aborted == [decode.asked[0]["rid"]]
    assert prefill.aborted == [prefill.asked[0]["rid"]]


def test_mooncake_halves_share_a_transfer_from_the_engine_that_its_bootstrap_server_names():
    prefill, decode = Worker("prefill"), Worker("decode")

    async def test(driver):
        for _ in range(20):
            await text(await driver.ask("/v1/completions", dict(BODY)))

    driven(test, [prefill], [decode], Protocol.VLLM_MOONCAKE, bootstrap=None)
    halves = {
        kind: {body["kv_transfer_params"]["transfer_id"]: body["kv_transfer_params"] for body in worker.asked}
        for kind, worker in (("first", prefill), ("second", decode))
    }
    assert halves["first"].keys() == halves["second"].keys()
    assert len(halves["first"]) == 20
    engines = [body["kv_transfer_params"]["remote_engine_id"] for body in decode.asked]
    ranks = dict(zip(halves["first"], prefill.ranks, strict=True))
    assert set(engines) == {"e0", "e1"}
    assert all(ranks[id] == {"e0": None, "e1": "1"}[half["remote_engine_id"]] for id, half in halves["second"].items())


def test_a_mooncake_prefill_without_its_bootstrap_server_is_a_typed_error():
    async def test(driver):
        with pytest.raises(Refusal) as refused:
            await driver.ask("/v1/completions", dict(BODY))
        assert (refused.value.status, refused.value.code) == (502, "prefill_failed")

    driven(test, [Worker("prefill")], [Worker("decode")], Protocol.VLLM_MOONCAKE, bootstrap=("127.0.0.1", 9))


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"best_of": 2}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"use_beam_search": True}]
)
@pytest.mark.parametrize("protocol", Protocol)
def test_a_ticket_is_for_one_answer(protocol, more):
    """Stock vLLM frees a prompt's KV when the first of several answers has read it."""
    prefill = Worker("prefill")

    async def test(driver):
        with pytest.raises(Refusal) as refused:
            await driver.ask("/v1/completions", {**BODY, **more})
        assert (refused.value.status, refused.value.code, refused.value.param) == (
            400,
            "one_answer_each",
            next(iter(more)),
        )

    driven(test, [prefill], [Worker("decode")], protocol)
    assert prefill.asked == []


@pytest.mark.parametrize(("protocol", "engine"), [(Protocol.VLLM_NIXL, "vllm"), (Protocol.SGLANG, "sglang")])
def test_the_canary_sees_kv_cross(protocol, engine):
    async def test(driver):
        told = await send(driver, "m")
        assert told.crossed > 0
        assert told.is_right

    driven(test, [Worker("prefill", engine=engine)], [Worker("decode", engine=engine)], protocol)


def test_the_canary_sees_that_nothing_crosses():
    async def test(driver):
        assert (await send(driver, "m")).crossed == 0

    driven(test, [Worker("prefill", ticket=None)], [Worker("decode")])


def test_the_canary_sees_that_kv_means_something_else_on_the_other_side():
    decode = Worker("decode", garbles=True)

    async def test(driver):
        told = await send(driver, "m")
        assert (told.crossed, told.is_right, told.alone, told.through) == (100, False, " right", " wrong")

    driven(test, [Worker("prefill")], [decode])
    salts = [body.get("cache_salt") for body in decode.asked if not body.get("kv_transfer_params")]
    assert len(set(salts)) == len(salts) == 3  # never answered from blocks that came over
    assert None not in salts


def test_a_client_that_leaves_stops_the_worker():
    decode = Worker("decode", fail="slow")

    async def test(driver):
        answer = await driver.ask("/v1/completions", dict(BODY))
        async for _ in answer:
            break
        answer.close()
        await asyncio.wait_for(decode.left.wait(), 5)

    driven(test, [Worker("prefill")], [decode])


def test_rooms_are_never_repeated():
    rooms = {ask_sglang({}, Prefiller("", "h", 1))[0]["bootstrap_room"] for _ in range(1000)}
    assert len(rooms) == 1000
