"""The connector's pure parts: settings, tickets, facts, and what a self-test finds of a block."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from diptych.boundary.element import Element
from diptych.design.boundary import Ownership
from diptych.errors import InvalidInput
from diptych.integrations.vllm.counts import COUNTERS, added, nothing
from diptych.integrations.vllm.facts import Facts, weights_digest
from diptych.integrations.vllm.packing import find_packing, name_of, runs_of
from diptych.integrations.vllm.settings import Settings
from diptych.integrations.vllm.ticket import Place, Ticket, digest_of, read_ticket

HEADS, TOKENS, DIM = 3, 32, 8
SIZE = 2 * HEADS * TOKENS * DIM


def backend(kind: str, dtype: type):
    """A block as a backend would keep it: plain, as vLLM's CPU attention packs it, or shuffled."""
    order = np.random.default_rng(3).permutation(SIZE)

    def write(values):
        keys, rest = values.transpose(0, 2, 1, 3)
        if kind == "plain":
            block = np.stack([keys, rest])
        else:
            packed = keys.transpose(0, 2, 1).reshape(HEADS, TOKENS, DIM)
            block = np.stack([packed, rest], axis=1)
        flat = block.reshape(-1)
        return (flat[order] if kind == "shuffled" else flat).astype(dtype).astype(np.float32)

    return write


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
)
@pytest.mark.parametrize("kind", ["plain", "packed", "shuffled"])
def test_the_packing_found_puts_every_element_in_its_place(kind, dtype) -> None:
    write = backend(kind, dtype)
    places = find_packing(write, 2, HEADS, TOKENS, DIM)
    told = np.random.default_rng(1).integers(0, 8, (2, TOKENS, HEADS, DIM)).astype(np.float32)
    np.testing.assert_array_equal(write(told)[places], told.transpose(0, 2, 1, 3))
    named = {"plain": "plain", "packed": "heads outside, keys with tokens innermost", "shuffled": "found by self-test"}
    assert name_of(places).rsplit(" ", 1)[0] == named[kind]
    assert (runs_of(places) is None) == (kind == "shuffled")
    for part, run in enumerate(runs_of(places) or ()):
        for at in ((0, 0, 0), (2, 31, 7), (1, 5, 3)):
            assert places[(part, *at)] == run.begin + sum(step * by for step, by in zip(run.steps, at, strict=True))


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda flat: flat * 0.5,
        lambda flat: flat * 0,
        lambda flat: flat[:-1],
        lambda flat: np.roll(np.append(flat[1:], flat[1]), 1),
    ],
    ids=["scaled", "dropped", "short", "twice"],
)
def test_a_block_that_cannot_be_read_is_refused(spoiled) -> None:
    write = backend("plain", np.float32)
    with pytest.raises(InvalidInput):
        find_packing(lambda values: spoiled(write(values)), 2, HEADS, TOKENS, DIM)


def test_settings() -> None:
    found = Settings.of({"ownership": "pull", "wire": "fp8", "lease_s": 10})
    assert (found.ownership, found.wire, found.lease_s) == (Ownership.PULL, "e4m3fn", 10)
    assert (Settings.of({"wire": "raw"}).wire, Settings.of({"wire": "float16"}).wire) == ("", "fp16")


def test_every_wrong_setting_is_named_at_once() -> None:
    wrong = {"ownrship": "push", "ownership": "both", "wire": "fp9", "lease_s": -1, "wait_s": True, "host": "0.0.0.0",
             "port": 70000, "certificate": "/none.pem"}  # fmt: skip
    with pytest.raises(InvalidInput) as error:
        Settings.of(wrong)
    assert len(error.value.findings) == len(wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"host": "10.1.2.3"}, "leaves this host"),
        ({"certificate": "a", "key": "b"}, "without authority"),
        ({"certificate": "/none", "key": "/none", "authority": "/none"}, "cannot be used"),
        ({"ownership": "push"}, "port"),
    ],
)
def test_what_would_not_be_safe_or_never_found_does_not_start(wrong, says) -> None:
    with pytest.raises(InvalidInput, match=says):
        Settings.of(wrong, is_prefill=True)


def ticket(prompt, **changed) -> dict:
    made = Ticket("ab" * 16, 3, len(prompt), digest_of(prompt), 30_000, (Place("w", "tcp:127.0.0.1:1"),))
    params = json.loads(json.dumps(made.params()))
    params["diptych"].update(changed)
    return params


def test_a_ticket_comes_through_json() -> None:
    found, refused = read_ticket(ticket([1, 2, 3]), digest_of([1, 2, 3]))
    assert (refused, found.key) == ("", (b"\xab" * 16, 3))


@pytest.mark.parametrize(
    ("params", "prompt"),
    [
        ({}, [1]),
        ({"diptych": "x"}, [1]),
        (ticket([1], id="zz"), [1]),
        (ticket([1], epoch=-1), [1]),
        (ticket([1], more=1), [1]),
        (ticket([1], ranks=[]), [1]),
        (ticket([1], ranks=[{"worker": "w", "doorbell": "tcp:10.0.0.1:1"}]), [1]),
        (ticket([1], ranks=[{"worker": "w", "doorbell": "nowhere"}]), [1]),
        (ticket([1, 2]), [1]),
        (ticket([1]), [2]),
    ],
)
def test_a_ticket_that_does_not_fit_is_refused(params, prompt) -> None:
    assert read_ticket(params, digest_of(prompt))[1]


def test_another_host_is_asked_only_under_tls() -> None:
    params = ticket([1], ranks=[{"worker": "w", "doorbell": "tcp:10.0.0.1:1"}])
    assert read_ticket(params, digest_of([1]), afar=True)[1] == ""


def facts(**given) -> Facts:
    base = {"model": "m", "revision": "", "weights": "w", "rope": {"rope_theta": 1e4}, "layers": 2, "kv_heads": 2,
            "head_dim": 16, "block_tokens": 16, "model_dtype": "torch.bfloat16", "cache_dtype": "auto"}  # fmt: skip
    return Facts(**{**base, **given})


@pytest.mark.parametrize(
    ("flag", "element"),
    [
        ("auto", Element.BF16),
        ("fp8", Element.E4M3FN),
        ("fp8_e4m3", Element.E4M3FN),
        ("fp8_e5m2", Element.E5M2),
        ("float16", Element.FP16),
    ],
)
def test_what_a_cache_flag_stores(flag, element) -> None:
    assert facts(cache_dtype=flag).state().format.element is element


def test_what_fp8_means_on_another_gpu() -> None:
    assert facts(cache_dtype="fp8", fnuz=True).state().format.element is Element.E4M3FNUZ
    assert facts(cache_dtype="fp8_e5m2", fnuz=True).state().format.element is Element.E5M2


@pytest.mark.parametrize("flag", ["nvfp4", "int8_per_token_head", "turboquant"])
def test_a_cache_that_is_not_handed_over_is_refused(flag) -> None:
    with pytest.raises(InvalidInput, match="is not handed over"):
        facts(cache_dtype=flag).state()


def test_the_digest_of_weights_sees_names_sizes_and_both_ends(tmp_path) -> None:
    file = tmp_path / "a.safetensors"
    seen = set()
    for name, data in (("a", b"1" * 9), ("a", b"2" * 9), ("a", b"1" * 8), ("b", b"1" * 9)):
        for old in tmp_path.glob("*"):
            old.unlink()
        (tmp_path / f"{name}.safetensors").write_bytes(data)
        seen.add(weights_digest(tmp_path))
    assert len(seen) == 4
    file.unlink(missing_ok=True)
    assert weights_digest(tmp_path / "none") is None


def test_counts_add_up() -> None:
    assert added({**nothing(), "sent": 2.0}, {"sent": 1.0, "open_leases": 3.0})["sent"] == 3
    assert set(nothing()) == set(COUNTERS)
