"""What has hurt servers of this kind: none of it is a 5xx, all of it comes back in the envelope, and the server goes on."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from running import Running, parsed, post, raw, read_response, running

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
TOKEN = b"authorization: Bearer operator\r\n"
HELLO = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TEXT = {"model": "toy", "prompt": "hi", "max_tokens": 2}


def chat(**changes: object) -> bytes:
    return json.dumps(HELLO | changes).encode()


def text(**changes: object) -> bytes:
    return json.dumps(TEXT | changes).encode()


def is_envelope(found: object) -> bool:
    if not isinstance(found, dict):
        return False
    error = found["error"]
    return set(error) == {"message", "type", "param", "code"} and bool(error["message"])


BODIES = {
    "number out of range": (COMPLETE, text().replace(b": 2", b": 1e400")),
    "NaN": (COMPLETE, text().replace(b": 2", b": NaN")),
    "Infinity": (COMPLETE, text().replace(b": 2", b": Infinity")),
    "minus infinity": (COMPLETE, text(temperature=0).replace(b": 0}", b": -Infinity}")),
    "five thousand digits": (COMPLETE, text().replace(b": 2", b": " + b"9" * 5000)),
    "lone surrogate": (COMPLETE, b'{"model":"toy","prompt":"a\\ud800b","max_tokens":2}'),
    "lone surrogate in the model": (COMPLETE, b'{"model":"\\udfff","prompt":"a"}'),
    "prompt null": (COMPLETE, text(prompt=None)),
    "prompt empty": (COMPLETE, text(prompt="")),
    "prompt of nothing": (COMPLETE, text(prompt=[])),
    "prompts of nothing": (COMPLETE, text(prompt=[[]])),
    "prompt mixed": (COMPLETE, text(prompt=["a", 1])),
    "prompt nested": (COMPLETE, text(prompt=[[[1]]])),
    "prompt of booleans": (COMPLETE, text(prompt=[True])),
    "token out of the vocabulary": (COMPLETE, text(prompt=[256])),
    "token negative": (COMPLETE, text(prompt=[-1])),
    "prompt too long": (COMPLETE, text(prompt="a" * 5000)),
    "too many prompts": (COMPLETE, text(prompt=["a"] * 129)),
    "no model": (COMPLETE, b'{"prompt":"a"}'),
    "wrong model": (COMPLETE, text(model="../../etc/passwd")),
    "model with NUL": (COMPLETE, text(model="toy\0")),
    "messages empty": (CHAT, chat(messages=[])),
    "messages missing": (CHAT, b'{"model":"toy"}'),
    "messages of numbers": (CHAT, chat(messages=[1, 2])),
    "too many messages": (CHAT, chat(messages=[{"role": "user", "content": ""}] * 2000 + [{}])),
    "unknown role": (CHAT, chat(messages=[{"role": "root", "content": "a"}])),
    "content missing": (CHAT, chat(messages=[{"role": "user"}])),
    "content of pictures": (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])),
    "n zero": (CHAT, chat(n=0)),
    "n huge": (CHAT, chat(n=10**9)),
    "max_tokens negative": (CHAT, chat(max_tokens=-1)),
    "max_tokens zero": (CHAT, chat(max_tokens=0)),
    "max_tokens beyond the context": (CHAT, chat(max_tokens=1 << 40)),
    "max_tokens a fraction": (CHAT, chat(max_tokens=1.5)),
    "max_completion_tokens text": (CHAT, chat(max_completion_tokens="many")),
    "min above max": (CHAT, chat(min_tokens=5)),
    "temperature": (CHAT, chat(temperature=-0.1)),
    "top_p": (CHAT, chat(top_p=1.5)),
    "seed beyond 64 bits": (CHAT, chat(seed=1 << 64)),
    "bias of no token": (CHAT, chat(logit_bias={"x": 1})),
    "bias of digits that int() takes": (CHAT, chat(logit_bias={"١": 1})),
    "bias too large": (CHAT, chat(logit_bias={"1": 1000})),
    "too many biases": (CHAT, chat(logit_bias={str(token): 1 for token in range(2000)})),
    "stop empty": (CHAT, chat(stop="")),
    "stop of numbers": (CHAT, chat(stop=[1])),
    "too many stops": (CHAT, chat(stop=["a"] * 100)),
    "stop too long": (CHAT, chat(stop="a" * 5000)),
    "top_logprobs alone": (CHAT, chat(top_logprobs=3)),
    "logprobs too many": (COMPLETE, text(logprobs=1000)),
    "stop token out of the vocabulary": (CHAT, chat(stop_token_ids=[300])),
    "not an object": (CHAT, b"[]"),
    "a string": (CHAT, b'"hi"'),
    "null": (CHAT, b"null"),
    "empty": (CHAT, b""),
    "cut": (CHAT, chat()[:-1]),
    "not UTF-8": (CHAT, b'{"model":"toy","messages":[{"role":"user","content":"\xff\xfe"}]}'),
    "not UTF-8 anywhere": (CHAT, b"\xff\xfe\x00{}"),
    "byte order mark": (CHAT, b"\xef\xbb\xbf" + chat()),
    "brackets": (CHAT, b"[" * 90_000),
    "nested objects": (CHAT, b'{"metadata":' * 7000 + b"1" + b"}" * 7000),
    "control characters": (CHAT, b'{"model":"to\x01y"}'),
    "trailing text": (CHAT, chat() + b"{}"),
    "template of the client's": (CHAT, chat(chat_template="{{ cycler.__init__.__globals__ }}")),
    "tools": (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}])),
    "response_format": (CHAT, chat(response_format={"type": "json_object"})),
    "audio": (CHAT, chat(modalities=["audio"])),
    "suffix": (COMPLETE, text(suffix="x")),
    "best_of": (COMPLETE, text(best_of=3)),
    "kv_transfer_params": (CHAT, chat(kv_transfer_params={"do_remote_decode": True, "remote_host": "10.0.0.1"})),
    "kv_transfer_params empty": (CHAT, chat(kv_transfer_params=None)),
    "bootstrap_host": (COMPLETE, text(bootstrap_host="2.2.2.2")),
    "bootstrap_room": (COMPLETE, text(bootstrap_room=1)),
    "disaggregated_params": (COMPLETE, text(disaggregated_params={})),
    "data_parallel_rank": (COMPLETE, text(data_parallel_rank=0)),
    "request_id": (COMPLETE, text(request_id="mine")),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_the_clients_mistake(gateway: Running, name: str) -> None:
    path, body = BODIES[name]
    status, found = post(gateway.port, path, body)
    assert 400 <= status < 500, found
    assert is_envelope(found)
    assert b"etc/passwd" not in json.dumps(found).encode() or name == "wrong model"


@pytest.mark.parametrize(
    ("name", "param"),
    [("kv_transfer_params", "kv_transfer_params"), ("tools", "tools"), ("prompt null", "prompt"), ("n zero", "n")],
)
def test_the_field_at_fault_is_named(gateway: Running, name: str, param: str) -> None:
    _, found = post(gateway.port, *BODIES[name])
    assert found["error"]["param"] == param


GOOD = {
    "duplicate keys": (CHAT, b'{"model":"x",' + chat()[1:]),
    "harmless fields": (CHAT, chat(user="me", metadata={"a": "b"}, store=False, service_tier="auto", made_up=1)),
    "neutral values": (CHAT, chat(tools=[], tool_choice="none", response_format={"type": "text"}, n=None, stop=None)),
    "content in parts": (CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])),
    "both limits": (CHAT, chat(max_completion_tokens=1)),
    "many roles": (CHAT, chat(messages=[{"role": role, "content": "a"} for role in ("system", "user", "assistant")])),
    "top_p of nothing": (CHAT, chat(top_p=0)),
    "tokens": (COMPLETE, text(prompt=[1, 2, 3])),
    "prompts": (COMPLETE, text(prompt=["a", "b"], n=2)),
    "token lists": (COMPLETE, text(prompt=[[1], [2, 3]])),
    "null byte in a prompt": (COMPLETE, text(prompt="\0")),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_is_harmless_is_served(gateway: Running, name: str) -> None:
    path, body = GOOD[name]
    status, found = post(gateway.port, path, body)
    assert status == 200, found
    assert found["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    "header",
    [b"x-prefiller-host-port: 10.0.0.1:80", b"X-Data-Parallel-Rank: 1", b"x-kv-cache-source-host-port: a:1",
     b"x-trtllm-disagg-auth: x"],
)  # fmt: skip
def test_headers_that_choose_workers_are_refused(gateway: Running, header: bytes) -> None:
    status, found = post(gateway.port, CHAT, chat(), header)
    assert (status, found["error"]["code"]) == (400, "forbidden_header")
    assert not gateway.fleet.service.ledger()["answers"]


def test_a_request_id_is_said_back_and_names_nothing(gateway: Running) -> None:
    said = raw(gateway.port, b"POST %s HTTP/1.1\r\nhost: x\r\nx-request-id: abc-1\r\ncontent-length: %d\r\n\r\n%s" % (
        CHAT.encode(), len(chat()), chat()))  # fmt: skip
    assert b"x-request-id: abc-1" in said.lower()
    names = {each.request for worker in gateway.fleet.workers.values() for each in worker.submitted}
    assert b"abc-1" not in b"".join(names)
    odd = raw(gateway.port, b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-request-id: a b<c>\r\n\r\n")
    assert b"x-request-id" not in odd.lower()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"GET /docs HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"GET /v1/../admin/drain HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"GET /v1/models%00 HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"GET /%ff%fe HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"DELETE /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        (b"GET /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        (b"OPTIONS /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        (b"GET /debug/ledger HTTP/1.1\r\nhost: localhost\r\n\r\n", 401),
        (b"GET /ui/data HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer operato\r\n\r\n", 401),
        (b"GET /ui/data HTTP/1.1\r\nhost: evil.example\r\nauthorization: Bearer operator\r\n\r\n", 403),
        (b"GET /ui/data HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n" + TOKEN + b"\r\n", 403),
        (b"GET /ui HTTP/1.1\r\nhost: evil.example\r\n\r\n", 403),
        (b"POST /admin/drain?worker=none HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n" + TOKEN + b"\r\n", 404),
        (b"GET /ui HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n", 400),
        (b"NONSENSE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999\r\n\r\n", 413),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /v1/models?" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        (b"GET /v1/models HTTP/1.1\r\n" + b"x: y\r\n" * 10_000 + b"\r\n", 431),
        (b"GET /ui/data HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", 401),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else str(value),
)  # fmt: skip
def test_what_is_not_there_or_no_http(gateway: Running, request_bytes: bytes, status: int) -> None:
    found = parsed(raw(gateway.port, request_bytes))
    assert found[0] == status, found
    assert is_envelope(found[1])


def test_a_body_that_never_ends_times_out(gateway: Running) -> None:
    began = time.monotonic()
    status, found = parsed(
        raw(gateway.port, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\na")
    )
    assert (status, found["error"]["code"]) == (408, "body_timeout")
    assert time.monotonic() - began < 4


def test_headers_that_never_end_time_out(gateway: Running) -> None:
    status, found = parsed(raw(gateway.port, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"))
    assert (status, found["error"]["code"]) == (408, "header_timeout")


def test_an_endless_chunked_body_is_cut_off(gateway: Running) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"8000\r\n" + b"a" * 0x8000 + b"\r\n"
    status, found = parsed(raw(gateway.port, head, *[chunk] * 10))
    assert (status, is_envelope(found)) == (413, True)


def test_a_packed_body_is_not_unpacked(gateway: Running) -> None:
    status, found = post(gateway.port, CHAT, gzip.compress(b"[" * 1_000_000), b"content-encoding: gzip")
    assert (status, is_envelope(found)) == (415, True)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.0"])
def test_an_offer_of_another_protocol_is_passed_over(gateway: Running, protocol: bytes) -> None:
    """Java's client offers HTTP/2 with every request."""
    offer = b"connection: Upgrade, HTTP2-Settings", b"Upgrade: " + protocol, b"HTTP2-Settings: AAEAAEAAAAIAAAAB"
    status, found = post(gateway.port, CHAT, chat(), *offer)
    assert (status, found["object"]) == (200, "chat.completion")
    lines = b"\r\n".join([b"POST /v1/completions HTTP/1.1", b"host: x", *offer, b"content-length: %d" % len(text())])
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as connection:
        connection.sendall(lines + b"\r\n\r\n")
        connection.sendall(text())
        assert parsed(read_response(connection))[0] == 200
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        assert parsed(read_response(connection))[0] == 200


def test_requests_after_one_another_on_one_connection(gateway: Running) -> None:
    one = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as connection:
        connection.sendall(one + one)
        found = b""
        while found.count(b'"object": "list"') < 2:
            found += connection.recv(65536)
        connection.sendall(one)
        assert parsed(read_response(connection))[0] == 200


def test_many_idle_connections_do_not_keep_others_out(gateway: Running) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=5))
        assert post(gateway.port, CHAT, chat())[0] == 200


def test_a_head_request_has_no_body(gateway: Running) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as connection:
        connection.sendall(b"HEAD /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        found = b""
        while part := connection.recv(65536):
            found += part
    assert found.startswith(b"HTTP/1.1 200")
    assert found.endswith(b"\r\n\r\n")


def test_nothing_is_left_afterwards(gateway: Running) -> None:
    gateway.quiet()
    assert post(gateway.port, CHAT, chat())[0] == 200


@pytest.fixture(scope="module")
def keyed() -> Iterator[Running]:
    with running(api_key="secret") as made:
        yield made


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    authority = trustme.CA()
    folder = tmp_path_factory.mktemp("tls")
    made = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key, root = folder / "c.pem", folder / "k.pem", folder / "ca.pem"
    made.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    authority.cert_pem.write_to_path(root)
    with running(api_key="secret", tls_certificate=str(certificate), tls_key=str(key)) as gateway:
        yield gateway, root


class TestKeys:
    """With a key, nothing that is served is served without it."""

    @pytest.mark.parametrize(
        "said", [b"", b"Bearer wrong", b"Bearer secre", b"Bearer secret2", b"Basic secret", b"secret", b"Bearer \xff"]
    )
    def test_a_wrong_key_is_refused_everywhere(self, keyed: Running, said: bytes) -> None:
        for method, path in (
            (b"POST", b"/v1/completions"),
            (b"POST", b"/v1/chat/completions"),
            (b"GET", b"/v1/models"),
            (b"GET", b"/metrics"),
        ):
            status, found = parsed(
                raw(
                    keyed.port,
                    b"%s %s HTTP/1.1\r\nhost: x\r\nauthorization: %s\r\ncontent-length: 0\r\n\r\n"
                    % (method, path, said),
                )
            )
            assert (status, is_envelope(found)) == (401, True)
            assert "secret" not in found["error"]["message"]

    def test_the_right_key_is_taken(self, keyed: Running) -> None:
        assert post(keyed.port, CHAT, chat(), b"authorization: Bearer secret")[0] == 200

    def test_tenants_prefixes_are_salted_by_key_and_by_choice(self, keyed: Running) -> None:
        post(keyed.port, CHAT, chat(cache_salt="a"), b"authorization: Bearer secret")
        post(keyed.port, CHAT, chat(), b"authorization: Bearer secret")
        salts = [each.salt for each in keyed.fleet.workers["prefill0"].submitted][-2:]
        assert salts[0] != salts[1]
        assert all(len(salt) == 16 for salt in salts)


class TestTls:
    """Off loopback there is TLS; these are its ways to go wrong."""

    def test_it_is_served(self, secured) -> None:
        gateway, root = secured
        context = ssl.create_default_context(cafile=str(root))
        with (
            socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as bare,
            context.wrap_socket(bare, server_hostname="localhost") as connection,
        ):
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\n\r\n")
            assert parsed(read_response(connection))[0] == 200

    def test_plain_http_gets_nothing(self, secured) -> None:
        gateway, _ = secured
        assert b"200" not in raw(gateway.port, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")

    def test_an_unknown_authority_is_not_trusted(self, secured) -> None:
        gateway, _ = secured
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as bare, pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(bare, server_hostname="localhost")

    def test_old_tls_is_refused(self, secured) -> None:
        gateway, root = secured
        context = ssl.create_default_context(cafile=str(root))
        with pytest.warns(DeprecationWarning, match="TLS"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as bare,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(bare, server_hostname="localhost")
