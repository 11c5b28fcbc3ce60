"""Two workers with little memory that hand prompts to each other, both at once: nobody waits for whoever waits for him."""

import time

import pytest
from worker_parts import MODEL, Ended, Failed, Worker, both, prompt, submit

from diptych.runtime.worker.sharing import Sharing

BLOCKS, COUNT = 30, 6


def carried_out(asked, seconds=20.0):
    """Ask again under a later epoch whatever was given up, until all are answered; the epoch of each answer."""
    until = time.monotonic() + seconds
    epochs, answered = dict.fromkeys(asked, 1), {}
    while epochs:
        assert time.monotonic() < until, f"{len(epochs)} of {len(asked)} wait for each other"
        for request, epoch in list(epochs.items()):
            source, target, tokens, ownership = asked[request]
            said = [each for worker in (source, target) for each in list(worker.said)]
            ends = [each for each in said if isinstance(each, Ended | Failed) and each.request == request]
            now = [each for each in ends if each.epoch == epoch]
            if any(isinstance(each, Ended) and each.reason == "length" for each in now):
                answered[request] = epochs.pop(request)
            elif failed := [each for each in now if isinstance(each, Failed)]:
                assert failed[0].retry, failed
                epochs[request] += 1
                both(source, target, tokens, COUNT, ownership, request=request, epoch=epoch + 1)
        time.sleep(0.002)
    return answered


@pytest.mark.parametrize("ownerships", [("push", "push"), ("pull", "pull"), ("push", "pull")])
@pytest.mark.parametrize("length", [12, 40, 56, 58, 70, 110], ids=lambda length: f"{length}-tokens")
def test_prompts_of_any_size_go_both_ways(tmp_path, ownerships, length):
    """From four prompts at once in a worker's memory to one that fills it, with whole answers between them."""
    one, other = pair = [Worker(tmp_path, name, blocks=BLOCKS) for name in "ab"]
    asked, whole = {}, []
    for seed in range(12):
        for place, (source, target) in enumerate((pair, pair[::-1])):
            tokens = prompt(length + seed % 3, 2 * seed + place)
            asked[both(source, target, tokens, COUNT, ownerships[place])] = source, target, tokens, ownerships[place]
        if seed % 4 == 0:
            whole.append((pair[seed % 8 // 4], submit(prompt(30, seed), COUNT)))
            whole[-1][0].tell(whole[-1][1])
    for request, epoch in carried_out(asked).items():
        _, target, tokens, _ = asked[request]
        assert target.tokens_of(request, epoch) == MODEL.expected(tokens, COUNT)
    for worker, half in whole:
        assert worker.end_of(half.request).reason == "length"
        assert worker.tokens_of(half.request) == MODEL.expected(half.prompt, COUNT)
    for each in (one, other):
        each.at_rest()
        each.stop()


def sharing(due=0, capacity=20):
    made = Sharing(capacity)
    made.due.append(lambda id: due)
    return made


def test_first_halves_have_half_of_the_memory():
    room = sharing()
    assert [room.promise(bytes((n,)), 4) for n in range(4)] == [True, True, False, False]
    room.keep(b"\0")
    assert room.promise(b"\3", 4)


def test_a_large_prompt_goes_alone_and_leaves_room_for_what_is_due():
    room = sharing(due=5)
    assert not room.promise(b"a", 16)
    assert room.promise(b"b", 15)
    assert not room.promise(b"c", 1)
    room.keep(b"b")
    assert room.promise(b"c", 1)
    assert not room.promise(b"b", 15)


def test_an_answer_that_grows_is_due():
    room = sharing()
    assert room.promise(b"a", 2, longest=17)
    assert not room.promise(b"b", 2, longest=2)
    assert room.promise(b"c", 1, longest=2)


def test_who_only_gives_or_only_takes_shares_with_nobody():
    room = sharing(due=1000, capacity=0)
    assert all(room.promise(bytes((n,)), 100) for n in range(10))
