"""What is hidden and what is not: by name, by the look of a value, inside of others' structures and texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.deploy.commands.flags import flag_table
from diptych.deploy.read import read_deployment
from diptych.deploy.secrets import HIDDEN, hidden, hidden_inside, is_secret, without_user

SECRETS = (
    *(
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "OPENAI_API_KEY",
        "VLLM_API_KEY",
        "NGC_CLI_API_KEY",
        "GITHUB_TOKEN",
        "TOKEN",
    ),
    *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "SIGNING_KEY", "MY_SERVICE_KEY", "SSH_KEY"),
    *("PGPASSWORD", "DB_PASSWORD", "MYSQL_PWD", "REDISCLI_AUTH", "passphrase", "Authorization", "authorization"),
    *(
        "api-key",
        "api_key",
        "apiKey",
        "admin-api-key",
        "hf-token",
        "hfToken",
        "accessToken",
        "clientSecret",
        "userPassword",
    ),
    *(
        "ssl-keyfile-password",
        "private-key",
        "credentials",
        "secret",
        "client-secret",
        "kv.extra.password",
        "refresh_token",
    ),
)
PLAIN = (
    *("max-num-batched-tokens", "max_tokens", "num_experts_per_token", "experts-per-token", "time-to-first-token"),
    *(
        "image_token_id",
        "eos_token_id",
        "tokenizer",
        "tokenizer-mode",
        "token_range",
        "skip-tokenizer-init",
        "kv-cache-dtype",
    ),
    *("key", "topologyKey", "sessionKey", "session-key", "ssl-keyfile", "keys", "KEYS", "monkey", "cache_key_prefix"),
    *(
        "PWD",
        "OLDPWD",
        "author",
        "authority",
        "allow-credentials",
        "secretName",
        "UCX_TLS",
        "DYN_SGL_DISAGG_CONFIG_KEY",
    ),
)


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_that_says_secret_hides_its_value(name: str) -> None:
    assert is_secret(name)
    assert hidden(name, "value") == HIDDEN
    assert hidden(name, "") == "", "what is not set is not a secret"


@pytest.mark.parametrize("name", PLAIN)
def test_a_name_that_only_sounds_so_hides_nothing(name: str) -> None:
    assert not is_secret(name)
    assert hidden(name, "value") == "value"


def test_of_all_flags_of_all_engines_only_keys_tokens_and_passwords_are_hidden() -> None:
    """A rule must see every other setting."""
    programs = ("vllm", "sglang", "dynamo.vllm", "dynamo.sglang", "trtllm-serve", "vllm-router")
    flags = {flag.name for program in programs for flag in flag_table(program).spellings.values()}
    assert len(flags) > 500
    found = {name for name in flags if is_secret(name)}
    assert found <= {"api-key", "admin-api-key", "hf-token", "ssl-keyfile-password"}
    assert "api-key" in found


S = "s3cr3tV4lue0123456789abcdef"
VALUES = (
    f"hf_{S}", f"sk-{S}", f"sk-proj-{S}", f"ghp_{S}", f"github_pat_{S}", f"glpat-{S}", f"nvapi-{S}", "AKIAS3CR3TV4LUE01234",
    f"xoxb-{S}", f"eyJs3cr3tV4lue.eyJs3cr3tV4lue.{S}", f"Bearer {S}", f"Authorization: Basic {S}", f"authorization={S}",
    f"http://user:{S}@host:8000/v1", f"postgres://{S}@db/x", f"https://host/v1?api_key={S}&x=1", f"https://host/?x=1&sig={S}",
    f"--api-key {S}", f"--api-key={S}", f"--hf-token '{S} {S}'", f'--password "{S}"', f"-token {S}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n{S}\n-----END RSA PRIVATE KEY-----", f"-----BEGIN PRIVATE KEY-----\n{S}",
    f'curl -H "Authorization: Bearer {S}" http://host', f"{{'Authorization': 'Bearer {S}'}}",
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_looks_like_a_secret_is_hidden_wherever_it_stands(value: str) -> None:
    for text in (value, f"before {value} after", f"{value}\nafter", f"x={value}"):
        shown = hidden("block-size", text)
        assert "cr3t" not in shown.casefold()
        assert ("after" in shown) == ("after" in text) or "PRIVATE" in value
    assert "cr3t" not in json.dumps(hidden_inside({"args": ["vllm", {"x": value}]})).casefold()


@pytest.mark.parametrize(
    "value",
    [
        "Qwen/Qwen3-32B", "hf_transfer", "sk-learn", "bearer of news", "10.0.0.1:8000", "http://host:8000/v1?kind=key&x=1",
        "--max-model-len 4096 --token-budget 12", "tcp://host:1", "sha256:" + "0" * 64, "eyJust",
        "a@b.c", "basic", "token throughput is high",
        "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0.0", "vllm serve m --tokenizer-mode auto", "--time-to-first-token 3",
    ],
)  # fmt: skip
def test_an_ordinary_value_is_shown_as_it_is(value: str) -> None:
    assert without_user(value) == value


def test_structures_are_searched_at_any_depth() -> None:
    given = {
        "env": [
            {"name": "HF_TOKEN", "value": S},
            {"name": "MODE", "value": "x"},
            {"name": "T", "valueFrom": {"key": "k"}},
        ],
        "extra": {"headers": {"Authorization": f"Bearer {S}"}, "password": S, "n": [1, None, True, [f"hf_{S}"]]},
        "api_keys": [S, S],
        "secret": {"inner": S},
        "empty": {"password": ""},
    }
    shown = hidden_inside(given)
    assert S not in json.dumps(shown)
    assert shown["env"][1:] == given["env"][1:]
    assert shown["extra"]["n"][:3] == [1, None, True]
    assert shown["empty"] == {"password": ""}
    assert S in json.dumps(given), "what was given is not changed"


@given(st.text() | st.text(alphabet="-= \"'apikeytokn:/@?&Bearhf_0"))
def test_hiding_twice_is_hiding_once(text: str) -> None:
    once = without_user(text)
    assert without_user(once) == once


@pytest.mark.parametrize(
    "text",
    [
        f"export SOME_TOKEN={S}; vllm serve m --max-model-len $SOME_TOKEN",
        f"SIGNING_KEY={S}\nvllm serve m --served-model-name x-$SIGNING_KEY",
        f"vllm serve m --block-size sk-{S}",
        f"vllm serve m --kv-cache-dtype hf_{S}",
        f"vllm serve https://user:{S}@host/m",
    ],
)
def test_a_secret_behind_the_wrong_flag_is_kept_nowhere(text: str) -> None:
    assert S not in repr(read_deployment(text, "run.sh"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["-", "a-", "-----BEGIN PRIVATE KEY", "://", "Bearer ", "eyJ", "&key", "sk-", "authorization"]
)
def test_no_text_takes_long(text: str) -> None:
    """A pattern that backtracks needs minutes for these."""
    once = without_user(text * 50_000)
    assert without_user(once) == once
    assert not is_secret(text * 50_000 + "!")
