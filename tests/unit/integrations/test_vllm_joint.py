"""Two joints in one process, over torch tensors packed as vLLM's CPU attention packs them: what arrives, and what does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from joints import BLOCKS, DIM, FACTS, HEADS, KEY, LAYERS, Worker, values

from diptych.boundary.messages import Speaker
from diptych.integrations.vllm.doorbell import Ring, ring
from diptych.integrations.vllm.jobs import Fetch, Keep, Tell
from diptych.integrations.vllm.ticket import Place
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.events import Freed, Lost


@pytest.fixture
def made() -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.joint.close()


def pair(made, first: Worker, second: Worker) -> tuple[Worker, Worker]:
    made += [first, second]
    return first, second


FORMS = [
    ((32, "torch.float32", "auto"), (32, "torch.float32", "auto"), ""),
    ((32, "torch.bfloat16", "auto"), (64, "torch.float16", "auto"), ""),
    ((64, "torch.bfloat16", "auto"), (32, "torch.float32", "auto"), ""),
    ((64, "torch.bfloat16", "auto"), (128, "torch.bfloat16", "fp8"), ""),
    ((128, "torch.bfloat16", "fp8"), (64, "torch.float16", "auto"), ""),
    ((32, "torch.float32", "auto"), (64, "torch.bfloat16", "auto"), "bf16"),
    ((32, "torch.float32", "auto"), (64, "torch.bfloat16", "auto"), "fp8"),
]


@pytest.mark.parametrize(("first", "second", "wire"), FORMS)
@pytest.mark.parametrize("tokens", [1, 64, 77])
def test_what_arrives_means_what_was_computed(made, first, second, wire, tokens) -> None:
    prefill, decode = pair(made, Worker(*first, wire=wire), Worker(*second))
    told = values(tokens)
    there, here = [5, 2, 9][: -(-tokens // first[0])], [3, 7, 1][: -(-tokens // second[0])]
    prefill.put(told, there)
    prefill.joint.keep(Keep(KEY, "p", tuple(there), tokens))
    decode.fetch(prefill, tokens, here)
    assert not decode.wait(received="d").failed
    np.testing.assert_array_equal(decode.get(tokens, here), told)
    prefill.wait(sent="p")
    assert prefill.joint.leases == 0
    others = [block for block in range(BLOCKS) if block not in here]
    assert all(float(tensor[others].float().abs().max()) == 0 for tensor in decode.tensors)
    counts = decode.joint.counted()
    assert (counts["received"], counts["failed"], counts["open_transfers"]) == (1, 0, 0)


@pytest.mark.parametrize("how", ["as it lies", "as it lies, through the host", "any order, through the host"])
def test_every_way_through_memory_ends_the_same(made, how) -> None:
    """What a CPU does with its own memory, and what a tensor on a GPU or in an odd order does instead."""
    prefill, decode = pair(made, Worker(32, "torch.bfloat16"), Worker(32, "torch.bfloat16"))
    for worker in (prefill, decode) if "host" in how else ():
        worker.joint.kept_own = None
        if how.startswith("any"):
            worker.joint.kept_digest = ""
            index = torch.from_numpy(worker.blocks.places.reshape(-1).copy())
            worker.joint.blocks = replace(worker.blocks, _runs=None, _index=index)
    told = values(150)
    prefill.put(told, [0, 4, 2, 3, 9])
    prefill.joint.keep(Keep(KEY, "p", (0, 4, 2, 3, 9), 150))
    decode.fetch(prefill, 150, [8, 9, 10, 1, 2], held=32)
    assert not decode.wait(received="d").failed
    np.testing.assert_array_equal(decode.get(150, [8, 9, 10, 1, 2])[:, :, 32:], told[:, :, 32:])
    assert float(decode.tensors[0][8].float().abs().max()) == 0


def test_blocks_that_are_given_up_are_told_only_when_nothing_writes_into_them(made) -> None:
    """A request that ends while its bytes arrive: vLLM gets its blocks when the connection that writes them has let go."""
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(32, "torch.float32"))
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    table, ended = decode.joint.table, threading.Event()
    end = table.end

    def writing(id, epoch):
        ended.set()
        end(id, epoch)
        return False

    table.end = writing
    prefill.joint.leaving.carry = lambda _: None  # it never sends
    decode.fetch(prefill, 20, [4])
    while not decode.joint.arriving.open:
        time.sleep(0.001)
    incoming = next(iter(decode.joint.arriving._in.items()))
    incoming[1].is_direct, incoming[1].reservation = True, object()
    decode.joint.cancel("d")
    assert ended.wait(5)
    time.sleep(0.1)
    assert not decode.joint.take().received
    decode.joint.events.put(Freed(*incoming[0]))
    assert decode.wait(received="d").failed == {"d"}


def test_an_idle_step_waits_for_what_is_open_and_is_woken_by_it(made) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(32, "torch.float32"))
    assert decode.joint.take(patience=3600.0).received == set()  # nothing is open
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    decode.fetch(prefill, 20, [4])
    while not decode.joint.arriving.open:
        time.sleep(0.001)
    assert decode.joint.take(patience=3600.0).received == {"d"}


def test_only_what_is_missing_travels_and_what_is_here_is_left_alone(made) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(64, "torch.float32"))
    told = values(150)
    prefill.put(told, [0, 1, 2, 3, 4])
    prefill.joint.keep(Keep(KEY, "p", (0, 1, 2, 3, 4), 150))
    decode.tensors[0][8] = 3.0
    before = decode.tensors[0][8].clone()
    decode.fetch(prefill, 150, [8, 9, 10], held=64)
    decode.wait(received="d")
    assert torch.equal(decode.tensors[0][8], before)
    np.testing.assert_array_equal(decode.get(150, [8, 9, 10])[:, :, 64:], told[:, :, 64:])
    whole = 5 * 2 * HEADS * 32 * DIM * 4 * LAYERS
    assert decode.joint.counted()["received_bytes"] == whole * 3 / 5


def test_nobody_reads_after_the_lease(made) -> None:
    """The blocks are vLLM's again when the lease ends, and a reader that comes late gets a refusal and no KV."""
    prefill, decode = pair(made, Worker(32, "torch.float32", lease_s=0.05), Worker(32, "torch.float32"))
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    prefill.wait(sent="p")
    prefill.put(values(20, seed=9), [1])  # another request's
    decode.fetch(prefill, 20, [4])
    assert decode.wait(received="d").failed == {"d"}
    assert float(decode.tensors[0][4].abs().max()) == 0
    assert any("stale epoch" in line for line in decode.said)
    assert prefill.joint.counted()["expired"] == 1


def test_a_reader_that_still_waits_keeps_the_lease(made) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32", lease_s=1.5), Worker(32, "torch.float32"))
    told = values(20)
    prefill.put(told, [1])
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    for _ in range(5):
        time.sleep(0.4)
        decode.joint.say(Tell(KEY, (prefill.joint.doorbell,), "keep"))
    decode.fetch(prefill, 20, [4])
    assert not decode.wait(received="d").failed
    np.testing.assert_array_equal(decode.get(20, [4]), told)


def test_a_prompt_may_be_asked_for_before_its_worker_knows_of_it(made) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(32, "torch.float32"))
    told = values(20)
    prefill.put(told, [1])
    decode.fetch(prefill, 20, [4])
    time.sleep(0.2)
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    assert not decode.wait(received="d").failed
    np.testing.assert_array_equal(decode.get(20, [4]), told)


def test_what_nobody_will_read_is_freed_at_once(made) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32", lease_s=60), Worker(32, "torch.float32"))
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    decode.joint.say(Tell(KEY, (prefill.joint.doorbell,), "drop"))
    prefill.wait(sent="p")
    assert prefill.joint.leases == 0


@pytest.mark.parametrize("wrong", ["another epoch", "another id", "twice"])
def test_a_ticket_serves_once_and_under_its_own_epoch(made, wrong) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(32, "torch.float32"))
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    if wrong == "twice":
        decode.fetch(prefill, 20, [4])
        decode.wait(received="d")
        decode.fetch(prefill, 20, [5], request="again")
    else:
        key = (KEY[0], 6) if wrong == "another epoch" else (b"f" * 16, KEY[1])
        decode.fetch(prefill, 20, [5], key=key, request="again")
    assert decode.wait(received="again").failed == {"again"}


@pytest.mark.parametrize(
    "other", [{"model": "other"}, {"weights": "other"}, {"rope": {"rope_theta": 5e5}}, {"kv_heads": 4}, {"layers": 2}]
)
def test_kv_of_something_else_is_refused_with_the_reason(made, other) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(32, "torch.float32"))
    decode.joint.kept_digest = ""
    decode.joint.blocks = replace(decode.blocks, state=replace(FACTS, **other).state())
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    decode.fetch(prefill, 20, [4])
    assert decode.wait(received="d").failed == {"d"}
    assert float(decode.tensors[0].abs().max()) == 0
    prefill.wait(sent="p")
    assert any(name in line for line in decode.said for name in ("identity", "layers"))


def test_a_source_that_is_gone_fails_the_request(made) -> None:
    decode = Worker(32, "torch.float32")
    made.append(decode)
    job = Fetch(KEY, "d", (4,), 20, 0, ranks=(Place("nobody-0", "tcp:127.0.0.1:9"),))
    decode.joint.fetch(job)
    assert decode.wait(received="d").failed == {"d"}
    assert any("source lost" in line for line in decode.said)


def test_a_target_that_never_listens_frees_the_source(made) -> None:
    prefill = Worker(32, "torch.float32", lease_s=0.3)
    made.append(prefill)
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    told = ring(Address.of(prefill.joint.doorbell), Ring("fetch", *KEY, "gone", "tcp:127.0.0.1:9"))
    assert told.refused == ""
    prefill.wait(sent="p")
    assert prefill.joint.leases == 0


def test_an_address_off_this_host_is_not_dialed(made) -> None:
    prefill = Worker(32, "torch.float32")
    made.append(prefill)
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    told = ring(Address.of(prefill.joint.doorbell), Ring("fetch", *KEY, "evil", "tcp:10.1.2.3:9"))
    assert "leaves this host" in told.refused
    assert prefill.joint.leases == 1


def test_an_aborted_request_is_told_and_its_source_freed(made) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(32, "torch.float32"))
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    decode.fetch(prefill, 20, [4])
    decode.joint.cancel("d")
    decode.wait(received="d")  # arrived or failed, but told
    prefill.wait(sent="p", seconds=40)
    assert prefill.joint.leases == 0
    assert decode.joint.counted()["open_transfers"] == 0


def test_sixteen_at_once(made) -> None:
    prefill, decode = pair(made, Worker(32, "torch.bfloat16"), Worker(32, "torch.float16"))
    for number in range(BLOCKS):
        prefill.put(values(30, seed=number), [number])
        prefill.joint.keep(Keep((bytes([number]) * 16, 1) if number else KEY, f"p{number}", (number,), 30))
    for number in range(BLOCKS):
        key = (bytes([number]) * 16, 1) if number else KEY
        decode.fetch(prefill, 30, [BLOCKS - 1 - number], key=key, request=f"d{number}")
    for number in range(BLOCKS):
        decode.wait(received=f"d{number}")
        prefill.wait(sent=f"p{number}")
        np.testing.assert_array_equal(decode.get(30, [BLOCKS - 1 - number]), values(30, seed=number))
    assert not decode.done.failed


@pytest.mark.parametrize("tokens", [20, 300])
def test_a_decode_worker_that_ends_frees_the_source_at_once(made, tokens) -> None:
    """Wherever the handoff is when the connection ends, and long before the lease does."""
    prefill, decode = pair(made, Worker(32, "torch.float32", lease_s=60), Worker(32, "torch.float32"))
    blocks = list(range(-(-tokens // 32)))
    prefill.joint.keep(Keep(KEY, "p", tuple(blocks), tokens))
    decode.fetch(prefill, tokens, blocks)
    while (
        any(not each.open for each in prefill.joint.leaving.prompts.values()) or not prefill.joint.leaving.source.open
    ):
        if "p" in prefill.joint.take().sent:
            return  # it was quicker than the end
        time.sleep(0.001)
    decode.joint.peers.close()
    prefill.wait(sent="p", seconds=20)
    assert prefill.joint.leases == 0


def test_a_prefill_worker_that_ends_in_the_transfer_fails_the_request(made) -> None:
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(32, "torch.float32", wait_s=20))
    prefill.joint.keep(Keep(KEY, "p", tuple(range(10)), 300))
    read = prefill.blocks.read
    reading = threading.Event()

    def slow(layer, blocks, after=None):
        reading.set()
        time.sleep(0.2)
        return read(layer, blocks)

    prefill.joint.blocks = SimpleNamespace(
        state=prefill.blocks.state,
        heads_total=HEADS,
        like=prefill.blocks.like,
        read=slow,
        narrowed=lambda *_: prefill.joint.blocks,
    )
    prefill.joint.kept_digest = ""
    decode.fetch(prefill, 300, list(range(10)))
    assert reading.wait(10)
    prefill.joint.peers.close()
    assert decode.wait(received="d").failed == {"d"}
    assert all(float(tensor.abs().max()) == 0 for tensor in decode.tensors)


def test_the_end_of_one_connection_is_not_that_of_the_next(made) -> None:
    """The end of an old connection is told late, when another prompt is on its way over a new one already."""
    prefill, decode = pair(made, Worker(32, "torch.float32"), Worker(64, "torch.bfloat16", speaker=Speaker.DECODE))
    told, other = values(40), (KEY[0], KEY[1] + 1)
    prefill.put(told, [5, 2])
    prefill.joint.keep(Keep(KEY, "p", (5, 2), 40))
    decode.fetch(prefill, 40, [3])
    assert not decode.wait(received="d").failed
    old = prefill.joint.peers._links[decode.joint.rank.name, True]
    decode.joint.peers.drop(prefill.joint.rank.name, False)
    assert old.ended.wait(5)
    send = prefill.joint.leaving._send

    def late(key, out) -> None:
        prefill.joint._on(Lost(decode.joint.rank.name, True, link=old.number))
        send(key, out)

    prefill.joint.leaving._send = late  # type: ignore[method-assign]
    prefill.joint.keep(Keep(other, "q", (5, 2), 40))
    decode.fetch(prefill, 40, [4], key=other, request="e")
    assert not decode.wait(received="e").failed
    np.testing.assert_array_equal(decode.get(40, [4]), told)
    prefill.wait(sent="q")
    assert prefill.joint.leases == 0
