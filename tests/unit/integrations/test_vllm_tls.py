"""Off the host: both sides show a certificate that one authority signed, on the doorbell and on the connection of the KV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trustme
from joints import KEY, Worker, values

from diptych.integrations.vllm.jobs import Fetch, Keep, Made, Make


def files(folder: Path, authority: trustme.CA) -> dict[str, str]:
    """A worker's own certificate."""
    folder.mkdir(exist_ok=True)
    made = authority.issue_cert("worker.example")
    made.private_key_pem.write_to_path(folder / "key.pem")
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return {
        "certificate": str(folder / "cert.pem"),
        "key": str(folder / "key.pem"),
        "authority": str(folder / "authority.pem"),
    }


def started(made: list[Worker], *args: object, **settings: object) -> Worker:
    made.append(Worker(*args, host="127.0.0.1", **settings))
    return made[-1]


@pytest.fixture
def made():
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.joint.close()


def test_a_prompt_crosses_under_tls(made, tmp_path) -> None:
    authority = trustme.CA()
    prefill = started(made, 32, "torch.bfloat16", **files(tmp_path / "p", authority))
    decode = started(made, 64, "torch.float32", **files(tmp_path / "d", authority))
    told = values(77)
    prefill.put(told, [5, 2, 9])
    prefill.joint.keep(Keep(KEY, "p", (5, 2, 9), 77))
    decode.fetch(prefill, 77, [3, 7])
    assert not decode.wait(received="d").failed
    np.testing.assert_array_equal(decode.get(77, [3, 7]), told)


def test_a_prompt_is_pushed_under_tls(made, tmp_path, free_ports) -> None:
    authority, port = trustme.CA(), free_ports(1)
    prefill = started(made, 32, "torch.float32", ownership="push", port=port, **files(tmp_path / "p", authority))
    decode = started(made, 32, "torch.float32", **files(tmp_path / "d", authority))
    told = values(60)
    prefill.put(told, [5, 2])
    prefill.joint.make(Make(KEY, "p", 60, "same"))
    decode.joint.fetch(Fetch(KEY, "d", (3, 7), 60, 0, "same", meeting=f"tcp:127.0.0.1:{port}"))
    prefill.wait(roomy="p")
    for layer in range(3):
        prefill.joint.made(Made(KEY, (5, 2), 60), layer)
    prefill.joint.keep(Keep(KEY, "p", (5, 2), 60))
    assert not decode.wait(received="d").failed
    np.testing.assert_array_equal(decode.get(60, [3, 7]), told)


@pytest.mark.parametrize("who", ["a stranger's certificate", "no certificate"])
def test_others_are_not_heard(made, tmp_path, who) -> None:
    prefill = started(made, 32, "torch.float32", **files(tmp_path / "p", trustme.CA()))
    other = files(tmp_path / "d", trustme.CA()) if who.startswith("a stranger") else {}
    decode = started(made, 32, "torch.float32", **other)
    prefill.joint.keep(Keep(KEY, "p", (1,), 20))
    decode.fetch(prefill, 20, [4])
    assert decode.wait(received="d").failed == {"d"}
    assert prefill.joint.leases == 1  # still kept for whoever has the ticket
    assert float(decode.tensors[0].abs().max()) == 0
