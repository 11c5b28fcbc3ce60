"""Push between two joints: decode reserves first, and layers leave while the prompt is computed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from joints import HEADS, KEY, LAYERS, Worker, values

from diptych.errors import InvalidInput
from diptych.integrations.vllm.jobs import Fetch, Keep, Made, Make

TOKENS = 150


class Pair:
    """A prefill worker that pushes, and a decode worker."""

    def __init__(self, port: int, form: str = "torch.float32", size: int = 32, **settings) -> None:
        self.port = port
        self.prefill = Worker(32, "torch.float32", ownership="push", port=port, **settings)
        self.decode = Worker(size, form)
        self.told, self.there = values(TOKENS), [0, 1, 2, 3, 4]
        self.here = [6, 8, 7, 10, 9][: -(-TOKENS // size)]

    def ask(self, prompt: str = "same", held: int = 0) -> None:
        meeting = f"tcp:127.0.0.1:{self.port}"
        self.decode.joint.fetch(Fetch(KEY, "d", tuple(self.here), TOKENS, held, prompt, meeting=meeting))

    def make(self) -> None:
        self.prefill.joint.make(Make(KEY, "p", TOKENS, "same"))

    def compute(self, begin: int, end: int, layers: int = LAYERS) -> None:
        """A forward pass over some tokens, layer after layer."""
        for layer in range(layers):
            whole = self.told[layer : layer + 1, :, begin:end]
            self._put(layer, whole, begin)
            self.prefill.joint.made(Made(KEY, tuple(self.there), end), layer)

    def _put(self, layer: int, told: np.ndarray, begin: int) -> None:
        kept = self.prefill.get(TOKENS, self.there)
        kept[layer, :, begin : begin + told.shape[2]] = told[0]
        self.prefill.put(kept, self.there)

    def keep(self) -> None:
        self.prefill.joint.keep(Keep(KEY, "p", tuple(self.there), TOKENS))

    def arrives(self) -> None:
        assert not self.decode.wait(received="d").failed
        np.testing.assert_array_equal(self.decode.get(TOKENS, self.here), self.told)
        self.prefill.wait(sent="p")
        assert self.prefill.joint.leases == 0
        assert self.decode.joint.counted()["open_transfers"] == 0


@pytest.fixture
def pair(free_ports) -> Iterator[object]:
    made: list[Pair] = []

    def start(**settings) -> Pair:
        made.append(Pair(free_ports(1), **settings))
        return made[-1]

    yield start
    for each in made:
        each.prefill.joint.close()
        each.decode.joint.close()


@pytest.mark.parametrize("decode_first", [True, False])
@pytest.mark.parametrize(("form", "size"), [("torch.float32", 32), ("torch.float16", 64)])
def test_a_prompt_is_made_once_there_is_room_and_arrives(pair, decode_first, form, size) -> None:
    both = pair(form=form, size=size)
    for begin in (both.ask, both.make) if decode_first else (both.make, both.ask):
        assert not both.prefill.joint.take().roomy
        begin()
    both.prefill.wait(roomy="p")
    both.compute(0, TOKENS)
    both.keep()
    both.arrives()


def test_bytes_leave_before_the_prompt_is_whole(pair) -> None:
    """After the first chunk, and of the last one while its later layers are not computed."""
    both = pair()
    both.ask()
    both.make()
    both.prefill.wait(roomy="p")
    block = 2 * HEADS * 32 * 16 * 4
    both.compute(0, 70)
    reaches(both, 2 * block * LAYERS)
    both.compute(70, TOKENS, layers=1)
    reaches(both, (2 * LAYERS + 3) * block)
    assert both.prefill.done.sent == set()
    for layer in range(1, LAYERS):
        both._put(layer, both.told[layer : layer + 1, :, 70:], 70)
    both.keep()  # a graph of the whole pass shows no layers: what is left goes now
    both.arrives()
    assert both.prefill.joint.counted()["early_bytes"] == (2 * LAYERS + 3) * block


def reaches(both: Pair, bytes_: int) -> None:
    """So many bytes are at decode, counted."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with both.decode.joint.peers.turn:
            found = sum(each.arrived_bytes for each in both.decode.joint.table.reservations.values())
        if found == bytes_:
            return
        time.sleep(0.005)
    raise AssertionError(f"{found} bytes, not {bytes_}")


def test_only_what_is_missing_is_pushed(pair) -> None:
    both = pair()
    both.decode.tensors[0][both.here[0]] = 3.0
    before = both.decode.tensors[0][both.here[0]].clone()
    both.ask(held=32)
    both.make()
    both.prefill.wait(roomy="p")
    both.compute(0, TOKENS)
    both.keep()
    assert not both.decode.wait(received="d").failed
    assert bool((both.decode.tensors[0][both.here[0]] == before).all())
    assert both.decode.joint.counted()["received_bytes"] == 4 * LAYERS * 2 * HEADS * 32 * 16 * 4


def test_another_prompt_is_refused_and_both_go_on(pair) -> None:
    both = pair()
    both.ask(prompt="other")
    both.make()
    both.prefill.wait(forsaken="p")
    assert both.decode.wait(received="d", seconds=5).failed == {"d"}
    both.keep()
    both.prefill.wait(sent="p")


def test_prefill_waits_for_room_only_so_long(pair) -> None:
    both = pair(wait_s=0.2)
    both.make()
    both.prefill.wait(forsaken="p")
    both.keep()
    both.prefill.wait(sent="p")
    assert both.prefill.joint.leases == 0


def test_a_worker_that_pulls_refuses_a_reservation(pair) -> None:
    both = pair()
    both.prefill.joint.settings = type(both.prefill.joint.settings)(port=both.port)
    both.ask()
    assert both.decode.wait(received="d").failed == {"d"}
    assert any("hands over by pull" in line for line in both.decode.said)


@pytest.mark.parametrize("when", ["before it is made", "before room", "while it is made", "once it is whole"])
def test_a_decode_worker_that_ends_leaves_prefill_free(pair, when) -> None:
    both = pair(wait_s=1.0, lease_s=1.0)
    both.ask()
    if when == "before it is made":
        time.sleep(0.1)
        both.decode.joint.close()
    both.make()
    if when == "before room":
        both.decode.joint.close()
    if when in ("while it is made", "once it is whole"):
        both.prefill.wait(roomy="p")
        both.compute(0, 70)
        if when == "while it is made":
            both.decode.joint.close()
            both.prefill.wait(forsaken="p")
        both.compute(70, TOKENS)
    both.keep()
    both.decode.joint.close()
    both.prefill.wait(sent="p", seconds=20)
    assert both.prefill.joint.leases == 0


@pytest.mark.parametrize("told", [True, False])
def test_a_prompt_that_vllm_gives_up_is_read_by_nobody_afterwards(pair, told) -> None:
    """A preempted prompt's blocks are another's as soon as `halt` returns; an aborted one's once it is told."""
    both = pair()
    both.ask()
    both.make()
    both.prefill.wait(roomy="p")
    both.compute(0, 70)
    both.prefill.joint.halt("p", told)
    if told:
        both.prefill.wait(sent="p")
    assert both.prefill.joint.leases == 0
    assert both.decode.wait(received="d").failed == {"d"}


def test_a_transfer_id_that_is_in_use_is_not_made_twice(pair) -> None:
    both = pair()
    both.make()
    both.prefill.joint.make(Make(KEY, "second", TOKENS, "same"))
    both.prefill.wait(forsaken="second")
    both.prefill.joint.halt("second", True)
    both.prefill.wait(sent="second")
    both.ask()
    both.prefill.wait(roomy="p")
    both.compute(0, TOKENS)
    both.keep()
    both.arrives()


def test_a_port_that_is_taken_is_named(pair, free_ports) -> None:
    both = pair()
    with pytest.raises(InvalidInput, match=r"port.*in use"):
        Worker(32, "torch.float32", ownership="push", port=both.port)
