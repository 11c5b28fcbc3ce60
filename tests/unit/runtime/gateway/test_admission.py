"""Early rejection in made-up time: a prefill worker of a known speed, requests at a rate, and what is served in time."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

import pytest
from fake_workers import pick_prompt

from diptych.runtime.gateway.answer import Answer
from diptych.runtime.gateway.charges import begun, charge, refund
from diptych.runtime.gateway.dispatch import Dispatch
from diptych.runtime.gateway.mailbox import Mailbox
from diptych.runtime.gateway.roster import Condition, Roster
from diptych.runtime.gateway.settings import Endpoint, Objectives, Settings
from diptych.runtime.messages import Params, Ready
from diptych.serving.fallback import Way

SECONDS_PER_TOKEN, STEP, OWN = 0.0005, 0.02, 0.004
"""A prompt token, a decode step, and what a prompt costs beside its tokens."""
PROMPT, ANSWER, TTFT = 100, 20, 0.5
CAPACITY = 1 / (PROMPT * SECONDS_PER_TOKEN + OWN)


class World:
    """The gateway's own routing and charging over a prefill worker that serves one prompt after another."""

    def __init__(self, objectives: Objectives, slow: Callable[[float], float] = lambda now: 1.0) -> None:
        endpoints = tuple(Endpoint(name, role, f"unix:/{name}") for name, role in (("p", "prefill"), ("d", "decode")))
        settings = Settings(model="toy", workers=endpoints, objectives=objectives)
        self.roster = Roster(endpoints)
        for worker in self.roster:
            worker.becomes(Condition.UP, 0.0)
            worker.ready = Ready(b"", "", 1000, 16, 256, 4096, "toy")
        self.dispatch = Dispatch(settings, self.roster)
        self.slow, self.free_at, self.events = slow, 0.0, list[tuple[float, int, Callable[[], None]]]()
        self.served: list[float] = []
        self.refused: list[tuple[int, str, float]] = []

    def ask(self, now: float, prompt: list[int]) -> None:
        answer = Answer(secrets.token_bytes(16), 0, tuple(prompt), Params(ANSWER), b"", Mailbox(9999), now, now + 600)
        route = self.dispatch.route(answer, 0, 0, now)
        if route.way is not Way.APART:
            assert answer.refused is not None
            status, code, _, after = answer.refused
            self.refused.append((status, code, after))
            return
        answer.source, answer.target = route.source, route.target
        charge(answer, self.roster["d"], "decode")
        charge(answer, self.roster["p"], "prefill")
        self.free_at = max(self.free_at, now) + (len(prompt) * SECONDS_PER_TOKEN + OWN) * self.slow(now)
        first, last = self.free_at, self.free_at + (ANSWER - 1) * STEP
        self.events += [(first, 0, lambda: self.begins(answer, first)), (last, 1, lambda: self.ends(answer, last))]

    def begins(self, answer: Answer, now: float) -> None:
        answer.first = now
        self.dispatch.began(answer)
        begun(answer, self.roster.workers)
        answer.count = 1
        self.served.append(now - answer.began)

    def ends(self, answer: Answer, now: float) -> None:
        answer.last, answer.count = now, ANSWER
        self.dispatch.finished(answer, now)
        refund(answer, self.roster.workers)

    def until(self, now: float) -> None:
        for event in sorted((each for each in self.events if each[0] <= now), key=lambda each: each[:2]):
            self.events.remove(event)
            event[2]()


def goodput(objectives: Objectives, rate: float, seconds: float = 40.0, **how: Callable[[float], float]) -> World:
    """Requests at random moments, and what becomes of them."""
    world, chance, now, number = World(objectives, **how), random.Random(1), 0.0, 0
    while now < seconds:
        now += chance.expovariate(rate)
        number += 1
        world.until(now)
        world.ask(now, [number % 255, number // 255, *range(PROMPT - 2)])
    world.until(float("inf"))
    assert not sum(each.load + each.ahead + each.streams + each.coming for each in world.roster)
    return world


def on_time(world: World) -> int:
    return sum(each <= TTFT for each in world.served)


def test_five_times_the_load_keeps_goodput_and_without_objectives_it_would_not() -> None:
    kept = Objectives(ttft=TTFT)
    best = max(on_time(goodput(kept, share * CAPACITY)) for share in (0.8, 1.0, 1.2))
    assert best > 0.85 * 40 * CAPACITY, "the best is that of a worker with no pause"
    much = goodput(kept, 5 * CAPACITY)
    assert on_time(much) >= 0.9 * best
    assert on_time(much) >= 0.95 * len(much.served), "those that are taken are on time"
    assert {(status, code) for status, code, _ in much.refused} == {(429, "overloaded")}
    assert all(after >= 1 for _, _, after in much.refused)
    assert on_time(goodput(Objectives(), 5 * CAPACITY)) < 0.2 * best


def test_a_worker_that_was_slow_for_a_while_is_believed_again() -> None:
    """What was learned in a bad hour does not refuse everything for ever."""
    kept = Objectives(ttft=TTFT)
    before = on_time(goodput(kept, CAPACITY))
    after = goodput(kept, CAPACITY, slow=lambda now: 20.0 if 10 < now < 20 else 1.0)
    assert 0.7 * before <= on_time(after) <= 0.9 * before


@pytest.mark.parametrize("busy", [0, 40])
def test_decode_is_judged_by_what_runs_and_what_is_on_its_way(busy: int) -> None:
    """Streams that end before the handoff do not count, those that come do."""
    world = World(Objectives(tpot=0.03))
    target = world.roster["d"]
    for streams in range(1, 30):
        target.speed.step.add(streams, 0.01 + 0.001 * streams)  # 20 streams make 30 ms
    world.dispatch.answer_seconds.add(10.0)
    target.streams, target.coming, world.roster["p"].ahead = 25, busy and 25, 10
    world.roster["p"].speed.per_token.add(0.05)
    world.ask(0.0, pick_prompt(1, PROMPT))  # its handoff is 5.5 s away: of 25 that run, 11 will be left
    assert bool(world.served or world.events) is (busy == 0)
