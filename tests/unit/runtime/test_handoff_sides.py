"""Source and target alone: what each does with the late, the lost, and the overdue."""

import pytest

from diptych.boundary.messages import (
    Abort,
    Accept,
    Commit,
    Done,
    Offer,
    Reason,
    Reject,
    Release,
    Renew,
    Reserve,
    Validated,
    Verdict,
)
from diptych.design.boundary import Ownership
from diptych.runtime.handoff.deeds import (
    Activate,
    Count,
    FreeSource,
    FreeTarget,
    Handed,
    MakeRoom,
    Prefill,
    Report,
    Say,
    Send,
)
from diptych.runtime.handoff.source import DAMAGED_AGAIN, Parcel, Source
from diptych.runtime.handoff.target import BEATS, Phase, Target

ID, LEASE, WAIT = bytes(range(16)), 600, 5000


def parcel(ownership=Ownership.PULL, epoch=1):
    return Parcel(ID, epoch, "d", ownership, 100, 4096, b"state", LEASE, WAIT)


def moving(ownership=Ownership.PULL):
    source = Source()
    source.submit(parcel(ownership), 0)
    if ownership is Ownership.PUSH:
        source.heard("d", ID, 1, Accept(4096), 1)
        source.produced(ID, 1, 42, 2)
    else:
        source.produced(ID, 1, 42, 1)
        source.heard("d", ID, 1, Accept(4096), 2)
    return source


def test_push_reserves_before_it_computes_and_pull_offers_after():
    source = Source()
    assert source.submit(parcel(Ownership.PUSH), 0) == [Say(ID, 1, "d", Reserve(b"state", 100, 4096, LEASE))]
    assert source.heard("d", ID, 1, Accept(4096), 1) == [Prefill(ID, 1)]
    assert source.produced(ID, 1, 42, 2) == [Send(ID, 1, "d")]
    pull = Source()
    assert pull.submit(parcel(), 0) == [Prefill(ID, 1)]
    assert pull.produced(ID, 1, 42, 1) == [Say(ID, 1, "d", Offer(b"state", 100, 4096, LEASE))]
    assert pull.heard("d", ID, 1, Accept(4096), 2) == [Send(ID, 1, "d")]


@pytest.mark.parametrize("ownership", list(Ownership))
def test_the_source_is_free_when_the_target_has_it(ownership):
    source = moving(ownership)
    assert source.sent(ID, 1, 3, 4096) == [Say(ID, 1, "d", Done(3, 4096, 42))]
    source.heard("d", ID, 1, Validated(Verdict.ARRIVED, 4096, 0), 3)
    assert source.pins == 1
    assert source.heard("d", ID, 1, Release(), 4) == [FreeSource(ID, 1), Handed(ID, 1)]
    assert (source.open, source.pins, source.transfers) == (0, 0, 0)


def test_a_release_implies_a_commit_that_was_lost():
    assert Handed(ID, 1) in moving().heard("d", ID, 1, Release(), 3)


def test_damage_is_sent_again_so_often_and_then_given_up():
    source = moving()
    for _ in range(DAMAGED_AGAIN):
        assert source.heard("d", ID, 1, Validated(Verdict.DAMAGED, 1, 4095), 3) == [Send(ID, 1, "d")]
    deeds = source.heard("d", ID, 1, Validated(Verdict.DAMAGED, 1, 4095), 3)
    assert FreeSource(ID, 1) in deeds
    assert Report(ID, 1, str(Reason.CORRUPT)) in deeds


def test_a_lease_runs_out_unless_it_is_renewed():
    source = moving()
    source.heard("d", ID, 1, Renew(LEASE), 500)
    assert source.tick(LEASE + 1) == []
    deeds = source.tick(500 + LEASE)
    assert deeds == [FreeSource(ID, 1), Say(ID, 1, "d", Abort(Reason.EXPIRED)), Report(ID, 1, str(Reason.EXPIRED))]
    assert source.open == 0


def test_a_target_cannot_ask_for_a_longer_lease_than_was_granted():
    source = moving()
    source.heard("d", ID, 1, Renew(10 * LEASE), 100)
    assert source.tick(100 + LEASE) != []


def test_nobody_but_its_target_and_epoch_moves_a_handoff():
    source = moving()
    assert source.heard("other", ID, 1, Release(), 3) == []
    assert source.heard("d", ID, 2, Release(), 3) == []
    assert source.heard("d", bytes(16), 1, Release(), 3) == []
    assert source.open == 1


def test_a_lost_target_is_reported_and_a_committed_one_is_not():
    assert Report(ID, 1, str(Reason.TARGET_LOST)) in moving().lost("d", 3)
    committed = moving()
    committed.heard("d", ID, 1, Commit(), 3)
    assert committed.lost("d", 4) == [FreeSource(ID, 1), Handed(ID, 1)]


def test_a_newer_epoch_ends_the_older_one():
    source = moving()
    deeds = source.submit(parcel(epoch=2), 5)
    assert deeds[0] == FreeSource(ID, 1)
    assert source.submit(parcel(epoch=2), 6) == []
    assert source.submit(parcel(epoch=1), 6) == []


def filling():
    target = Target(WAIT)
    target.expect(ID, 1, "p", 0)
    target.heard("p", ID, 1, Offer(b"state", 100, 4096, LEASE), 1)
    target.room(ID, 1, 0, 4096, 2)
    return target


@pytest.mark.parametrize("first", ["gateway", "source"])
def test_room_is_asked_for_when_both_halves_are_known(first):
    target = Target(WAIT)
    halves = [
        lambda: target.expect(ID, 1, "p", 0),
        lambda: target.heard("p", ID, 1, Reserve(b"s", 100, 4096, LEASE), 0),
    ]
    if first == "source":
        halves.reverse()
    assert halves[0]() == []
    assert target.reservations == 0
    assert MakeRoom(ID, 1, 100, 4096, b"state" if first == "none" else b"s") in halves[1]()


def test_the_target_counts_before_it_takes_over():
    target = filling()
    assert target.reservations == 1
    assert target.heard("p", ID, 1, Done(3, 4096, 42), 3) == [Count(ID, 1)]
    deeds = target.counted(ID, 1, 4096, 0)
    assert deeds[0] == Activate(ID, 1, 42)
    assert [deed.message for deed in deeds[1:]] == [Validated(Verdict.ARRIVED, 4096, 0), Commit(), Release()]
    assert (target.open, target.reservations) == (0, 0)


def test_what_is_missing_is_asked_for_again_and_never_decoded():
    target = filling()
    target.heard("p", ID, 1, Done(3, 4096, 42), 3)
    assert target.counted(ID, 1, 4000, 96) == [Say(ID, 1, "p", Validated(Verdict.DAMAGED, 4000, 96))]
    assert target.phase(ID) is Phase.FILLING


def test_the_late_find_nothing_and_leave_nothing():
    target = filling()
    target.cancelled(ID, 1)
    assert target.heard("p", ID, 1, Reserve(b"s", 100, 4096, LEASE), 9) == [Say(ID, 1, "p", Reject(Reason.STALE_EPOCH))]
    assert target.room(ID, 1, 0, 4096, 9) == [FreeTarget(ID, 1)]
    assert target.counted(ID, 1, 4096, 0) == []
    assert Report(ID, 1, str(Reason.STALE_EPOCH), retry=False) in target.expect(ID, 1, "p", 9)
    assert target.open == 0


def test_a_cancel_that_overtakes_its_request_is_remembered():
    target = Target(WAIT)
    target.cancelled(ID, 3)
    assert target.heard("p", ID, 3, Offer(b"s", 1, 1, LEASE), 1) == [Say(ID, 3, "p", Reject(Reason.STALE_EPOCH))]
    assert target.expect(ID, 4, "p", 1) == []


def test_heartbeats_go_on_while_it_waits_and_fills():
    target = filling()
    beats = [deed for deed in target.tick(2 + LEASE // BEATS) if isinstance(deed, Say)]
    assert [beat.message for beat in beats] == [Renew(LEASE)]


def test_a_lost_source_frees_what_it_was_filling():
    target = filling()
    assert target.lost("p") == [FreeTarget(ID, 1), Report(ID, 1, str(Reason.SOURCE_LOST))]
    assert target.lost("p") == []


def test_waiting_ends():
    target = Target(WAIT)
    target.expect(ID, 1, "p", 0)
    assert target.tick(WAIT) == [Report(ID, 1, str(Reason.EXPIRED))]
    caller = Target(WAIT)
    caller.heard("p", ID, 1, Offer(b"s", 1, 1, LEASE), 0)
    assert caller.tick(WAIT) == [Say(ID, 1, "p", Reject(Reason.EXPIRED))]


def test_another_worker_cannot_fill_what_the_gateway_gave_to_one():
    target = Target(WAIT)
    target.expect(ID, 1, "p", 0)
    assert target.heard("thief", ID, 1, Reserve(b"s", 1, 1, LEASE), 1) == [Say(ID, 1, "thief", Reject(Reason.UNKNOWN))]
    early = Target(WAIT)
    early.heard("thief", ID, 1, Reserve(b"s", 1, 1, LEASE), 0)
    assert early.expect(ID, 1, "p", 1) == [Say(ID, 1, "thief", Reject(Reason.UNKNOWN))]
    assert early.phase(ID) is Phase.EXPECTED
