"""`diptych serve --engine` as a person types it, over servers that behave as vLLM's and SGLang's workers do."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import sys
from pathlib import Path

import pytest
import trustme

from fake_engines import Worker, running
from serve_command import command, look


def urls(first: str, second: str, engine: str = "vllm") -> tuple[str, ...]:
    return "--engine", engine, "--prefill-url", first, "--decode-url", second


def signed(folder, name):
    """An authority in ca.pem, and a certificate of its own for `name` in cert.pem and key.pem."""
    ours = trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    issued = ours.issue_cert(name)
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    return ours


def key_file(folder):
    """A worker's key, which only its owner can read."""
    key = folder / "key.txt"
    key.write_text("a-workers-key-of-letters")
    key.chmod(0o600)
    return key


def test_served_asked_looked_at_priced_and_ended():
    async def go():
        prefill, decode = Worker("prefill"), Worker("decode")
        async with running(prefill, decode) as (first, second):
            async with command(*urls(first, second), "--prices", "prefill=4, decode=2", "--ask", "Hello?") as serving:
                assert await serving.wait("> Hello?"), serving.text
                assert "no rule forbids these pairs" in serving.text
                assert (await serving.ask())[0] == 200
                assert (await serving.ask(kv_transfer_params={}))[0] == 400
                for _ in range(100):
                    code, text = await look("status", serving)
                    if "per million tokens" in text:
                        break
                assert (code, "per million tokens" in text) == (0, True), text
                assert "decode" in text
                code, text = await look("top", serving)
                assert (code, "remote prefill" in text) == (0, True), text
                assert (await serving.told("/ready"))[0] == 200
                assert "vllm:generation_tokens_total" in (await serving.told("/metrics"))[1]
            assert serving.code == 0, serving.text
            assert "right" in serving.text
        assert not Path(serving.token_file).exists()

    asyncio.run(go())


@pytest.mark.parametrize("named", [True, False])
def test_mooncake_is_found_out_or_named(named):
    async def go():
        prefill, decode = (Worker(role, connector="mooncake") for role in ("prefill", "decode"))
        async with running(prefill, decode) as (first, second):
            words = (*urls(first, second), "--bootstrap-port", first.rsplit(":", 1)[1])
            async with command(*words, *(("--connector", "mooncake") if named else ())) as serving:
                assert await serving.wait(), serving.text
                assert "over vllm-mooncake" in serving.text
                assert (await serving.ask())[0] == 200
        half = decode.asked[-1]["kv_transfer_params"]
        assert half["remote_bootstrap_addr"] == first
        assert half["remote_engine_id"] in ("e0", "e1")

    asyncio.run(go())


def test_sglang_workers():
    async def go():
        prefill, decode = (Worker(role, engine="sglang", block=64) for role in ("prefill", "decode"))
        async with running(prefill, decode) as (first, second), command(*urls(first, second, "sglang")) as serving:
            assert await serving.wait(), serving.text
            assert (await serving.ask())[0] == 200
        assert decode.asked[-1]["bootstrap_port"] == 8998

    asyncio.run(go())


def test_keys_and_certificates_of_workers(tmp_path):
    """Mutual TLS and a key, and what is said when one of them is not given."""
    ours = signed(tmp_path, "gateway")
    key = key_file(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(tls)
    ours.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    flags = {
        "--tls-ca": "ca.pem",
        "--worker-cert": "cert.pem",
        "--worker-key": "key.pem",
        "--worker-token-file": "key.txt",
    }

    def said(*without: str) -> tuple[str, ...]:
        return tuple(
            word for flag, name in flags.items() if flag not in without for word in (flag, str(tmp_path / name))
        )

    async def go():
        workers = [Worker(role, key=key.read_text()) for role in ("prefill", "decode")]
        async with running(*workers, tls=tls) as (first, second):
            async with command(*urls(first, second), *said()) as serving:
                assert await serving.wait(), serving.text
                assert (await serving.ask())[0] == 200
            for without, code, sentence in (
                (("--tls-ca",), 2, "certificate"),
                (("--worker-cert", "--worker-key"), 2, "asks for a certificate|alert|reset|EOF"),
                (("--worker-token-file",), 1, "401"),
            ):
                async with command(*urls(first, second), *said(*without)) as serving:
                    assert not await serving.wait(), serving.text
                assert serving.code == code, serving.text
                assert re.search(sentence, serving.text), serving.text

    asyncio.run(go())


def test_live_servers_that_ask_for_a_key_are_checked_over_tls(tmp_path):
    ours = signed(tmp_path, "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(tls)
    key = key_file(tmp_path)
    more = "--tls-ca", str(tmp_path / "ca.pem"), "--token-file", str(key)

    async def checked(*words: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "diptych", "check", "--live", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        text, _ = await process.communicate()
        return process.returncode, " ".join(text.decode().split())

    async def go():
        workers = [Worker(role, key=key.read_text()) for role in ("prefill", "decode")]
        async with running(*workers, tls=tls) as addresses:
            assert (await checked(*addresses, *more))[0] == 0
            code, text = await checked(*addresses)
            assert (code, "certificate" in text) == (2, True), text
        code, text = await checked("http://10.1.2.3:1", "http://10.1.2.4:1", "--token-file", str(key))
        assert (code, "in clear to http://10.1.2.3:1" in text) == (2, True), text

    asyncio.run(go())


def test_a_gateway_with_tls_is_looked_at_by_who_signed_its_certificate(tmp_path):
    signed(tmp_path, "127.0.0.1")

    async def go():
        more = "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")
        async with (
            running(Worker("prefill"), Worker("decode")) as (first, second),
            command(*urls(first, second), *more) as serving,
        ):
            assert await serving.wait(), serving.text
            assert serving.url.startswith("https://")
            for verb in ("status", "top"):
                assert (await look(verb, serving, "--tls-ca", str(tmp_path / "ca.pem")))[0] == 0
            code, text = await look("status", serving)
            assert (code, "certificate" in text) == (1, True), text
            code, text = await look("status", serving, "--tls-ca", str(tmp_path / "key.pem"))
            assert (code, "--tls-ca" in text) == (2, True), text

    asyncio.run(go())


def plain(first: str, second: str) -> tuple[str, ...]:
    return urls(first, second)


WRONG = {
    "a dead worker": (lambda first, second: urls(first, "http://127.0.0.1:9"), {}, 2, "connection refused"),
    "no engine": (plain, {"second": Worker("decode", engine="other")}, 2, "as no server that is known"),
    "the other engine": (lambda first, second: urls(first, second, "sglang"), {}, 2, "runs vllm, not sglang"),
    "the other role": (
        lambda first, second: urls(second, first, "sglang"),
        {"first": Worker("prefill", engine="sglang"), "second": Worker("decode", engine="sglang")},
        2,
        "was started for decode",
    ),
    "another model": (plain, {"second": Worker("decode", model="other")}, 1, "VN3"),
    "another KV format": (plain, {"second": Worker("decode", kv="fp8")}, 1, "VN4"),
    "another block": (plain, {"second": Worker("decode", block=64)}, 1, "VN8"),
    "garbage": (plain, {"second": Worker("decode", garbles=True)}, 1, "KV arrives as something else"),
    "no connector": (plain, {"first": Worker("prefill", ticket=None)}, 1, "did not cross"),
    "another connector": (
        lambda first, second: (*urls(first, second), "--connector", "mooncake"), {}, 2, "the workers run NixlConnector"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_may_not_be_served_ends_with_a_sentence(what):
    words, changed, code, sentence = WRONG[what]

    async def go():
        prefill, decode = changed.get("first", Worker("prefill")), changed.get("second", Worker("decode"))
        async with running(prefill, decode) as (first, second), command(*words(first, second)) as serving:
            assert not await serving.wait(), serving.text
        assert serving.code == code, serving.text
        assert sentence in " ".join(serving.text.split()), serving.text
        assert "Traceback" not in serving.text

    asyncio.run(go())


def test_our_own_workers_over_mutual_tls(tmp_path):
    """Two toy workers that somebody else started, reached by TCP with certificates and a key."""
    signed(tmp_path, "127.0.0.1")
    key = key_file(tmp_path)
    tls = {"certificate": f"{tmp_path}/cert.pem", "key": f"{tmp_path}/key.pem", "authority": f"{tmp_path}/ca.pem"}
    ports = {name: free_port() for name in ("prefill-control", "prefill-peer", "decode-control", "decode-peer")}

    async def worker(role: str) -> asyncio.subprocess.Process:
        config = {
            "name": f"{role}-0", "role": role, "run_dir": str(tmp_path / role), "engine": {"kind": "toy"},
            "control": f"tcp:127.0.0.1:{ports[f'{role}-control']}", "peer": f"tcp:127.0.0.1:{ports[f'{role}-peer']}",
            "token_file": str(key), "tls": tls,
        }  # fmt: skip
        (tmp_path / f"{role}.json").write_text(json.dumps(config))
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "diptych.runtime.worker", "--config", str(tmp_path / f"{role}.json")
        )

    def words(*without: str) -> tuple[str, ...]:
        flags = {
            "--tls-ca": "ca.pem",
            "--worker-cert": "cert.pem",
            "--worker-key": "key.pem",
            "--worker-token-file": "key.txt",
        }
        urls = (f"--{role}-url=tcp:127.0.0.1:{ports[f'{role}-control']}" for role in ("prefill", "decode"))
        given = (word for flag, name in flags.items() if flag not in without for word in (flag, str(tmp_path / name)))
        return "--engine", "diptych", "--model", "toy", *urls, *given

    async def go():
        workers = [await worker(role) for role in ("prefill", "decode")]
        try:
            async with command(*words()) as serving:
                assert await serving.wait("  try "), serving.text
                body = {"model": "toy", "prompt": list(range(40)), "max_tokens": 5}
                status, told = await serving.ask(**body)
                assert (status, told["usage"]["completion_tokens"]) == (200, 5), told
                routes = (await serving.data())["routes"]
                assert any(each["path"] == "apart" for each in routes), routes
            assert serving.code == 0, serving.text
        finally:
            for each in workers:
                each.terminate()
                await each.wait()
        away = "--engine", "diptych", "--model", "toy", "--decode-url", "tcp:10.9.9.9:1", "--prefill", "1 x cpu"
        async with command(*away) as serving:
            assert not await serving.wait()
        assert serving.code == 2
        for flag in ("--worker-token-file", "--tls-ca", "--prefill:"):
            assert flag in serving.text, serving.text

    asyncio.run(go())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
