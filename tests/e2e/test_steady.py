"""Load held for minutes, and more load than there is room for."""

import asyncio
import time
from pathlib import Path

import psutil
import pytest
from fleets import Load, Stream, running, stream, toy_fleet

MIB = 1 << 20


def resident(living):
    """Bytes of each process."""
    return {name: psutil.Process(living.pid(name)).memory_info().rss for name in living.supervisor.running}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_256_streams_of_20_tokens_a_second_for_three_minutes_without_an_error_and_memory_is_flat():
    async def go():
        fleet = toy_fleet(step=0.005, blocks=4096, store=0)
        async with running(fleet, Path("/tmp")) as living:
            load = Load(living, count=256, wanted=100)
            await asyncio.sleep(60)
            early, begun = resident(living), time.monotonic()
            await asyncio.sleep(120)
            late, minutes = resident(living), (time.monotonic() - begun) / 60
            await load.end(120)
            await living.settled()
            return load.streams, {name: (late[name] - early[name]) / MIB / minutes for name in early}

    streams, growth = asyncio.run(go())
    wrong = [why for each in streams if (why := each.wrong())]
    failed = [each.error or each.cut for each in streams if not each.served]
    rate = [(len(each.times) - 1) / (each.times[-1] - each.times[0]) for each in streams if each.served]
    print(f"{len(streams)} streams, {sum(len(each.tokens) for each in streams):,} tokens, "
          f"{sorted(rate)[len(rate) // 2]:.1f} tok/s at the median, MiB/min {growth}")  # fmt: skip
    assert not wrong
    assert not failed
    assert max(growth.values()) < 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_five_times_the_load_keeps_goodput_and_the_rest_is_refused_politely():
    """Open loop: requests come at a rate, whatever becomes of them."""

    async def offered(living, rate, seconds):
        tasks, begun, number = [], time.monotonic(), 0
        while (now := time.monotonic() - begun) < seconds:
            while number < now * rate:
                prompt = [number % 251, *range(30)]
                said = Stream(prompt, 30)
                tasks.append((said, asyncio.create_task(stream(living.session, living.url, prompt, 30, said))))
                number += 1
            await asyncio.sleep(0.01)
        await asyncio.gather(*(task for _, task in tasks))
        return [said for said, _ in tasks]

    async def go():
        fleet = toy_fleet(prefill=1, decode=2, step=0.02, blocks=256, store=0, limits={"requests": 48, "held": 16})
        async with running(fleet, Path("/tmp")) as living:
            best = await offered(living, 40, 20)
            much = await offered(living, 200, 20)
            await living.settled()
            return best, much

    best, much = asyncio.run(go())
    good, kept = (sum(each.served for each in some) for some in (best, much))
    print(f"{good} of {len(best)} served at the rate it carries, {kept} of {len(much)} at five times that")
    assert not [why for each in best + much if (why := each.wrong())]
    assert kept >= 0.9 * good
    refused = {each.error for each in much if not each.served}
    assert refused <= {"429 too_many_requests", "503 no_worker", "429 overloaded"}, refused
    assert not [each for each in much if each.cut]
