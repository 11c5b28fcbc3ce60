"""`diptych top` and `diptych status` beside a running gateway, and what they say when there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/runtime/gateway"))
from running import Running, post, running

from diptych.cli.status import status
from diptych.cli.top import top
from diptych.errors import InvalidInput, Unsupported


@pytest.fixture(scope="module")
def gateway() -> Iterator[Running]:
    with running(roles="prefill decode", alternative_usd=9.0, alternative_name="all on one kind") as made:
        for _ in range(5):
            post(made.port, "/v1/completions", b'{"model":"toy","prompt":[1,2,3],"max_tokens":4}')
        yield made


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("operator\n")
    return path


def run(verb: Any, *arguments: str, code: int = 0) -> str:
    app = typer.Typer()
    app.command()(verb)
    found = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    if isinstance(found.exception, InvalidInput | Unsupported):
        raise found.exception
    assert found.exit_code == code, found.output
    return found.output


def test_top_once(gateway: Running, token: Path) -> None:
    said = run(top, "--url", gateway.url, "--token-file", str(token), "--once")
    for word in ("toy", "ready", "finished 5", "prefill0", "decode0", "TTFT", "disaggregated", "int8 to bf16", "$9.00"):
        assert word in said, said


def test_top_as_json(gateway: Running, token: Path) -> None:
    data = json.loads(run(top, "--url", gateway.url, "--token-file", str(token), "--json"))
    assert data["requests"]["finished"] == 5
    assert {each["name"] for each in data["workers"]} == {"prefill0", "decode0"}


def test_status_by_the_environment(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPTYCH_ADMIN_TOKEN", "operator")
    assert "ready" in run(status, "--url", gateway.url)
    assert json.loads(run(status, "--url", gateway.url, "--json"))["status"] == "ready"


@pytest.mark.parametrize(
    ("url", "secret", "error", "words"),
    [
        ("http://127.0.0.1:1", "operator", Unsupported, "is `diptych serve` running"),
        ("", "wrong", InvalidInput, "the admin token is missing or wrong"),
        ("", "", InvalidInput, "no usable admin token"),
        ("", "two\nlines", InvalidInput, "no usable admin token"),
        ("file:///etc/passwd", "operator", InvalidInput, "http://HOST:PORT"),
    ],
)
def test_what_is_wrong_is_said(
    gateway: Running, tmp_path: Path, url: str, secret: str, error: type[Exception], words: str
) -> None:
    path = tmp_path / "token"
    path.write_text(secret)
    with pytest.raises(error, match=words):
        run(status, "--url", url or gateway.url, "--token-file", str(path))


def test_a_token_file_that_is_not_there(gateway: Running, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--token-file"):
        run(top, "--url", gateway.url, "--token-file", str(tmp_path / "none"), "--once")
