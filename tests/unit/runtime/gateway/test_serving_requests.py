"""Requests over fake workers: every token as the toy model says, whatever happens on the way, and nothing left afterwards."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_workers import MODEL, FakeWorker, Fleet, fleet, pick_prompt

from diptych.runtime.engines.toy import ToyModel
from diptych.runtime.gateway.settings import Limits, Objectives, OnLoss
from diptych.runtime.sampling import Sampling

PROMPT = [1, 2, 3]


async def ask(
    made: Fleet, session: aiohttp.ClientSession, path: str = "/v1/completions", **body: Any
) -> tuple[int, Any]:
    said = {
        "model": "toy",
        "temperature": 0,
        "return_token_ids": True,
        **({} if "messages" in body else {"prompt": PROMPT}),
    } | body
    async with session.post(made.url + path, json=said) as response:
        return response.status, await response.json()


async def stream(made: Fleet, session: aiohttp.ClientSession, path: str = "/v1/completions", **body: Any) -> list[Any]:
    """The events of a stream; `[DONE]` as a string."""
    said = {"model": "toy", "temperature": 0, "stream": True, "return_token_ids": True} | body
    found: list[Any] = []
    async with session.post(made.url + path, json=said) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                found.append("[DONE]" if data == b"[DONE]" else json.loads(data))
    return found


def ids(events: list[Any], choice: int = 0) -> list[int]:
    return [
        token
        for event in events
        if event != "[DONE]"
        for each in event.get("choices", [])
        if each["index"] == choice
        for token in each.get("token_ids", [])
    ]


def text_of(events: list[Any]) -> str:
    return "".join(each["text"] for event in events if event != "[DONE]" for each in event["choices"])


def run(test: Any, tmp_path: Path, **how: Any) -> None:
    async def body() -> None:
        async with fleet(tmp_path, **how) as made, aiohttp.ClientSession() as session:
            await test(made, session)
            await made.quiet()

    asyncio.run(body())


def pace(**changes: Any) -> Any:
    def tune(workers: dict[str, FakeWorker]) -> None:
        for worker in workers.values():
            for name, value in changes.items():
                setattr(worker.pace, name, value)

    return tune


@pytest.mark.parametrize("roles", ["prefill decode", "prefill prefill decode decode", "colocated", "decode", "prefill"])
def test_answers_are_the_models_whatever_the_workers(tmp_path: Path, roles: str) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        for seed, size in enumerate((1, 5, 40, 200)):
            prompt = pick_prompt(seed, size)
            events = await stream(made, session, prompt=prompt, max_tokens=20)
            assert ids(events) == MODEL.expected(prompt, 20)
            assert events[-1] == "[DONE]"
            status, found = await ask(made, session, prompt=prompt, max_tokens=20)
            assert (status, found["choices"][0]["token_ids"]) == (200, MODEL.expected(prompt, 20))

    run(test, tmp_path, roles=roles)


def test_decode_is_told_before_prefill_and_each_of_the_other(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        await ask(made, session, max_tokens=3)
        (half,), (answer,) = made.workers["prefill0"].submitted, made.workers["decode0"].submitted
        assert (half.half, half.peer, half.peer_address) == (
            "prefill",
            "decode0",
            made.workers["decode0"].address + ".peer",
        )
        assert (answer.half, answer.peer, answer.epoch) == ("decode", "prefill0", half.epoch)
        assert half.request == answer.request

    run(test, tmp_path)


def test_usage_counts_prompts_once_and_answers_each(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        _, found = await ask(made, session, prompt=[[1, 2], [3, 4, 5]], n=2, max_tokens=4)
        assert [each["index"] for each in found["choices"]] == [0, 1, 2, 3]
        assert found["usage"]["prompt_tokens"] == 5
        assert found["usage"]["completion_tokens"] == 16
        events = await stream(made, session, prompt=[1, 2], max_tokens=4, stream_options={"include_usage": True})
        assert events[-2]["choices"] == []
        assert events[-2]["usage"] == {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 1},
        }
        assert all(event["usage"] is None for event in events[:-2])

    run(test, tmp_path)


def test_answers_of_one_prompt_draw_apart_and_a_seed_repeats_them(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        how = {"n": 3, "temperature": 1, "seed": (1 << 63) - 1, "max_tokens": 8}
        _, one = await ask(made, session, **how)
        _, two = await ask(made, session, **how)
        said = [each["token_ids"] for each in one["choices"]]
        assert said == [each["token_ids"] for each in two["choices"]]
        assert len({tuple(each) for each in said}) == 3
        first = MODEL.expected(PROMPT, 8, Sampling(1.0, seed=(1 << 63) - 1))
        assert said[0] == first

    run(test, tmp_path)


def test_an_end_of_text_is_a_stop_and_is_not_text(tmp_path: Path) -> None:
    model = ToyModel(eos_after=4)

    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        _, found = await ask(made, session, max_tokens=9)
        (choice,) = found["choices"]
        assert (choice["finish_reason"], choice["token_ids"][-1], len(choice["token_ids"])) == ("stop", model.eos, 4)
        assert choice["text"] == bytes(choice["token_ids"][:3]).decode("utf-8", "replace")
        _, found = await ask(made, session, max_tokens=9, min_tokens=6)
        assert len(found["choices"][0]["token_ids"]) == 7
        assert made.workers["decode0"].submitted[-1].params.min_tokens == 6

    run(test, tmp_path, model=model)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_stop_string_ends_both_halves_and_is_not_told(tmp_path: Path, at_once: int) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        whole = bytes(MODEL.expected(PROMPT, 400)).decode("utf-8", "replace")
        stop = whole[40:44]
        cut = whole[: whole.index(stop)]
        events = await stream(made, session, prompt=PROMPT, max_tokens=400, stop=[stop, "never said"])
        assert text_of(events) == cut
        assert events[-2]["choices"][0]["finish_reason"] == "stop"
        _, found = await ask(made, session, max_tokens=400, stop=stop)
        assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == (cut, "stop")
        _, kept = await ask(made, session, max_tokens=400, stop=stop, include_stop_str_in_output=True)
        assert kept["choices"][0]["text"] == cut + stop
        await made.quiet()
        assert len(made.workers["decode0"].cancelled) == 3

    run(test, tmp_path, tune=pace(each=0.002, at_once=at_once))


def test_echo_tells_the_prompt_with_its_log_probabilities(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        _, found = await ask(made, session, prompt="abc", max_tokens=2, echo=True, logprobs=2)
        told = found["choices"][0]["logprobs"]
        assert told["tokens"][:3] == ["a", "b", "c"]
        assert told["token_logprobs"][0] is None
        assert told["top_logprobs"][0] is None
        assert told["token_logprobs"][1] == MODEL.told(ord("b"), 2).logprob
        assert len(told["tokens"]) == len(told["text_offset"]) == 5
        assert found["choices"][0]["text"].startswith("abc")
        assert made.workers["decode0"].submitted[-1].half == "whole"
        _, alone = await ask(made, session, prompt="abc", max_tokens=0, echo=True, logprobs=1)
        assert alone["choices"][0]["text"] == "abc"
        assert alone["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]
        assert alone["usage"]["completion_tokens"] == 0
        events = await stream(made, session, prompt="abc", max_tokens=2, echo=True, logprobs=2)
        assert events[0]["choices"][0]["text"] == "abc"
        assert events[0]["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]

    run(test, tmp_path)


def test_chat_log_probabilities_name_bytes(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        body = {"messages": [{"role": "user", "content": "hé"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
        _, found = await ask(made, session, "/v1/chat/completions", **body)
        entries = found["choices"][0]["logprobs"]["content"]
        prompt = list("user: hé\nassistant: ".encode())
        assert [byte for entry in entries for byte in entry["bytes"]] == MODEL.expected(prompt, 3)
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)

    run(test, tmp_path)


# --- losses -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["prefill0", "decode0"])
@pytest.mark.parametrize("moment", ["before the first token", "after some"])
def test_a_worker_that_dies_costs_no_token(tmp_path: Path, victim: str, moment: str) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        early = moment == "before the first token"
        tasks = [
            asyncio.create_task(stream(made, session, prompt=pick_prompt(seed, 20), max_tokens=30)) for seed in range(8)
        ]
        until = time.monotonic() + 10
        while made.service.ledger()["attempts"] < 8 or (not early and made.service.history.told < 12):
            assert time.monotonic() < until, made.service.ledger()
            await asyncio.sleep(0.005)
        await made.workers[victim].stop()
        for seed, task in enumerate(tasks):
            assert ids(await task) == MODEL.expected(pick_prompt(seed, 20), 30)
        (lost,) = [each for each in made.service.roster if each.name == victim]
        assert not lost.up

    run(test, tmp_path, roles="prefill prefill decode decode", tune=pace(first=0.4, each=0.02))


def test_a_silent_worker_is_lost_after_three_heartbeats(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        task = asyncio.create_task(ask(made, session, max_tokens=60))
        await asyncio.sleep(0.1)
        made.workers["decode0"].beats = False
        status, found = await task
        assert (status, found["choices"][0]["token_ids"]) == (200, MODEL.expected(PROMPT, 60))
        assert made.service.history.fallbacks["worker lost"] == 1

    run(test, tmp_path, roles="prefill decode decode", heartbeat_seconds=0.1, tune=pace(each=0.02))


def test_with_one_side_gone_the_other_serves_alone(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        await made.workers["prefill0"].stop()
        status, found = await ask(made, session, max_tokens=5)
        assert (status, found["choices"][0]["token_ids"]) == (200, MODEL.expected(PROMPT, 5))
        assert ("on decode", "no prefill worker that fits") in made.service.history.routes
        await made.workers["decode0"].stop()
        await made.workers["prefill0"].start()
        while not made.service.roster["prefill0"].up:
            await asyncio.sleep(0.02)
        status, found = await ask(made, session, max_tokens=5)
        assert (status, found["choices"][0]["token_ids"]) == (200, MODEL.expected(PROMPT, 5))
        assert ("on prefill", "no decode worker") in made.service.history.routes

    run(test, tmp_path)


def test_a_request_waits_for_a_worker_and_gives_up_in_time(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        for worker in made.workers.values():
            await worker.stop()
        status, found = await ask(made, session, max_tokens=5)
        assert (status, found["error"]["code"]) == (503, "no_worker")
        task = asyncio.create_task(ask(made, session, max_tokens=5))
        await asyncio.sleep(0.1)
        for worker in made.workers.values():
            await worker.start()
        status, found = await task
        assert (status, found["choices"][0]["token_ids"]) == (200, MODEL.expected(PROMPT, 5))

    run(test, tmp_path, limits=Limits(hold_seconds=2.5))


@pytest.mark.parametrize(
    ("policy", "status", "halves"),
    [
        (OnLoss.FAIL, 503, []),
        (OnLoss.OTHER, 200, ["decode"]),
        (OnLoss.RECOMPUTE, 200, ["whole"]),
        (OnLoss.COLOCATE, 200, ["decode"]),
    ],
)
def test_the_policy_says_what_becomes_of_a_lost_prefill(
    tmp_path: Path, policy: OnLoss, status: int, halves: list[str]
) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        made.workers["prefill0"].fails = [("out of memory", True)]
        found = await ask(made, session, max_tokens=5)
        assert found[0] == status
        assert [each.half for each in made.workers["decode0"].submitted[1:]] == halves
        assert made.service.history.fallbacks["out of memory"] == 1
        assert ("prefill1" in {name for name, each in made.workers.items() if each.submitted}) == (halves == ["decode"])

    run(test, tmp_path, roles="prefill prefill decode", prefill_loss=policy)


def test_what_no_worker_can_do_is_told_at_once(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        made.workers["prefill0"].fails = [("too large", False)]
        status, found = await ask(made, session, max_tokens=5)
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")

    run(test, tmp_path)


def test_a_pair_that_refuses_each_others_kv_is_not_tried_again(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        made.workers["decode0"].fails = [("incompatible", False)]
        for _ in range(3):
            status, found = await ask(made, session, max_tokens=5)
            assert (status, found["choices"][0]["token_ids"]) == (200, MODEL.expected(PROMPT, 5))
        assert [each.half for each in made.workers["decode0"].submitted] == ["decode", "whole", "whole", "whole"]
        assert made.service.roster.pairs_refused
        await made.workers["decode0"].stop()
        made.workers["decode0"].life += 1
        await made.workers["decode0"].start()
        while not (made.service.roster["decode0"].restarts and made.service.roster["decode0"].up):
            await asyncio.sleep(0.02)
        await ask(made, session, max_tokens=5)
        assert made.workers["decode0"].submitted[-1].half == "decode"

    run(test, tmp_path)


def test_attempts_end(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        for worker in made.workers.values():
            worker.fails = [("broken", True)] * 50
        status, found = await ask(made, session, max_tokens=5)
        assert (status, found["error"]["code"]) == (503, "attempts_exhausted")
        assert sum(len(each.submitted) for each in made.workers.values()) <= 2 * 4

    run(test, tmp_path)


def test_retries_do_not_multiply_the_load(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        made.service.dispatch.budget.floor = 1.0
        for worker in made.workers.values():
            worker.fails = [("broken", True)] * 10_000
        found = await asyncio.gather(*(ask(made, session, max_tokens=5) for _ in range(60)))
        assert {status for status, _ in found} == {503}
        attempts = len(made.workers["decode0"].submitted)
        assert attempts <= 60 * 1.2 + 1.0 * 11

    run(test, tmp_path, roles="decode")


# --- clients that leave ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("after", [0.0, 0.05, 0.25])
def test_a_client_that_leaves_stops_both_halves(tmp_path: Path, streams: bool, after: float) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        body = {"prompt": pick_prompt(1, 50), "max_tokens": 1000, "n": 2}
        task = asyncio.create_task((stream if streams else ask)(made, session, **body))
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.quiet()
        counted = made.service.history.counts
        assert counted["finished"] == 0
        assert counted["cancelled"] in ((0, 2) if after == 0 else (2,))

    run(test, tmp_path, tune=pace(first=0.15, each=0.01))


def test_a_reader_that_sleeps_is_given_up_and_others_go_on(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port, limit=1024)
        body = json.dumps(
            {"model": "toy", "prompt": [5], "max_tokens": 20_000, "stream": True, "logprobs": 20}
        ).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        other = asyncio.create_task(stream(made, session, prompt=[7], max_tokens=50))
        until = time.monotonic() + 40
        while made.service.history.counts["cancelled"] == 0:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        assert ids(await other) == MODEL.expected([7], 50)
        while made.workers["decode0"].running:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        writer.transport.abort()
        del reader

    def tune(workers: dict[str, FakeWorker]) -> None:
        for worker in workers.values():
            worker.max_context, worker.pace.at_once, worker.pace.each = 1 << 20, 16, 0.001

    run(test, tmp_path, tune=tune, limits=Limits(unread_tokens=64, write_seconds=2.0))


# --- many ---------------------------------------------------------------------------------------------------------------


def test_too_many_requests_are_refused_politely(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        found = await asyncio.gather(*(ask(made, session, max_tokens=3) for _ in range(40)))
        statuses = [status for status, _ in found]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 8
        async with session.get(made.url + "/metrics") as response:
            assert 'diptych_refused_total{reason="too_many_requests"}' in await response.text()

    run(test, tmp_path, tune=pace(first=0.1), limits=Limits(requests=8))


def test_a_refusal_says_when_to_come_back(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        task = asyncio.create_task(ask(made, session, max_tokens=3))
        await asyncio.sleep(0.05)
        async with session.post(made.url + "/v1/completions", json={"model": "toy", "prompt": [1]}) as response:
            assert response.status == 429
            assert int(response.headers["retry-after"]) >= 1
        await task

    run(test, tmp_path, tune=pace(first=0.2), limits=Limits(requests=1))


def test_overload_serves_as_much_as_it_can_within_the_objective(tmp_path: Path) -> None:
    """Five times what a worker of 4 slots can do; early rejection keeps those that are admitted on time."""

    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        async def one(seed: int) -> tuple[int, float]:
            began = time.monotonic()
            status, _ = await ask(made, session, prompt=pick_prompt(seed, 40), max_tokens=1)
            return status, time.monotonic() - began

        for seed in range(6):
            await one(1000 + seed)  # what a token costs is learned
        tasks = []
        for seed in range(300):
            tasks.append(asyncio.create_task(one(seed)))
            await asyncio.sleep(0.005)  # 200/s against 4 slots × 10/s
        found = await asyncio.gather(*tasks)
        served = [took for status, took in found if status == 200]
        assert {status for status, _ in found} == {200, 429}
        assert len(served) >= 0.6 * 40 * 1.5
        assert sorted(served)[int(len(served) * 0.9)] < 2.0

    def tune(workers: dict[str, FakeWorker]) -> None:
        for worker in workers.values():
            worker.pace.first, worker.slots = 0.1, asyncio.Semaphore(4)

    run(test, tmp_path, roles="colocated", tune=tune, objectives=Objectives(ttft=1.0))


# --- routing ------------------------------------------------------------------------------------------------------------


def test_prompts_go_where_their_prefix_was_sent(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        common = pick_prompt(1, 256)
        for turn in range(6):
            await ask(made, session, prompt=common + pick_prompt(100 + turn, 8), max_tokens=2)
        sent = [len(made.workers[f"prefill{place}"].submitted) for place in range(3)]
        assert sorted(sent) == [0, 0, 6]

    run(test, tmp_path, roles="prefill prefill prefill decode")


def test_short_prompts_stay_whole(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        await ask(made, session, prompt=pick_prompt(1, 63), max_tokens=2)
        await ask(made, session, prompt=pick_prompt(2, 64), max_tokens=2)
        assert [each.half for each in made.workers["decode0"].submitted] == ["whole", "decode"]
        assert ("on decode", "short prompt") in made.service.history.routes

    run(test, tmp_path, short_prompt=64)


def test_load_is_spread(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(ask(made, session, prompt=pick_prompt(seed, 20), max_tokens=5) for seed in range(20)))
        assert [len(made.workers[f"decode{place}"].submitted) for place in range(2)] == [10, 10]

    run(test, tmp_path, roles="prefill decode decode", tune=pace(first=0.05, each=0.01))


def test_a_draining_worker_gets_nothing_new_and_finishes(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        task = asyncio.create_task(ask(made, session, max_tokens=40))
        await asyncio.sleep(0.1)
        busy = next(each for each in made.workers.values() if each.role == "decode" and each.submitted)
        headers = {"authorization": "Bearer operator"}
        async with session.post(f"{made.url}/admin/drain?worker={busy.name}", headers=headers) as response:
            assert response.status == 200
        await asyncio.sleep(0.05)
        assert busy.draining
        await asyncio.gather(*(ask(made, session, max_tokens=2) for _ in range(4)))
        assert (await task)[1]["choices"][0]["token_ids"] == MODEL.expected(PROMPT, 40)
        assert len(busy.submitted) == 1

    run(test, tmp_path, roles="prefill decode decode", tune=pace(each=0.01))


def test_a_draining_gateway_finishes_and_takes_nothing(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        task = asyncio.create_task(ask(made, session, max_tokens=20))
        await asyncio.sleep(0.1)
        drained = asyncio.create_task(made.service.drain(5))
        await asyncio.sleep(0.05)
        assert (await ask(made, session))[1]["error"]["code"] == "draining"
        async with session.get(made.url + "/ready") as response:
            assert response.status == 503
        assert (await task)[0] == 200
        await drained

    run(test, tmp_path, tune=pace(each=0.01))


# --- workers as strangers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"oldest": 9, "newest": 9}, "versions 9 to 9"),
        ({"hello_name": "impostor"}, "impostor"),
        ({"model": ToyModel(vocabulary=99)}, "vocabulary of 99"),
    ],
)
def test_a_worker_that_does_not_belong_is_turned_away_with_a_reason(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    def tune(workers: dict[str, FakeWorker]) -> None:
        for name, value in changes.items():
            setattr(workers["decode1"], name, value)

    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        until = time.monotonic() + 5
        while made.service.roster["decode1"].condition != "refused":
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
        assert why in made.service.roster["decode1"].why
        assert (await ask(made, session, max_tokens=3))[0] == 200
        assert not made.workers["decode1"].submitted

    run(test, tmp_path, roles="prefill decode decode", tune=tune)


def test_a_worker_of_the_next_version_is_taken_while_ours_is_among_its(tmp_path: Path) -> None:
    def tune(workers: dict[str, FakeWorker]) -> None:
        workers["decode0"].newest = 2

    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        assert (await ask(made, session, max_tokens=3))[0] == 200

    run(test, tmp_path, tune=tune)


def test_health_is_progress_not_life(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        made.workers["decode0"].advances = False
        await asyncio.sleep(0.5)
        async with session.get(made.url + "/health") as response:
            assert response.status == 200, "idle is healthy"
        task = asyncio.create_task(ask(made, session, max_tokens=100))
        await asyncio.sleep(0.6)
        async with session.get(made.url + "/health") as response:
            assert response.status == 503
            assert (await response.json())["stuck"] == ["decode0"]
        made.workers["decode0"].advances = True
        await asyncio.sleep(0.2)
        async with session.get(made.url + "/health") as response:
            assert response.status == 200
        await task

    run(test, tmp_path, stuck_seconds=0.3, tune=pace(each=0.02))


def test_what_is_counted(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        prompt = pick_prompt(1, 100)
        await ask(made, session, prompt=prompt, max_tokens=7)
        async with session.get(made.url + "/metrics") as response:
            text = await response.text()
        for line in (
            'vllm:prompt_tokens_total{model_name="toy"} 100.0',
            'vllm:generation_tokens_total{model_name="toy"} 7.0',
            'vllm:request_success_total{finished_reason="length",model_name="toy"} 1.0',
            'vllm:time_to_first_token_seconds_count{model_name="toy"} 1.0',
            'vllm:inter_token_latency_seconds_count{model_name="toy"} 6.0',
            'diptych_route_total{path="apart",reason="disaggregated"} 1.0',
            'diptych_kv_transfer_bytes_total{source="prefill0",target="decode0"} 100000.0',
            'diptych_kv_conversions_total{conversion="int8 to bf16"} 1.0',
            'diptych_worker_up{condition="up",role="prefill",worker="prefill0"} 1.0',
            'diptych_queue_depth{role="decode",stage="queued",worker="decode0"} 0.0',
            "diptych_requests_open 0.0",
        ):
            assert line in text, line

    run(test, tmp_path)


def test_expected_is_what_the_workers_say() -> None:
    """The check itself: another prompt gives other tokens."""
    assert MODEL.expected([1, 2, 3], 8) != MODEL.expected([1, 2, 4], 8)
