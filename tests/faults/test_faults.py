"""Links, clocks, disks and memory that fail under load, in real processes: right tokens or a typed error, then all as before."""

import asyncio
import errno
import os
import subprocess
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from links import Cut, FaultyLink, Late, Silent, Slow, Well

from diptych.runtime.worker.config import TierConfig
from fleets import Load, Stream, running, stream, toy_fleet

INSIDE = Path(__file__).parent / "inside"
STREAMS, STRUCK = 16, 2.5
"""Clients, and seconds for which a link is bad: longer than a lease (1 s) and than three heartbeats (1.5 s)."""


def judged(load, may_end=True):
    """Every stream as it must be: right as far as it went, never cut, and in the end everybody was served."""
    assert not [why for each in load.streams if (why := each.wrong())]
    assert not [each.cut for each in load.streams if each.cut]
    assert not load.given_up, [(each.error, each.cut) for each in load.given_up[:5]]
    errors = [each.error for each in load.streams if each.error]
    assert may_end or not errors, errors[:5]
    return errors


async def flowing(load, least=STREAMS // 2, seconds=20):
    end = asyncio.get_running_loop().time() + seconds
    while load.flowing < least:
        assert asyncio.get_running_loop().time() < end, f"{load.flowing} streams under way"
        await asyncio.sleep(0.01)


# --- links --------------------------------------------------------------------------------------------------------------

LINKS = {"peer": ("decode-0.peer", "frames"), "decode": ("decode-0.control", "control"),
         "prefill": ("prefill-0.control", "control"), "store": ("kvstore.socket", "")}  # fmt: skip
FAULTS = {
    "slow": Slow(2_000), "late": Late(0.2, 0.05), "half open": Silent(), "deaf": Silent(both=False),
    "cut": Cut(1), "cut sometimes": Cut(9), "torn": Cut(3, within=7),
}  # fmt: skip
QUICK = {
    "push": [("peer", "slow"), ("decode", "half open"), ("prefill", "cut sometimes")],
    "pull": [("peer", "torn"), ("peer", "half open"), ("store", "half open")],
}


async def strike(living, link, fault, number):
    load = Load(living, STREAMS, seed=number)
    await flowing(load)
    before = link.struck
    link.becomes(fault)
    await asyncio.sleep(STRUCK)
    link.becomes(Well())
    await asyncio.sleep(0.3)
    await load.end(40)
    await living.settled()
    errors = judged(load)
    assert link.struck > before, "nothing passed while it was bad"
    return len(load.streams), len(errors)


async def all_links(ownership, cells):
    """One fleet, each link through a proxy from the first connection on; the gateway comes through when it starts again."""
    async with running(toy_fleet(ownership, blocks=64), Path("/tmp")) as living, AsyncExitStack() as stack:
        links = {}
        for name, (file, kind) in LINKS.items():
            links[name] = await stack.enter_async_context(FaultyLink(kind).at(living.folder / file))
        os.kill(living.pid("gateway"), 9)
        await asyncio.sleep(0.2)
        await living.settled()
        warm = Load(living, STREAMS)
        await asyncio.sleep(1.0)
        await warm.end()
        await living.settled()
        assert all(each.connections for each in links.values()), {
            name: each.connections for name, each in links.items()
        }
        before, files = living.belongings(), living.open_files()
        for number, (name, fault) in enumerate(cells):
            try:
                count, errors = await strike(living, links[name], FAULTS[fault], number)
            except AssertionError as error:
                raise AssertionError(f"{name} {fault}: {error}\n{living.logs()}") from None
            print(f"{ownership} {name} {fault}: {count} streams, {errors} typed errors")
        assert living.belongings() == before
        after = living.open_files()
        assert all(after[name] <= files[name] + 3 for name in files), (files, after)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("ownership", ["push", "pull"])
def test_a_link_that_goes_wrong_costs_no_token_and_leaves_nothing(ownership):
    asyncio.run(all_links(ownership, QUICK[ownership]))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ownership", ["push", "pull"])
def test_every_link_with_every_fault(ownership):
    asyncio.run(all_links(ownership, [(link, fault) for link in LINKS for fault in FAULTS]))


# --- within processes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def inside(tmp_path):
    """A folder of faults, and the environment in which processes look there."""
    folder = tmp_path / "faults"
    folder.mkdir()
    return folder, {"PYTHONPATH": os.pathsep.join([str(INSIDE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
                    "DIPTYCH_FAULTS": str(folder)}  # fmt: skip


def test_a_wall_clock_that_jumps_is_not_noticed(inside):
    """An hour forth, an hour back, a day: no lease ends, no worker is lost, nothing is tried again."""
    folder, environment = inside

    async def go():
        async with running(toy_fleet(environment=environment), Path("/tmp")) as living:
            load = Load(living, STREAMS)
            await flowing(load)
            seen = [(await living.get("/ui/data"))["at"]]
            for shift in (3600, -3600, 86_400, -86_400, 0):
                (folder / "new").write_text(str(shift))
                (folder / "new").rename(folder / "shift")
                await asyncio.sleep(0.8)
                seen.append((await living.get("/ui/data"))["at"])
            await load.end()
            judged(load, may_end=False)
            await living.settled()
            data = await living.get("/ui/data")
            assert not data["fallbacks"], data["fallbacks"]
            assert not [each for each in data["workers"] if each["restarts"]]
            assert data["uptime"] < 300
            return [round((late - early) / 3600) for early, late in pairwise(seen)]

    assert asyncio.run(go()) == [1, -2, 25, -48, 24], "the clocks did jump"


def tiers(folder, environment):
    """Few blocks and a tiny tier in memory, so that the disk is used."""
    fleet = toy_fleet(prefill=1, decode=1, step=0.002, blocks=64, store=0, environment=environment)
    disk = TierConfig("nvme", 4 << 20, str(folder))
    return type(fleet)(**{name: getattr(fleet, name) for name in fleet.__slots__} | {"tiers": (disk,)})


def asking_again(load):
    """More beginnings of prompts than the device has blocks for, so that they come back from below."""
    heads = [[load.random.randrange(255) for _ in range(80)] for _ in range(24)]
    load.prompt = lambda: [*load.random.choice(heads), *(load.random.randrange(255) for _ in range(8))]


async def disk_of(living, role="prefill"):
    """What the worker of a role says of its disk."""
    workers = (await living.get("/ui/data"))["workers"]
    (tier,) = next(each["tiers"] for each in workers if each["role"] == role)
    return tier


async def until_served(load, more):
    count = more + sum(each.served for each in load.streams)
    while sum(each.served for each in load.streams) < count:
        await asyncio.sleep(0.02)


DISKS = {
    "full": ("writev", str(errno.ENOSPC)), "over quota": ("writev", str(errno.EDQUOT)),
    "read-only": ("writev", str(errno.EROFS)), "failing": ("writev", str(errno.EIO)), "torn": ("torn", "700"),
    "flipped": None, "gone": None,
}  # fmt: skip


async def failing_disk(fault, folder, environment, place):
    async with running(tiers(place, environment), Path("/tmp")) as living:
        load = Load(living, 8)
        asking_again(load)
        while not (before := await disk_of(living))["found"]:
            await until_served(load, 20)
        if DISKS[fault] is not None:
            name, said = DISKS[fault]
            (folder / name).write_text(said)
        is_read = fault in ("torn", "flipped", "gone")
        for _ in range(40 if is_read else 4):
            for file in [path for path in place.rglob("*") if path.is_file()] if DISKS[fault] is None else []:
                spoil(file, fault)
            await until_served(load, 15)
            if is_read and (await disk_of(living))["damaged"] > before["damaged"]:
                break
        await load.end()
        judged(load, may_end=False)
        await living.settled()
        assert not is_read or (await disk_of(living))["damaged"] > before["damaged"], before
        assert DISKS[fault] is None or (folder / "struck").exists()
        assert not list(place.rglob("*.new"))
        assert not (await living.get("/ui/data"))["fallbacks"]


@pytest.mark.parametrize("fault", [
    pytest.param(each, marks=[] if each in ("full", "flipped") else [pytest.mark.long]) for each in DISKS
])  # fmt: skip
def test_a_disk_that_fails_is_a_miss_and_never_a_wrong_token(fault, inside, tmp_path):
    folder, environment = inside
    place = tmp_path / "kv"
    place.mkdir()
    asyncio.run(failing_disk(fault, folder, environment, place))


def spoil(file, how):
    """Change a byte of a block, or take the file away; it may be gone already."""
    try:
        if how == "gone":
            file.unlink()
            return
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    except OSError:
        pass


@pytest.mark.parametrize("options", ["size=64k", pytest.param("size=4m,nr_inodes=30", marks=pytest.mark.long)])
def test_a_disk_that_is_really_full(options, inside, tmp_path):
    """A small file system of its own: no space, no inodes."""
    place = tmp_path / "kv"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")

    async def go():
        async with running(tiers(place, inside[1]), Path("/tmp")) as living:
            load = Load(living, 8)
            asking_again(load)
            await until_served(load, 100)
            await load.end()
            judged(load, may_end=False)
            await living.settled()
            disks = [await disk_of(living, role) for role in ("prefill", "decode")]  # either may have filled it first
            assert any(disk["used"] or disk["found"] for disk in disks), "what is found leaves the disk again"
            assert sum(disk["used"] for disk in disks) <= 64 << 10
            assert not any(disk["damaged"] for disk in disks)
            assert not list(place.rglob("*.new"))

    try:
        asyncio.run(go())
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_prompt_that_finds_no_memory_fails_alone(inside):
    folder, environment = inside
    (folder / "oom").write_text("201\n202\n203\n")

    async def go():
        async with running(toy_fleet(store=0, environment=environment), Path("/tmp")) as living:
            load = Load(living, STREAMS)
            load.prompt = lambda: [load.random.randrange(200) for _ in range(load.random.randrange(8, 60))]
            await flowing(load)
            asked = [Stream([number, 201, 202, 203], 20) for number in range(6)]
            await asyncio.gather(*(stream(living.session, living.url, each.prompt, 20, each) for each in asked))
            await load.end()
            judged(load, may_end=False)
            await living.settled()
            data = await living.get("/ui/data")
            assert all(each["condition"] == "up" and not each["restarts"] for each in data["workers"])
            return [each.error for each in asked], [each.tokens for each in asked]

    errors, tokens = asyncio.run(go())
    assert (folder / "struck").exists()
    assert set(errors) <= {"503 attempts_exhausted", "503 worker_failed", "503 retry_budget"}, errors
    assert not any(tokens)
