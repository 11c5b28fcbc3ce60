"""Connections between workers that damage, lose, hold back: no wrong token, typed failures, and nothing stays held."""

import contextlib
import os
import threading
import time
from dataclasses import replace

import pytest
import trustme
from frame_proxy import FrameProxy, flipped
from worker_parts import MODEL, Ended, Failed, Worker, both, prompt

from diptych.boundary.frame import FrameType
from diptych.boundary.messages import Hello, Reserve, Speaker
from diptych.boundary.sender import Sender
from diptych.errors import InvalidInput
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.peers import Tls
from diptych.runtime.worker.owner import Limits

OWNERSHIPS = ("push", "pull")
SHORT = Limits(wait_ms=800, stall_ms=100)


@pytest.fixture
def lending(monkeypatch):
    """Workers that take KV out of memory which sources lend."""
    monkeypatch.setattr(Worker, "transport", "shm")


@pytest.fixture(params=["unix", "shm"])
def transport(request, monkeypatch):
    monkeypatch.setattr(Worker, "transport", request.param)


def through(tmp_path, spoil, ownership, count=9, limits=SHORT, **more):
    """One handoff through a proxy: both ends and what the target has said."""
    source, target = Worker(tmp_path, "p", "prefill", limits=limits), Worker(tmp_path, "d", "decode", limits=limits)
    proxy = FrameProxy(tmp_path / "proxy", target.address, spoil)
    target.address = proxy.address
    tokens = prompt(37)
    request = both(source, target, tokens, count, ownership, **more)
    ends = source.end_of(request), target.end_of(request)
    said = target.tokens_of(request)
    for each in (source, target):
        each.at_rest()
        each.stop()
    proxy.close()
    assert said == MODEL.expected(tokens, len(said))
    return *ends, proxy


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_frame_is_sent_again(tmp_path, ownership, number):
    def spoil(kind, count, payload):
        return flipped(payload) if kind is FrameType.BLOCKS and count == number else payload

    source, target, proxy = through(tmp_path, spoil, ownership)
    assert (source.reason, target.reason) == ("handed", "length")
    assert proxy.counts[FrameType.BLOCKS] == 6


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_frames_that_never_arrive_whole_end_in_a_typed_failure(tmp_path, ownership):
    def spoil(kind, count, payload):
        return flipped(payload) if kind is FrameType.BLOCKS else payload

    source, target, proxy = through(tmp_path, spoil, ownership)
    assert isinstance(source, Failed)
    assert isinstance(target, Failed)
    assert source.retry
    assert target.retry
    assert proxy.counts[FrameType.BLOCKS] == 4 * 3


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize(("kind", "number"), [(FrameType.MESSAGE, 2), (FrameType.BLOCKS, 1), (FrameType.BLOCKS, 3)])
def test_a_connection_that_is_cut_ends_in_a_typed_failure(tmp_path, ownership, kind, number):
    source, target, _ = through(
        tmp_path, lambda what, count, payload: None if (what, count) == (kind, number) else payload, ownership
    )
    assert isinstance(source, Failed)
    assert (source.reason, source.retry) == ("target lost", True)
    assert isinstance(target, Failed)
    assert target.retry


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_message_that_is_damaged_closes_the_connection(tmp_path, ownership):
    source, target, _ = through(
        tmp_path,
        lambda kind, count, payload: flipped(payload) if (kind, count) == (FrameType.MESSAGE, 2) else payload,
        ownership,
    )
    assert isinstance(source, Failed)
    assert isinstance(target, Failed)


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_link_that_stops_within_a_frame_gives_its_blocks_back(tmp_path, ownership):
    """The source cannot send, the target waits for the rest: leases and waits run out, and the connection is ended."""
    stuck = threading.Event()

    def spoil(kind, count, payload):
        if kind is FrameType.BLOCKS and count == 2:
            stuck.wait(3)
            return None
        return payload

    try:
        source, target, _ = through(tmp_path, spoil, ownership, lease_ms=300)
    finally:
        stuck.set()
    assert isinstance(source, Failed)
    assert isinstance(target, Failed)
    assert source.retry
    assert target.retry


@pytest.mark.usefixtures("lending")
def test_a_stranger_that_lends_nothing_readable_is_turned_away(tmp_path):
    source, target = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode")
    for word in (b"DPKV" + b"\0" * 84, b"DPAR\1\0\1\0" + b"\xff" * 8):
        stranger = Address.of(target.address).connect(1)
        stranger.sendall(word)
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    request = both(source, target, prompt(9), 3)
    assert isinstance(target.end_of(request), Ended)
    for each in (source, target):
        each.at_rest()
        each.stop()


@pytest.mark.parametrize(("first", "second"), [("unix", "shm"), ("shm", "unix")])
def test_who_lends_and_who_does_not_understand_each_other(tmp_path, monkeypatch, first, second):
    """KV comes within frames where one side does not lend, or the other does not borrow."""
    made = []
    for name, kind in (("p", first), ("d", second)):
        monkeypatch.setattr(Worker, "transport", kind)
        made.append(Worker(tmp_path, name))
    for one, other in (made, made[::-1]):
        request = both(one, other, prompt(37), 9)
        assert other.end_of(request).reason == "length"
        assert other.tokens_of(request) == MODEL.expected(prompt(37), 9)
    for each in made:
        each.at_rest()
        each.stop()


def test_the_next_handoff_dials_again(tmp_path):
    source, target = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode")
    for _ in range(3):
        request = both(source, target, prompt(9), 3)
        assert isinstance(target.end_of(request), Ended)
        target.core.peers.drop("p", False)
        end = time.monotonic() + 5
        while source.core.peers.open and time.monotonic() < end:
            time.sleep(0.005)
    for each in (source, target):
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_the_end_of_one_connection_is_not_that_of_the_next(tmp_path, ownership):
    """The end of an old connection is told late, when a handoff has begun on a new one already."""
    source, target = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode")
    assert isinstance(target.end_of(both(source, target, prompt(9), 3, ownership)), Ended)
    link = source.core.peers._links["d", True]
    told, link.shared = threading.Event(), replace(link.shared, tell=lambda event: told.wait(5) and was(event))
    was = source.core.peers.tell
    target.core.peers.drop("p", False)
    while not link.ended.is_set():
        time.sleep(0.001)
    request = both(source, target, prompt(30), 3, ownership)
    source.wait(lambda said: source.core.handoffs.open)
    told.set()
    assert isinstance(target.end_of(request), Ended)
    for each in (source, target):
        each.at_rest()
        each.stop()


def test_strangers_are_turned_away(tmp_path):
    """Bytes that are no frames, a message before a hello, silence: the connection ends, and others are served meanwhile."""
    source, target = Worker(tmp_path, "p", "prefill"), Worker(tmp_path, "d", "decode")
    silent = Address.of(target.address).connect(1)
    for said in (os.urandom(200), b"\0" * 88, Sender().message(Reserve(b"", 1, 1, 1), b"r" * 16, 1)):
        stranger = Address.of(target.address).connect(1)
        stranger.sendall(said)
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    other = Address.of(target.address).connect(1)
    other.sendall(Sender().message(Hello(Speaker.PREFILL, "x", 1, 9, 9, b"")))
    other.settimeout(5)
    assert other.recv(1) == b""
    other.close()
    request = both(source, target, prompt(9), 3)
    assert isinstance(target.end_of(request), Ended)
    silent.close()
    for each in (source, target):
        each.stop()


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    found = {}
    for name in ("ours", "theirs"):
        authority = trustme.CA()
        made = authority.issue_cert("worker")
        authority.cert_pem.write_to_path(folder / f"{name}.ca")
        made.private_key_pem.write_to_path(folder / f"{name}.key")
        made.cert_chain_pems[0].write_to_path(folder / f"{name}.crt")
        found[name] = Tls(*(str(folder / f"{name}.{kind}") for kind in ("crt", "key", "ca")))
    return found


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_under_tls(tmp_path, papers, ownership):
    tls = papers["ours"]
    source = Worker(tmp_path, "p", "prefill", tls=tls)
    target = Worker(tmp_path, "d", "decode", tls=tls, listen="tcp:127.0.0.1:0")
    asked = {both(source, target, prompt(37, seed), 9, ownership): seed for seed in range(8)}
    for request, seed in asked.items():
        assert isinstance(target.end_of(request), Ended)
        assert target.tokens_of(request) == MODEL.expected(prompt(37, seed), 9)
    for each in (source, target):
        each.at_rest()
        each.stop()


@pytest.mark.parametrize("other", ["theirs", ""])
def test_without_a_certificate_of_ours_nobody_comes_in(tmp_path, papers, other):
    source = Worker(tmp_path, "p", "prefill", tls=papers[other] if other else None)
    target = Worker(tmp_path, "d", "decode", tls=papers["ours"], listen="tcp:127.0.0.1:0", limits=SHORT)
    request = both(source, target, prompt(9), 3)
    assert source.end_of(request).reason == "target lost"
    assert target.end_of(request).reason == "expired"
    for each in (source, target):
        each.at_rest()
        each.stop()


def test_off_this_host_there_is_no_listening_without_tls(tmp_path):
    target = Worker(tmp_path, "d", "decode")
    with pytest.raises(InvalidInput, match="leaves this host"):
        target.core.peers.listen(Address.of("tcp:0.0.0.0:0"))
    target.stop()


@pytest.mark.parametrize(
    "text", ["", "unix:relative", "unix:/" + "x" * 200, "tcp:host", "tcp::1", "tcp:h:99999", "http://x"]
)
def test_what_is_no_address(text):
    with pytest.raises(InvalidInput, match="address"):
        Address.of(text)


def test_which_addresses_stay_on_this_host():
    assert [Address.of(each).is_local for each in ("unix:/a", "shm:/a", "tcp:127.0.0.1:1", "tcp:[::1]:1")] == [True] * 4
    assert not any(Address.of(each).is_local for each in ("tcp:0.0.0.0:1", "tcp:10.0.0.1:1", "tcp:node7:1"))
