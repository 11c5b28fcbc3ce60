"""What the gateway promises beside answers: who waits and how long, what each loss leads to, versions side by side, prices."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_workers import MODEL, FakeWorker, Fleet
from test_serving_requests import PROMPT, ask, ids, pace, run, stream

from diptych.runtime.gateway import link
from diptych.runtime.gateway.roster import BENCH_AFTER
from diptych.runtime.gateway.settings import Limits, OnLoss
from diptych.runtime.messages import Hello


@pytest.mark.parametrize(
    ("policy", "status", "halves"),
    [
        (OnLoss.FAIL, 503, ["decode"]),
        (OnLoss.OTHER, 200, ["decode", "decode"]),
        (OnLoss.RECOMPUTE, 200, ["decode", "whole"]),
        (OnLoss.COLOCATE, 200, ["decode", "decode"]),
    ],
)
def test_the_policy_says_what_becomes_of_a_lost_decode(
    tmp_path: Path, policy: OnLoss, status: int, halves: list[str]
) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        for worker in made.workers.values():
            if worker.role == "decode":
                worker.fails = [("out of memory", True)]
                break
        code, found = await ask(made, session, max_tokens=5)
        assert code == status
        sent = [each.half for name, worker in made.workers.items() if "decode" in name for each in worker.submitted]
        assert sent == halves
        if status == 200:
            assert found["choices"][0]["token_ids"] == MODEL.expected(PROMPT, 5)
        async with session.get(made.url + "/metrics") as response:
            assert 'diptych_fallback_total{reason="out of memory"} 1.0' in await response.text()

    run(test, tmp_path, roles="prefill decode decode", decode_loss=policy)


@pytest.mark.parametrize(("failing", "other"), [("prefill0", "decode0"), ("decode0", "prefill0")])
def test_the_twin_of_a_half_that_fails_is_stopped(tmp_path: Path, failing: str, other: str) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        made.workers[failing].fails = [("broken", True)]
        assert (await ask(made, session, max_tokens=5))[0] == 200
        await made.quiet()
        assert made.workers[other].submitted[0].request in made.workers[other].cancelled

    run(test, tmp_path, tune=pace(first=0.05))


def test_those_who_wait_for_a_worker_are_few_and_the_others_hear_it_at_once(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        await made.workers["decode0"].stop()
        while made.service.roster["decode0"].up:
            await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(ask(made, session, max_tokens=5)) for _ in range(2)]
        while made.service.ledger()["held"] < 2:
            await asyncio.sleep(0.01)
        async with session.get(made.url + "/metrics") as response:
            assert "diptych_requests_held 2.0" in await response.text()
        async with session.post(made.url + "/v1/completions", json={"model": "toy", "prompt": PROMPT}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "no_worker")
            assert int(response.headers["retry-after"]) >= 1
        await made.workers["decode0"].start()
        for task in waiting:
            assert (await task)[1]["choices"][0]["token_ids"] == MODEL.expected(PROMPT, 5)

    run(test, tmp_path, roles="decode", limits=Limits(held=2))


def test_ready_is_whether_a_request_would_be_served(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        async def ready() -> int:
            async with session.get(made.url + "/ready") as response:
                return response.status

        assert await ready() == 200
        await made.workers["prefill0"].stop()
        await asyncio.sleep(0.05)
        assert await ready() == 200, "decode does it alone"
        await made.workers["decode0"].stop()
        while made.service.roster["decode0"].up:
            await asyncio.sleep(0.01)
        assert await ready() == 503

    run(test, tmp_path)


def test_a_worker_that_fails_again_and_again_is_passed_over_for_a_while(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        bad = made.workers["decode0"]
        bad.fails = [("broken", True)] * BENCH_AFTER
        while bad.fails:
            assert (await ask(made, session, max_tokens=3))[0] == 200
        before = len(bad.submitted)
        await asyncio.gather(*(ask(made, session, max_tokens=3) for _ in range(6)))
        assert len(bad.submitted) == before
        made.service.roster["decode0"].benched_until = 0.0
        await asyncio.gather(*(ask(made, session, max_tokens=3) for _ in range(6)))
        assert len(bad.submitted) > before

    run(test, tmp_path, roles="decode decode", tune=pace(first=0.02))


def test_what_ends_an_answer_is_said_to_its_worker(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        how = {"ignore_eos": True, "stop_token_ids": [7], "min_tokens": 2, "logit_bias": {"9": -5}, "top_k": 3}
        await ask(made, session, max_tokens=4, **how)
        params = made.workers["decode0"].submitted[-1].params
        assert (params.ignore_eos, params.stop_tokens, params.min_tokens) == (True, (7,), 2)
        assert (params.bias, params.top_k, params.max_tokens) == (((9, -5.0),), 3, 4)

    run(test, tmp_path)


def test_both_names_of_the_longest_answer(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
        for said, count in (({"max_tokens": 3}, 3), ({"max_completion_tokens": 4}, 4)):
            _, found = await ask(made, session, "/v1/chat/completions", **chat, **said)
            assert found["usage"]["completion_tokens"] == count
        _, found = await ask(made, session, "/v1/chat/completions", **chat, max_tokens=9, max_completion_tokens=2)
        assert found["usage"]["completion_tokens"] == 2, "the newer name counts"

    run(test, tmp_path)


def test_what_a_million_tokens_cost_now(tmp_path: Path) -> None:
    """Two workers at a dollar an hour, and tokens that came: a price that follows from both."""

    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        until = time.monotonic() + 10
        while not made.service.history.cost():
            assert time.monotonic() < until
            await ask(made, session, max_tokens=20)
        points = list(made.service.history.points)
        rate = sum(each["tokens_per_second"] for each in points) / len(points)
        assert made.service.history.cost() == pytest.approx(2.0 / 3600 / rate * 1e6)
        async with session.get(made.url + "/metrics") as response:
            assert "diptych_cost_per_million_tokens_usd " in await response.text()

    run(test, tmp_path)


def test_what_was_cached_is_told_of_the_shortest_answers_too(tmp_path: Path) -> None:
    """One token ends an answer before its halves have ended."""

    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        for count in (1, 2, 9):
            _, found = await ask(made, session, prompt=[1, 2, 3, 4], max_tokens=count)
            assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        async with session.get(made.url + "/metrics") as response:
            assert 'vllm:prompt_tokens_cached_total{model_name="toy"} 6.0' in await response.text()

    run(test, tmp_path)


def test_a_reader_of_many_answers_is_not_slow_for_their_number(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        events = await stream(made, session, prompt=PROMPT, max_tokens=16, n=16)
        assert [ids(events, choice) for choice in range(16)] == [MODEL.expected(PROMPT, 16)] * 16

    run(test, tmp_path, tune=pace(first=0.02, at_once=16), limits=Limits(unread_tokens=32))


def test_a_gateway_that_must_stop_ends_its_streams_with_an_error(tmp_path: Path) -> None:
    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        streamed = asyncio.create_task(stream(made, session, prompt=PROMPT, max_tokens=500))
        whole = asyncio.create_task(ask(made, session, max_tokens=500))
        while made.service.history.told < 8:
            await asyncio.sleep(0.01)
        await made.service.drain(0.1)
        events, (status, found) = await streamed, await whole
        assert ids(events) == MODEL.expected(PROMPT, len(ids(events)))
        assert events[-1]["error"]["code"] == found["error"]["code"] == "shutting_down"
        assert status == 503

    run(test, tmp_path, tune=pace(each=0.02))


@pytest.mark.parametrize(
    ("theirs", "agreed"), [((1, 1), 1), ((1, 2), 2), ((2, 2), 2), ((2, 3), 2), ((1, 9), 2), ((3, 3), None)]
)
def test_a_version_and_the_one_before_it_speak_with_each_other(
    monkeypatch: pytest.MonkeyPatch, theirs: tuple[int, int], agreed: int | None
) -> None:
    monkeypatch.setattr(link, "OLDEST", 1)
    monkeypatch.setattr(link, "NEWEST", 2)
    assert link.agreed_version(Hello("w", "decode", 1, *theirs)) == agreed


def test_workers_of_three_versions_in_one_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N − 1, N, and one too new: the first two serve together, the third is turned away with its reason."""
    monkeypatch.setattr(link, "NEWEST", 2)

    def tune(workers: dict[str, FakeWorker]) -> None:
        workers["decode0"].newest = 1
        workers["decode1"].oldest, workers["decode1"].newest = 1, 2
        workers["decode2"].oldest, workers["decode2"].newest = 3, 3

    async def test(made: Fleet, session: aiohttp.ClientSession) -> None:
        found = await asyncio.gather(*(stream(made, session, prompt=[seed, 1], max_tokens=6) for seed in range(8)))
        assert [ids(each) for each in found] == [MODEL.expected([seed, 1], 6) for seed in range(8)]
        assert [len(made.workers[f"decode{place}"].submitted) for place in range(3)] == [4, 4, 0]
        assert "versions 3 to 3" in made.service.roster["decode2"].why

    run(test, tmp_path, roles="prefill decode decode decode", tune=tune)
