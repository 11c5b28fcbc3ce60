"""The small parts: settings, budget, prefixes, percentiles, what is expected of a worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_workers import pick_prompt

from diptych.boundary.element import Element
from diptych.boundary.format import Format
from diptych.boundary.serial import to_msgpack
from diptych.errors import InvalidInput
from diptych.runtime.engines.toy import ToyEngine, ToyModel
from diptych.runtime.gateway.budget import RetryBudget
from diptych.runtime.gateway.history import WINDOW, Finished, History, percentiles
from diptych.runtime.gateway.mailbox import Given, Mailbox
from diptych.runtime.gateway.outlook import Line, Mean
from diptych.runtime.gateway.prefix_index import PrefixIndex, names_of
from diptych.runtime.gateway.roster import Roster
from diptych.runtime.gateway.service import Service
from diptych.runtime.gateway.settings import Endpoint, Settings
from diptych.runtime.messages import Chosen, Ready

WORKER = {"name": "w", "role": "decode", "address": "unix:/run/w"}


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"host": "0.0.0.0"}, ["api_key", "tls_certificate"]),
        ({"host": "::"}, ["api_key", "tls_certificate"]),
        ({"host": "10.1.2.3", "api_key": "k"}, ["tls_certificate"]),
        ({"host": "gateway.example", "tls_certificate": "c"}, ["tls", "api_key"]),
        ({"workers": [WORKER, WORKER]}, ["workers[1]"]),
        ({"workers": [WORKER | {"address": "http://x"}]}, ["workers[0].address"]),
        ({"workers": [WORKER | {"address": "tcp:10.0.0.1:9"}]}, ["workers[0].address"]),
        ({"workers": [WORKER | {"address": "tcp:10.0.0.1:9"}], "worker_token": "t"}, ["workers[0].address"]),
    ],
)
def test_what_would_be_open_to_others_does_not_start(
    tmp_path: Path, changes: dict[str, object], places: list[str]
) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps({"model": "m", "workers": [WORKER]} | changes))
    with pytest.raises(InvalidInput) as error:
        Settings.load(path)
    assert [each.where for each in error.value.findings] == places


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"model":"m","workers":[]}', '{"model":"m","worker":[]}', "[" * 5000, "\xff"]
)
def test_settings_that_are_none_are_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"gateway\.json"):
        Settings.load(path)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.10"])
def test_loopback_needs_no_key(tmp_path: Path, host: str) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps({"model": "m", "workers": [WORKER], "host": host}))
    assert Settings.load(path).is_local


def test_the_budget_is_a_share_and_a_floor() -> None:
    budget = RetryBudget(share=0.2, floor=1.0, window=10.0)
    now = 0.0
    taken = sum(budget.take(now) for _ in range(100))
    assert taken == 10
    for _ in range(50):
        budget.asked(now)
    assert sum(budget.take(now) for _ in range(100)) == 10
    assert sum(budget.take(now + 5) for _ in range(100)) == 5
    assert budget.refused == 275


def test_names_of_blocks_mean_the_whole_prefix_and_the_tenant() -> None:
    prompt = pick_prompt(1, 100)
    names = names_of(prompt, 32, b"")
    assert len(names) == 3
    assert names_of(prompt[:64], 32, b"") == names[:2]
    assert names_of([9, *prompt[1:]], 32, b"")[1] != names[1]
    assert not set(names) & set(names_of(prompt, 32, b"tenant"))


def test_an_index_forgets_the_ends_of_old_prompts_first() -> None:
    index = PrefixIndex(4)
    one, two = names_of(pick_prompt(1, 96), 32, b""), names_of(pick_prompt(2, 64), 32, b"")
    index.sent(one)
    index.sent(two)
    assert (index.match(one), index.match(two), len(index)) == (2, 2, 4)


def test_percentiles_are_ranks() -> None:
    assert percentiles([float(value) for value in range(1, 101)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}


def test_latencies_are_remembered_for_as_long_as_percentiles_look_at_them() -> None:
    endpoints = (Endpoint("d", "decode", "unix:/d"),)
    history = History(Service(Settings(model="toy", workers=endpoints)))
    for second in range(1000):
        history.lasted(Finished(float(second), float(second), None, float(second)))
    assert len(history._finished) == WINDOW + 1
    assert history.latencies(999.0)["ttft"]["p50"] == pytest.approx(1000 - WINDOW / 2, abs=1)


def test_expectations_follow_what_was_seen() -> None:
    mean, line = Mean(), Line()
    for place in range(200):
        mean.add(2.0)
        line.add(place % 10, 0.01 + 0.002 * (place % 10))
    assert mean.value == pytest.approx(2.0)
    assert line.at(20) == pytest.approx(0.05)
    falling = Line()
    for place in range(50):
        falling.add(place % 5, 1.0 - 0.1 * (place % 5))
    assert falling.at(100) <= 1.0
    assert falling.at(100) >= 0.7


def test_a_mailbox_knows_when_nobody_reads() -> None:
    box = Mailbox(3)
    assert [box.put(Given(0, (Chosen(1),))) for _ in range(5)] == [True, True, True, False, False]


def _ready(state: bytes) -> Ready:
    return Ready(state, "", 10, 16, 256, 1000, "toy")


def test_pairs_that_cannot_exchange_kv_are_told_apart_before_traffic() -> None:
    roster = Roster(tuple(Endpoint(name, role, f"unix:/{name}") for name, role in (("p", "prefill"), ("d", "decode"))))
    source, target = roster["p"], roster["d"]
    one = to_msgpack(ToyEngine(blocks=4).state)
    source.ready, target.ready = _ready(one), _ready(to_msgpack(ToyEngine(blocks=4, form=Format(Element.BF16)).state))
    assert roster.fits(source, target)
    target.ready = _ready(to_msgpack(ToyEngine(ToyModel(key=b"another"), blocks=4).state))
    assert not roster.fits(source, target)
    ((pair, count),) = roster.pairs_refused.items()
    assert (pair[:2], count) == (("p", "d"), 1)
    assert pair[2]
    target.ready = _ready(b"\x00nonsense")
    assert not roster.fits(source, target)
