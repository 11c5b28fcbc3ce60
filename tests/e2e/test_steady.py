"""Load held for minutes, and more load than there is room for."""

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from diptych.runtime.gateway.settings import Objectives
from diptych.runtime.launch.fleet import Pool
from diptych.runtime.worker.config import Toy
from fleets import Load, Stream, running, stream, toy_fleet

MIB = 1 << 20
WARM, HELD = 120, 120
"""Seconds of load: until what is kept for a while is full (KV blocks, two minutes of latencies), then while memory is watched."""
REMEMBERED = 300
"""Bytes in which a worker remembers that it has had a request, so that what is said late is not done: 65,536 of them."""
LEFT = 0.5
"""MiB a minute that a process may grow beside: the allocator's."""


def resident(living):
    """Bytes of each process."""
    return {name: psutil.Process(living.pid(name)).memory_info().rss for name in living.supervisor.running}


def slope(points):
    """Least squares: how much the second grows per the first."""
    x, y = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_256_streams_of_20_tokens_a_second_for_minutes_without_an_error_and_memory_is_flat():
    async def go():
        fleet = toy_fleet(step=0.005, blocks=2048, store=0)
        async with running(fleet, Path("/tmp")) as living:
            load = Load(living, count=256, wanted=100)
            await asyncio.sleep(WARM)
            begun, samples, before = time.monotonic(), [], len(load.streams)
            while (age := time.monotonic() - begun) < HELD:
                samples.append((age / 60, resident(living)))
                await asyncio.sleep(5)
            asked = (len(load.streams) - before) / (age / 60)
            await load.end(120)
            await living.settled()
            return load.streams, samples, asked

    streams, samples, asked = asyncio.run(go())
    wrong = [why for each in streams if (why := each.wrong())]
    failed = [each.error or each.cut for each in streams if not each.served]
    rate = [(len(each.times) - 1) / (each.times[-1] - each.times[0]) for each in streams if each.served]
    growth = {name: slope([(age, found[name] / MIB) for age, found in samples]) for name in samples[0][1]}
    median = sorted(rate)[len(rate) // 2]
    print(f"{len(streams)} streams, {sum(len(each.tokens) for each in streams):,} tokens, {median:.1f} tok/s at the median, "
          f"{asked:.0f} requests a minute, MiB/min {({name: round(each, 2) for name, each in growth.items()})}, "
          f"MiB at the end {({name: round(each / MIB) for name, each in samples[-1][1].items()})}")  # fmt: skip
    assert not wrong
    assert not failed
    assert max(growth.values()) <= LEFT + asked * REMEMBERED / MIB, growth


# --- overload -----------------------------------------------------------------------------------------------------------

PROMPT, ANSWER, TTFT = 100, 20, 1.0
"""Tokens of both, and within how many seconds an answer must begin to be good."""


async def offered(living, rate, seconds):
    """Open loop: requests come at a rate, whatever becomes of them."""
    tasks, begun, number = [], time.monotonic(), 0
    while (now := time.monotonic() - begun) < seconds:
        while number < now * rate:
            prompt = [number % 251, number // 251 % 251, int(rate) % 251, *range(PROMPT - 3)]
            said = Stream(prompt, ANSWER)
            tasks.append((said, asyncio.create_task(stream(living.session, living.url, prompt, ANSWER, said))))
            number += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*(task for _, task in tasks))
    return [said for said, _ in tasks]


def goodput(streams, seconds):
    """Answers a second that began in time and were right to the end."""
    return sum(each.served and each.times[0] - each.began <= TTFT for each in streams) / seconds


@pytest.mark.long
@pytest.mark.timeout(600)
def test_five_times_the_load_keeps_goodput_and_the_rest_is_refused_politely():
    """One prompt after another at 0.5 ms a token: some 19 a second saturate prefill, and more would only wait."""

    async def go():
        engine = Toy(blocks=1024, prefill_token_s=0.0005, decode_step_s=0.02)
        pools = Pool("prefill", 1, engine), Pool("decode", 1, engine)
        fleet = toy_fleet(pools=pools, store=0, objectives=Objectives(ttft=0.8 * TTFT))
        async with running(fleet, Path("/tmp")) as living:
            await offered(living, 8, 5)
            best, everything = 0.0, []
            for rate in (12, 16, 20, 24):
                some = await offered(living, rate, 12)
                print(
                    f"{rate}/s offered: {goodput(some, 12):.1f}/s good, {sum(each.served for each in some)} of {len(some)}"
                )
                if goodput(some, 12) > best:
                    best, at = goodput(some, 12), rate
                everything += some
            much = await offered(living, 5 * at, 30)
            await living.settled()
            return best, at, everything, much

    best, at, everything, much = asyncio.run(go())
    kept = goodput(much, 30)
    refused = [each for each in much if each.status in (429, 503)]
    took = sorted(each.ended - each.began for each in refused)
    waits = sorted(each.times[0] - each.began for each in much if each.served)
    print(f"best {best:.1f}/s at {at}/s; of {5 * at}/s {kept:.1f}/s good, {len(refused)} of {len(much)} refused, a refusal in "
          f"{took[len(took) // 2] * 1e3:.0f} ms (p99 {took[int(len(took) * 0.99)] * 1e3:.0f}), TTFT of the others "
          f"p50 {waits[len(waits) // 2]:.2f} s, p99 {waits[int(len(waits) * 0.99)]:.2f} s")  # fmt: skip
    assert best < 23, "the best is where more load brings no more"
    assert kept >= 0.9 * best
    assert not [why for each in everything + much if (why := each.wrong())]
    assert not [each for each in everything + much if each.cut]
    assert {each.error for each in much if each.error} <= {"429 overloaded", "429 too_many_requests", "503 no_worker"}
    assert all(int(each.after) >= 1 for each in refused)
    assert took[int(len(took) * 0.99)] < 1.0
    assert waits[int(len(waits) * 0.99)] <= 2 * TTFT
