"""Whoever is killed or paused, at whatever stage of a handoff: no token is lost, doubled or wrong, and all comes to rest.

A cell is a role, a stage, who moves KV, and how it is struck. The stage's own process stops itself there where the role passes
through it; for the other roles whoever is at the stage waits there while the role is struck. 32 streams run all the while.
"""

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleets import LEASE, Load, running, toy_fleet

ROLES = ("gateway", "prefill", "decode", "kvstore")
STAGES = ("admit", "queue", "prefill", "reserve", "frame", "commit", "first_token", "mid_decode", "release")
OWN = {
    "prefill": {"admit", "queue", "prefill", "reserve", "frame", "commit", "first_token", "release"},
    "decode": {"admit", "reserve", "frame", "commit", "first_token", "mid_decode", "release"},
}
HOSTS = {"decode": {"admit", "commit", "first_token", "mid_decode", "reserve"}}
PAUSE = LEASE + 1.0
LAYERS = 2
STREAMS = 32
SERVED = 0.995
RECOVERY = 3.0


@dataclass(frozen=True)
class Cell:
    role: str
    stage: str
    ownership: str
    how: str

    @property
    def is_own(self):
        return self.stage in OWN.get(self.role, ())

    @property
    def point(self):
        """The fail point where the stage is."""
        if self.is_own:
            return f"{self.role}.{self.stage}"
        other = "decode" if self.role == "prefill" else "prefill" if self.role == "decode" else ""
        at = other or ("decode" if self.stage in HOSTS["decode"] else "prefill")
        return f"{at}.{self.stage}"

    def __str__(self):
        return f"{self.ownership}: {self.role} {self.how} at {self.stage}"


ALL = [
    Cell(*each)
    for each in ((r, s, o, h) for o in ("push", "pull") for h in ("kill", "stop") for r in ROLES for s in STAGES)
]


def is_quick(cell):
    """48 of them: each role at each stage is killed, under push or pull in turn, and every third is paused under the other."""
    r, s = ROLES.index(cell.role), STAGES.index(cell.stage)
    turn = "push" if (r + s) % 2 == 0 else "pull"
    return cell.ownership == turn if cell.how == "kill" else cell.ownership != turn and (r + s) % 3 == 0


class Struck:
    """One cell carried out on a living fleet."""

    def __init__(self, living, points, cell, number):
        self.living, self.points, self.cell, self.number = living, points, cell, number
        self.fault = 0.0

    def file(self, kind):
        return self.points / f"{self.cell.point}.{kind}"

    async def strike(self):
        """Wait for the fail point, strike, and let whoever waits go on. A point that nobody reaches is a failure."""
        deed = self.cell.how if self.cell.is_own else "wait"
        beside = self.file("new")
        beside.write_text(deed)
        beside.rename(self.file("arm"))
        until = time.monotonic() + 10
        while not (self.file("hit").exists() and self.file("hit").read_text()):
            assert time.monotonic() < until, f"{self.cell}: {self.cell.point} was never hit"
            await asyncio.sleep(0.005)
        pid = int(self.file("hit").read_text())
        self.fault = time.monotonic()
        if not self.cell.is_own:
            pid = self.living.pid(self._victim())
            struck = self.living.supervisor.running[self._victim()]
            assert struck.code is None, f"{self.cell}: {self._victim()} had ended before it was struck"
            struck.signal(signal.SIGKILL if self.cell.how == "kill" else signal.SIGSTOP)
            self.file("go").write_text("")
        if self.cell.how == "stop":
            await asyncio.sleep(PAUSE)
            os.kill(pid, signal.SIGCONT)

    def _victim(self):
        return self.cell.role if self.cell.role in ("gateway", "kvstore") else f"{self.cell.role}-{self.number % 2}"

    def tidy(self):
        for kind in ("arm", "taken", "hit", "go"):
            self.file(kind).unlink(missing_ok=True)


async def strike(living, points, cell, number):
    """One cell: what was wrong with it, and how long its streams stood still."""
    struck = Struck(living, points, cell, number)
    load = Load(living, STREAMS, seed=number)
    until = time.monotonic() + 20
    while load.flowing < STREAMS // 2:
        assert time.monotonic() < until, f"{cell}: only {load.flowing} streams under way"
        await asyncio.sleep(0.01)
    under_way = load.flowing
    try:
        await struck.strike()
        await asyncio.sleep(0.3)
        await load.end()
        await living.settled()
    finally:
        struck.tidy()
    wrong = [f"{cell}: {why}" for each in load.streams if (why := each.wrong())]
    asked = len(load.streams) if cell.role != "gateway" else len(load.streams) - sum(bool(s.cut) for s in load.streams)
    served = sum(each.served for each in load.streams)
    if served < SERVED * asked:
        told = [each.error or each.cut for each in load.streams if not each.served]
        wrong.append(f"{cell}: {served} of {asked} served: {told[:5]}")
    if load.given_up:
        wrong.append(f"{cell}: {len(load.given_up)} never served")
    return wrong, load.recoveries(struck.fault), under_way


async def group(ownership, cells, points, said, transport="unix"):
    """Cells on one fleet, which is what it was before when they are done."""
    wrong, recoveries = [], []
    fleet = toy_fleet(ownership, environment={"DIPTYCH_FAILPOINTS": str(points)}, heartbeat_seconds=0.5,
                      transport=transport)  # fmt: skip
    async with running(fleet, Path("/tmp")) as living:
        warm = Load(living, STREAMS)
        await asyncio.sleep(1.0)
        await warm.end()
        await living.settled()
        before, files = living.belongings(), living.open_files()
        for number, cell in enumerate(cells):
            began = time.monotonic()
            try:
                found, took, under_way = await strike(living, points, cell, number)
            except AssertionError as error:
                found, took, under_way = [f"{cell}: {error}"], [], 0
            wrong += found
            recoveries += took
            line = {"cell": str(cell), "streams": under_way, "recovery": round(max(took, default=0), 2),
                    "seconds": round(time.monotonic() - began, 1), "wrong": found}  # fmt: skip
            said(json.dumps(line))
        await living.settled()
        assert living.belongings() == before
        after = living.open_files()
        assert all(after[name] <= files[name] + 2 for name in files), (files, after)
        mapped = living.mapped()
        most = LAYERS + fleet.pools[0].count if transport == "shm" else 0
        assert all(count <= most for count in mapped.values()), mapped
        if wrong:
            said(living.logs())
    return wrong, sorted(recoveries)


def run(ownership, cells, tmp_path, record, transport="unix"):
    points = tmp_path / "points"
    points.mkdir()
    wrong, recoveries = asyncio.run(group(ownership, cells, points, record, transport))
    assert not wrong, "\n".join(wrong)
    p99 = recoveries[min(len(recoveries) - 1, int(0.99 * len(recoveries)))]
    half = recoveries[len(recoveries) // 2]
    record(f"{len(cells)} cells, {len(recoveries)} streams struck, recovery p50 {half:.2f} s, p99 {p99:.2f} s")
    return p99


@pytest.fixture
def record(tmp_path):
    with (tmp_path / "matrix.jsonl").open("a") as file:

        def say(text):
            file.write(text + "\n")
            file.flush()
            print(text)

        yield say


QUICK = [
    (o, h, [c for c in ALL if is_quick(c) and (c.ownership, c.how) == (o, h)])
    for o in ("push", "pull")
    for h in ("kill", "stop")
]


def test_the_quick_part_is_48_cells_and_has_every_role_at_every_stage():
    quick = [cell for _, _, cells in QUICK for cell in cells]
    assert len(quick) == len(set(quick)) == 48
    assert {(cell.role, cell.stage) for cell in quick if cell.how == "kill"} == {(r, s) for r in ROLES for s in STAGES}
    assert len(ALL) == 144


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ownership", "how", "cells"), QUICK, ids=[f"{o}-{h}" for o, h, _ in QUICK])
def test_nothing_is_lost_doubled_or_wrong_whoever_is_struck(ownership, how, cells, tmp_path, record):
    run(ownership, cells, tmp_path, record)


LENT = [
    Cell(role, stage, ownership, how)
    for ownership, how in (("push", "kill"), ("pull", "stop"))
    for role, stage in (("prefill", "frame"), ("decode", "frame"), ("prefill", "commit"), ("decode", "release"))
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ownership", ["push", "pull"])
def test_nothing_is_lost_or_left_where_kv_is_read_out_of_lent_memory(ownership, tmp_path, record):
    run(ownership, [cell for cell in LENT if cell.ownership == ownership], tmp_path, record, "shm")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("transport", ["unix", "shm"])
@pytest.mark.parametrize("ownership", ["push", "pull"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_whole_matrix_and_how_long_streams_stand_still(ownership, how, transport, tmp_path, record):
    cells = [cell for cell in ALL if (cell.ownership, cell.how) == (ownership, how)]
    assert run(ownership, cells, tmp_path, record, transport) <= RECOVERY
