"""The scheduler's side, with requests as vLLM describes them: what the workers are told, and when."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from diptych.integrations.vllm import scheduling
from diptych.integrations.vllm.scheduling import SchedulerSide
from diptych.integrations.vllm.settings import Settings
from diptych.integrations.vllm.ticket import Place

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


def ticket_params(**settings) -> dict:
    keeps, params = side(**settings).finished(Request(kv_transfer_params={"do_remote_decode": True}), [4, 7])
    assert keeps
    return params


def test_a_prefill_that_is_asked_for_is_kept_and_named() -> None:
    prefill = side()
    keeps, params = prefill.finished(Request(kv_transfer_params={"do_remote_decode": True}), [4, 7])
    step = prefill.step()
    assert keeps
    assert [(each.request, each.blocks, each.tokens) for each in step.keep] == [("r", (4, 7), 100)]
    assert params["do_remote_prefill"]
    assert params["diptych"]["id"] == step.keep[0].key[0].hex()
    assert prefill.step().keep == []


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
    assert prefill.step().keep == []


def test_two_prompts_never_share_a_handoff() -> None:
    prefill = side()
    for _ in range(50):
        prefill.finished(Request(kv_transfer_params={"do_remote_decode": True}), [4])
    assert len({each.key for each in prefill.step().keep}) == 50


def test_decode_fetches_once_what_is_missing() -> None:
    decode, request = side(), Request(kv_transfer_params=ticket_params())
    assert decode.matched(request, 64) == (36, True)
    assert decode.matched(request, 64) == (36, True)
    decode.allocated(request, blocks(1, 2), 36)
    (job, ticket), *rest = decode.step().fetch
    assert (job.tokens, job.held_tokens, job.blocks, job.refused, rest) == (100, 64, (1, 2), "", [])
    assert ticket.key == job.key
    assert decode.matched(request, 0) == (0, False)
    decode.allocated(request, blocks(1, 2, 3), 0)
    step = decode.step()
    assert (step.fetch, step.tell) == ([], [])


def test_a_prompt_that_is_here_already_is_dropped_there() -> None:
    decode, request = side(), Request(kv_transfer_params=ticket_params())
    assert decode.matched(request, 100) == (0, False)
    decode.allocated(request, blocks(1, 2), 0)
    assert [each.deed for each, _ in decode.step().tell] == ["drop"]


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
    assert decode.step().fetch[0][0].refused


def test_a_request_that_waits_keeps_its_lease_until_it_has_room(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(scheduling, "time", SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns))
    decode, request = side(), Request(kv_transfer_params=ticket_params(lease_s=6))
    decode.waits(request)
    for at, told in ((0.9, []), (1.1, ["keep"]), (1.9, []), (2.2, ["keep"])):
        now[0] = at
        assert [each.deed for each, _ in decode.step().tell] == told
    decode.allocated(request, blocks(1), 100)
    now[0] = 9
    assert decode.step().tell == []


def test_an_abort_ends_what_is_open() -> None:
    before, during, after = side(), side(), side()
    waiting, loading, loaded = (Request(kv_transfer_params=ticket_params()) for _ in range(3))
    before.waits(waiting)
    assert before.finished(waiting, []) == (False, None)
    assert [each.deed for each, _ in before.step().tell] == ["drop"]
    during.allocated(loading, blocks(1), 100)
    during.step()
    during.finished(loading, [1])
    assert during.step().cancel == ["r"]
    after.allocated(loaded, blocks(1), 100)
    after.loading.clear()
    after.step()
    after.finished(loaded, [1])
    assert after.step().cancel == []
