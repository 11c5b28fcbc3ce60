"""One request over several attempts: what reaches the client, and what a worker of an older attempt can no longer do."""

from diptych.runtime.gateway.attempts import Attempts, Deliver, Finish, Refuse, Route, Start, Stop
from diptych.runtime.messages import Chosen
from diptych.serving.fallback import Way

ID = bytes(16)


def words(*tokens):
    return tuple(Chosen(token) for token in tokens)


def attempts(*routes):
    turns = iter(routes)
    return Attempts(lambda id, losses: next(turns))


APART = Route(Way.APART, "p", "d")


def kinds(deeds, kind):
    return [deed for deed in deeds if isinstance(deed, kind)]


def test_both_halves_start_decode_first():
    started = kinds(attempts(APART).submit(ID, 5, 1000, 0), Start)
    assert [(each.worker, each.half, each.peer, each.epoch) for each in started] == [
        ("d", "decode", "p", 1),
        ("p", "prefill", "d", 1),
    ]


def test_the_first_token_comes_from_whoever_is_sooner_and_once():
    ledger = attempts(APART)
    ledger.submit(ID, 5, 1000, 0)
    assert kinds(ledger.tokens("p", ID, 1, 0, words(7), "", 1), Deliver) == [Deliver(ID, words(7))]
    assert ledger.tokens("d", ID, 1, 0, words(7), "", 2) == []
    assert kinds(ledger.tokens("d", ID, 1, 0, words(7, 8), "", 3), Deliver) == [Deliver(ID, words(8))]


def test_an_end_comes_with_its_tokens():
    ledger = attempts(APART)
    ledger.submit(ID, 5, 1000, 0)
    deeds = ledger.tokens("d", ID, 1, 0, words(7, 8), "stop", 1)
    assert kinds(deeds, Finish) == [Finish(ID, "stop")]
    assert ledger.open == 0


def test_one_token_that_prefill_chose_may_be_the_whole_answer():
    ledger = attempts(APART)
    ledger.submit(ID, 1, 1000, 0)
    deeds = ledger.tokens("p", ID, 1, 0, words(7), "", 1)
    assert kinds(deeds, Finish) == [Finish(ID, "length")]
    assert kinds(deeds, Stop) == [Stop(ID, 1, "d")]


def test_a_gap_is_never_shown():
    ledger = attempts(APART, Route(Way.ON_DECODE, "", "d"))
    ledger.submit(ID, 5, 1000, 0)
    ledger.tokens("d", ID, 1, 0, words(7), "", 1)
    deeds = ledger.tokens("d", ID, 1, 3, words(9), "", 2)
    assert kinds(deeds, Deliver) == []
    (again,) = kinds(deeds, Start)
    assert (again.half, again.epoch) == ("whole", 2)
    assert ledger.given(ID) == (7,)


def test_what_an_older_attempt_says_is_not_heard():
    ledger = attempts(APART, Route(Way.APART, "p2", "d2"))
    ledger.submit(ID, 5, 1000, 0)
    ledger.failed("p", ID, 1, "expired", True, 0, 1)
    assert ledger.tokens("d", ID, 1, 0, words(7), "", 2) == []
    assert ledger.failed("d", ID, 1, "expired", True, 0, 2) == []
    assert kinds(ledger.tokens("d2", ID, 2, 0, words(7), "", 3), Deliver) == [Deliver(ID, words(7))]


def test_a_source_that_is_done_is_not_missed_and_a_target_is():
    ledger = attempts(APART, APART)
    ledger.submit(ID, 5, 1000, 0)
    ledger.tokens("d", ID, 1, 0, words(7, 8), "", 1)
    assert ledger.worker_lost("p", 2) == []
    assert kinds(ledger.worker_lost("d", 3), Start)


def test_what_cannot_succeed_elsewhere_is_refused_at_once():
    ledger = attempts(APART)
    ledger.submit(ID, 5, 1000, 0)
    deeds = ledger.failed("p", ID, 1, "too large", False, 0, 1)
    assert kinds(deeds, Refuse) == [Refuse(ID, "too large")]
    assert kinds(deeds, Stop) == [Stop(ID, 1, "d")]


def test_a_held_request_tries_again_and_gives_up_at_its_deadline():
    ledger = Attempts(lambda id, losses: Route(Way.HOLD), hold_ms=50)
    assert ledger.submit(ID, 5, 1000, 0) == []
    assert ledger.held == 1
    assert ledger.tick(60) == []
    assert kinds(ledger.tick(1000), Refuse) == [Refuse(ID, "deadline")]


def test_a_client_that_leaves_stops_both_halves():
    ledger = attempts(APART)
    ledger.submit(ID, 5, 1000, 0)
    assert {each.worker for each in kinds(ledger.cancelled(ID), Stop)} == {"p", "d"}
    assert ledger.cancelled(ID) == []
