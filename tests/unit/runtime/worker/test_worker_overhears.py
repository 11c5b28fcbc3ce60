"""What a worker hears within a step: heartbeats go out, and handoffs are made ready, while the engine computes."""

import threading
import time

import pytest
from worker_parts import MODEL, Load, Pace, Tokens, Worker, both, prompt, submit


class Gate:
    """A pace whose sleeps end one by one, when they are let."""

    def __init__(self):
        self.asked, self.let = 0, threading.Semaphore(0)
        self.pace = Pace(decode_step=1.0, sleep=self._sleep)

    def _sleep(self, seconds):
        self.asked += 1
        assert self.let.acquire(timeout=20)


def until(holds):
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("ownership", ["push", "pull"])
def test_room_is_given_within_a_decode_step(tmp_path, ownership):
    gate = Gate()
    source, target = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode", pace=gate.pace)
    standing = submit(prompt(9), 5)
    target.tell(standing)
    until(lambda: gate.asked == 1)  # in the first layer of its first decode step
    request = both(source, target, prompt(20, 1), 4, ownership)
    until(lambda: target.core._inbox.qsize() >= (2 if ownership == "push" else 1))
    gate.let.release()
    source.wait(lambda said: [each for each in said if isinstance(each, Tokens)])
    if ownership == "pull":
        until(lambda: target.core._inbox.qsize() >= 1)
        gate.let.release()
        until(lambda: target.core.handoffs.reservations == 1)
    assert len(target.tokens_of(standing.request)) == 1  # still the same step
    gate.let.release(1000)
    assert target.end_of(request).reason == "length"
    assert target.tokens_of(request) == MODEL.expected(prompt(20, 1), 4)
    assert target.tokens_of(standing.request) == MODEL.expected(prompt(9), 5)
    for each in (source, target):
        each.at_rest()
        each.stop()


def test_a_long_prompt_does_not_silence_a_worker(tmp_path):
    worker = Worker(tmp_path, "w", pace=Pace(prefill_token=0.1))
    worker.wait(lambda said: [each for each in said if isinstance(each, Load)])
    asked = submit(prompt(20), 1)
    worker.tell(asked)
    worker.end_of(asked.request)
    first = next(place for place, said in enumerate(worker.said) if isinstance(said, Tokens))
    beats = [said for said in worker.said[:first] if isinstance(said, Load) and said.running]
    assert len(beats) >= 2
    worker.at_rest()
    worker.stop()


def test_what_cannot_be_done_within_a_step_keeps_its_order(tmp_path):
    gate = Gate()
    worker = Worker(tmp_path, "w", pace=gate.pace)
    standing, again = submit(prompt(9), 5), submit(prompt(9, 2), 3)
    worker.tell(standing)
    until(lambda: gate.asked == 1)
    worker.tell(again)
    worker.tell(submit(prompt(9, 3), 3, request=again.request, epoch=2))  # ends the attempt before it
    until(lambda: worker.core._inbox.qsize() == 2)
    gate.let.release(1000)
    worker.wait(lambda said: [each for each in said if getattr(each, "epoch", 0) == 2 and hasattr(each, "reason")])
    assert worker.tokens_of(again.request, 2) == MODEL.expected(prompt(9, 3), 3)
    worker.at_rest()
    worker.stop()
