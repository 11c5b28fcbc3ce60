"""What is counted of answers on their way, and what is read of a worker's own counters."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.integrations.vllm.counts import COUNTERS
from diptych.runtime.remote.reading import Moved, Reading, read
from diptych.runtime.remote.tally import MOST_HELD, Tally, with_usage
from diptych.runtime.remote.watching import Watching

ASKED = {"stream": True, "stream_options": {"include_usage": True}}


def event(**told) -> bytes:
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def choice(text: str, reason: str | None = None) -> bytes:
    return event(choices=[{"text": text, "finish_reason": reason}])


USAGE = event(choices=[], usage={"prompt_tokens": 40, "completion_tokens": 3})
DONE = b"data: [DONE]\n\n"
STREAM = choice('"usage"') + choice("b\n\ndata: x") + choice("c", "length") + USAGE + DONE


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_cut_anywhere_is_counted_and_passed_on_alike(cuts) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(places)]
    for body, shown in (({"stream": True}, STREAM.replace(USAGE, b"")), (ASKED, STREAM)):
        tally = Tally(10.0, body)
        told = b"".join(tally.streamed(piece, 11.0 + n) for n, piece in enumerate(pieces)) + tally.rest()
        assert told == shown
        assert (tally.prompt_tokens, tally.output_tokens, tally.ended) == (40, 3, "length")
        assert not tally.is_broken


def test_times_are_those_of_the_first_and_last_token() -> None:
    tally = Tally(10.0, ASKED)
    for piece, at in ((choice("a"), 11.0), (choice("b"), 11.5), (choice("c", "stop") + USAGE, 12.0), (DONE, 20.0)):
        tally.streamed(piece, at)
    assert (tally.first, tally.last, tally.tpot) == (11.0, 12.0, 0.5)


RUBBISH = (
    b"\n\n\n\n",
    b"data: {\n\n",
    b'data: {"usage": 3}\n\n',
    b'data: {"usage": {"prompt_tokens": -1}}\n\n',
    b"\xff\xfe\n\n",
    b'data: "usage"\n\n',
    b"data: " + b"[" * 5000 + b'"usage"\n\n',
)


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_rubbish_is_passed_on_and_counts_nothing(rubbish: bytes) -> None:
    tally = Tally(0.0, ASKED)
    assert tally.streamed(rubbish, 1.0) + tally.rest() == rubbish
    assert (tally.prompt_tokens, tally.output_tokens) == (0, 0)


def test_an_event_without_end_is_not_held_for_ever() -> None:
    tally = Tally(0.0, ASKED)
    held = tally.streamed(b"x" * (MOST_HELD + 1), 1.0)
    assert held.startswith(b"xxx")
    assert tally.rest() == b""


def test_a_streams_error_is_no_finished_answer() -> None:
    tally = Tally(0.0, ASKED)
    tally.streamed(choice("a") + event(error={"message": "gone"}), 1.0)
    assert tally.is_broken


def test_only_a_stream_is_asked_for_its_usage() -> None:
    assert with_usage({"a": 1}) == {"a": 1}
    assert with_usage({"stream": True, "stream_options": {"x": 1}})["stream_options"] == {"x": 1, "include_usage": True}
    assert with_usage({"stream": True, "stream_options": None})["stream_options"] == {"include_usage": True}


VLLM = """\
# HELP vllm:num_requests_running x
vllm:nixl_xfer_time_seconds_count{engine="0",model_name="m"} 6.0
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="m"} 24.5
vllm:nixl_bytes_transferred_count{engine="0",model_name="m"} 6.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 5.308416e+07
vllm:nixl_bytes_transferred_created{engine="0",model_name="m"} 1.79599309841e+09
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="waiting_to_start"} 0.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="in_progress"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 80.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 16.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 517.0
vllm:generation_tokens_total{engine="0",model_name="m"} 162.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 160.0
vllm:cache_config_info{block_size="128",cache_dtype="auto",num_cpu_blocks="None",num_gpu_blocks="182"} 1.0
"""
"""Lines of a decode worker of vLLM 0.32 between two answers."""


def test_vllms_own_numbers() -> None:
    found = read("vllm", VLLM)
    load = found.load
    assert (load.queued, load.running, load.handing) == (3, 1, 1)
    assert (load.blocks, load.blocks_free, load.steps) == (182, 136, 160)
    assert (load.prompt_tokens, load.output_tokens, load.prefix_asked, load.prefix_found) == (517, 162, 80, 16)
    assert found.moved == Moved(6, 53_084_160, 24.5)


OURS = {
    "received": 3,
    "received_bytes": 4096,
    "seconds": 0.5,
    "conversions": 2,
    "refused": 4,
    "failed": 5,
    "expired": 6,
}


def test_our_connectors_numbers_inside_vllm() -> None:
    assert set(OURS) <= set(COUNTERS)
    text = "".join(f'vllm:diptych_{name}_total{{engine="0"}} {value}\n' for name, value in OURS.items())
    found = read("vllm", text + 'vllm:diptych_open_leases{engine="0"} 1\n')
    assert found.moved == Moved(*OURS.values())
    assert found.load.leases == 1


def test_what_came_since_a_look_and_since_a_new_start() -> None:
    before, after = Moved(*OURS.values()), Moved(*(2 * value for value in OURS.values()))
    assert after.since(before) == before
    assert before.since(after) == before


def test_handoffs_that_came_to_nothing_are_decisions_of_the_gateway() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    watching = Watching(SimpleNamespace(counts=counts), None, None, None)  # type: ignore[arg-type]
    worker = SimpleNamespace(up=True, name="p", role="prefill", hears=lambda load, now: None)
    for before, after in ((Moved(), Moved(expired=2)), (Moved(expired=2), Moved(expired=3, failed=1))):
        watching._note(worker, Reading(read("vllm", "").load, after), before)  # type: ignore[arg-type]
    assert counts == {("handoff", "expired at prefill"): 3, ("handoff", "failed at prefill"): 1}


def test_sglangs_units_are_turned_into_ours() -> None:
    text = """sglang:num_queue_reqs{a="b"} 2.0
sglang:num_decode_transfer_queue_reqs 3.0
sglang:max_total_num_tokens 1000.0
sglang:num_used_tokens 400.0
sglang:kv_transfer_total_mb_count 2.0
sglang:kv_transfer_total_mb_sum 10.0
sglang:kv_transfer_latency_ms_sum 250.0
"""
    found = read("sglang", text)
    assert (found.load.queued, found.load.handing, found.load.blocks, found.load.blocks_free) == (2, 3, 1000, 600)
    assert found.moved == Moved(2, 10e6, 0.25)


NO_NUMBERS = (
    "",
    "vllm:num_requests_running NaN",
    "vllm:num_requests_running -5",
    "vllm:x",
    "\0",
    "vllm:generation_tokens_total 1e300",
)


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_numbers_that_are_none_are_bounded(text: str) -> None:
    load = read("vllm", text + "\n").load
    assert 0 <= load.running <= 1 << 53
    assert 0 <= load.output_tokens <= 1 << 53


def test_a_worker_that_was_started_anew_counts_from_nothing() -> None:
    assert Moved(2, 20, 1.0).since(Moved(9, 90, 4.0)) == Moved(2, 20, 1.0)
    assert Moved(9, 90, 4.0, 3).since(Moved(2, 20, 1.0, 1)) == Moved(7, 70, 3.0, 2)
