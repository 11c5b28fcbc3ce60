"""The scheduler's side, with requests as vLLM describes them: what the workers are told, and when."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from diptych.integrations.vllm import scheduling
from diptych.integrations.vllm.scheduling import SchedulerSide
from diptych.integrations.vllm.settings import Settings
from diptych.integrations.vllm.ticket import Place, digest_of

PROMPT = list(range(100))


@dataclass
class Request:
    """The fields of vLLM's request that are read."""

    request_id: str = "r"
    prompt_token_ids: list[int] = field(default_factory=lambda: list(PROMPT))
    kv_transfer_params: dict | None = None
    num_computed_tokens: int = 100
    status: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="FINISHED_LENGTH_CAPPED"))

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)


def side(**settings) -> SchedulerSide:
    made = SchedulerSide(1, Settings.of(settings))
    made.ranks = (Place("p-0", "tcp:127.0.0.1:1"),)
    return made


def blocks(*ids: int) -> SimpleNamespace:
    return SimpleNamespace(get_block_ids=lambda: (list(ids),))


def step(of: SchedulerSide, scheduled: dict[str, int] | None = None, ids: tuple[int, ...] = ()) -> scheduling.Step:
    return of.step(scheduled or {}, lambda _: (list(ids),))


def ticket_params(**settings) -> dict:
    keeps, params = side(**settings).finished(Request(kv_transfer_params={"do_remote_decode": True}), [4, 7])
    assert keeps
    return params


def test_a_prefill_that_is_asked_for_is_kept_and_named() -> None:
    prefill = side()
    keeps, params = prefill.finished(Request(kv_transfer_params={"do_remote_decode": True}), [4, 7])
    told = step(prefill)
    assert keeps
    assert [(each.request, each.blocks, each.tokens) for each in told.keep] == [("r", (4, 7), 100)]
    assert params["do_remote_prefill"]
    assert params["diptych"]["id"] == told.keep[0].key[0].hex()
    assert step(prefill).keep == []


@pytest.mark.parametrize(
    "other",
    [
        {"kv_transfer_params": None},
        {"kv_transfer_params": {"do_remote_decode": False}},
        {"status": SimpleNamespace(name="FINISHED_ABORTED")},
        {"num_computed_tokens": 99},
    ],
)
def test_what_is_not_whole_or_not_asked_for_is_not_kept(other) -> None:
    prefill = side()
    given = {"kv_transfer_params": {"do_remote_decode": True}, **other}
    assert prefill.finished(Request(**given), [4]) == (False, None)
    assert step(prefill).keep == []


def test_two_prompts_never_share_a_handoff() -> None:
    prefill = side()
    for _ in range(50):
        prefill.finished(Request(kv_transfer_params={"do_remote_decode": True}), [4])
    assert len({each.key for each in step(prefill).keep}) == 50


def test_decode_fetches_once_what_is_missing() -> None:
    decode, request = side(), Request(kv_transfer_params=ticket_params())
    assert decode.matched(request, 64) == (36, True)
    assert decode.matched(request, 64) == (36, True)
    decode.allocated(request, blocks(1, 2), 36)
    job, *rest = step(decode).fetch
    assert (job.tokens, job.held_tokens, job.blocks, job.refused, rest) == (100, 64, (1, 2), "", [])
    assert job.ranks == (Place("p-0", "tcp:127.0.0.1:1"),)
    assert decode.matched(request, 0) == (0, False)
    decode.allocated(request, blocks(1, 2, 3), 0)
    told = step(decode)
    assert (told.fetch, told.tell) == ([], [])


def test_a_prompt_that_is_here_already_is_dropped_there() -> None:
    decode, request = side(), Request(kv_transfer_params=ticket_params())
    assert decode.matched(request, 100) == (0, False)
    decode.allocated(request, blocks(1, 2), 0)
    assert [each.deed for each in step(decode).tell] == ["drop"]


@pytest.mark.parametrize("wrong", ["tokens", "adapter", "image", "ticket"])
def test_a_ticket_that_does_not_fit_is_fetched_as_refused(wrong) -> None:
    """So that vLLM fails or recomputes it as its policy says, and never decodes it."""
    params = {"do_remote_prefill": True, "diptych": {"id": "x"}} if wrong == "ticket" else ticket_params()
    request = Request(kv_transfer_params=params)
    match wrong:
        case "tokens":
            request.prompt_token_ids[-1] = 5
        case "adapter":
            request.lora_request = SimpleNamespace(lora_name="other")
        case "image":
            request.mm_features = [SimpleNamespace(identifier="a hash")]
    decode = side()
    decode.allocated(request, blocks(1), decode.matched(request, 0)[0])
    assert step(decode).fetch[0].refused


def test_a_request_that_waits_keeps_its_lease_until_it_has_room(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(scheduling, "time", SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns))
    decode, request = side(), Request(kv_transfer_params=ticket_params(lease_s=6))
    decode.waits(request)
    for at, told in ((0.9, []), (1.1, ["keep"]), (1.9, []), (2.2, ["keep"])):
        now[0] = at
        assert [each.deed for each in step(decode).tell] == told
    decode.allocated(request, blocks(1), 100)
    now[0] = 9
    assert step(decode).tell == []


def test_an_abort_ends_what_is_open() -> None:
    before, during, after = side(), side(), side()
    waiting, loading, loaded = (Request(kv_transfer_params=ticket_params()) for _ in range(3))
    before.waits(waiting)
    assert before.finished(waiting, []) == (False, None)
    assert [each.deed for each in step(before).tell] == ["drop"]
    during.allocated(loading, blocks(1), 100)
    step(during)
    during.finished(loading, [1])
    assert step(during).cancel == ["r"]
    after.allocated(loaded, blocks(1), 100)
    after.loading.clear()
    step(after)
    after.finished(loaded, [1])
    assert step(after).cancel == []


def push(**settings) -> SchedulerSide:
    return side(ownership="push", port=9000, **settings)


PUSHED = {"do_remote_decode": True, "transfer_id": "xfer-0123456789"}


def test_a_prompt_that_is_pushed_waits_until_every_rank_has_room() -> None:
    prefill, request = push(), Request(kv_transfer_params=dict(PUSHED), num_computed_tokens=0)
    assert prefill.matched(request, 0) == (None, False)
    assert prefill.matched(request, 0) == (None, False)
    (make,) = step(prefill).make
    assert (make.request, make.tokens, make.digest) == ("r", 100, digest_of(PROMPT, [""]))
    assert prefill.is_making
    prefill.heard({"other": 1}, ())
    assert prefill.matched(request, 0) == (None, False)
    prefill.heard({"r": 1}, ())
    assert prefill.matched(request, 0) == (0, False)
    assert step(prefill).make == []


def test_what_each_step_has_made_is_told_with_its_blocks() -> None:
    prefill, request = push(), Request(kv_transfer_params=dict(PUSHED), num_computed_tokens=0)
    request.status.name = "RUNNING"
    prefill.matched(request, 0)
    prefill.heard({"r": 1}, ())
    (first,) = step(prefill, {"r": 60}, (4,)).made
    request.num_computed_tokens = 60
    (second,) = step(prefill, {"r": 40, "other": 5}, (4, 7)).made
    assert [(each.blocks, each.tokens) for each in (first, second)] == [((4,), 60), ((4, 7), 100)]
    request.num_computed_tokens = 100
    assert step(prefill, {"r": 1}, (4, 7)).made == []  # it decodes
    request.status.name = "FINISHED_LENGTH_CAPPED"
    assert prefill.finished(request, [4, 7]) == (True, None)
    told = step(prefill)
    assert [(each.key, each.blocks) for each in told.keep] == [(first.key, (4, 7))]
    assert not prefill.is_making


@pytest.mark.parametrize("end", ["forsaken", "aborted", "preempted"])
def test_a_prompt_that_cannot_be_pushed_is_computed_for_nobody(end) -> None:
    prefill, request = push(), Request(kv_transfer_params=dict(PUSHED), num_computed_tokens=0)
    prefill.matched(request, 0)
    step(prefill)
    if end == "forsaken":
        prefill.heard({}, {"r"})
        assert prefill.matched(request, 0) == (0, False)
        assert step(prefill, {"r": 100}, (4,)).made == []
        request.num_computed_tokens = 100
        assert prefill.finished(request, [4]) == (True, None)
        assert step(prefill).halt == [("r", True)]
        return
    request.status.name = "FINISHED_ABORTED" if end == "aborted" else "PREEMPTED"
    if end == "aborted":
        assert prefill.finished(request, []) == (False, None)
    told = step(prefill)
    assert (told.halt, told.made, told.keep) == ([("r", False)], [], [])
    if end == "preempted":
        assert prefill.matched(request, 0) == (0, False)
        request.status.name = "FINISHED_STOPPED"
        assert prefill.finished(request, [4]) == (False, None)


def test_decode_asks_at_the_meeting_before_there_is_a_ticket() -> None:
    params = {
        "do_remote_prefill": True,
        "transfer_id": "xfer-0123456789",
        "remote_bootstrap_addr": "http://127.0.0.1:9000",
    }
    prefill, decode, request = push(), side(), Request(kv_transfer_params=params)
    assert decode.matched(request, 0) == (100, True)
    decode.allocated(request, blocks(1, 2), 100)
    (job,) = step(decode).fetch
    prefill.matched(Request(kv_transfer_params=dict(PUSHED)), 0)
    (make,) = step(prefill).make
    assert (job.key, job.digest, job.meeting, job.refused) == (make.key, make.digest, "tcp:127.0.0.1:9000", "")


@pytest.mark.parametrize("at", ["", "http://10.1.2.3:9", "http://127.0.0.1", "file:///x"])
def test_a_meeting_elsewhere_is_refused(at) -> None:
    params = {"do_remote_prefill": True, "transfer_id": "xfer-0123456789", "remote_bootstrap_addr": at}
    decode, request = side(), Request(kv_transfer_params=params)
    decode.allocated(request, blocks(1), 100)
    assert step(decode).fetch[0].refused


def test_a_step_without_tokens_is_known() -> None:
    assert step(side()).is_idle
    assert not step(side(), {"other": 1}).is_idle


def test_a_worker_that_pulls_keeps_nothing_that_was_to_be_pushed() -> None:
    prefill, request = side(), Request(kv_transfer_params=dict(PUSHED))
    assert prefill.matched(request, 0) == (0, False)
    assert prefill.finished(request, [4]) == (False, None)
