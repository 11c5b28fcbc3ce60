"""The file of a calibration: read as it was written, refused with the place of every mistake, a fleet that can be simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diptych.design.axes import Role
from diptych.errors import InvalidInput
from diptych.perf.calibration import read_calibration, schema

PROMPTS = [
    {"tokens": size, "past": 0, "seconds": 0.01 + size / 500, "fitted": True, "predicted": 0.0}
    for size in (16, 64, 256)
]
DECODES = [
    {"batch": b, "context": c, "seconds": 0.02 + b * 0.004 + b * c * 1e-6, "fitted": True, "predicted": 0.0}
    for b in (1, 4)
    for c in (30, 200)
]


def role(name: str, **more: Any) -> dict[str, Any]:
    return {
        "role": name, "count": 1, "device": "cpu", "weights": "bf16", "kv": "bf16", "threads": 1, "blocks": 500, **more,
    }  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "calibration", "made": "2026-01-01T00:00:00+00:00", "versions": {"diptych": "0"},
        "machine": {"cpu": "some", "cores": 2, "memory_bytes": 8 << 30},
        "model": {
            "name": "small", "layers": 4, "kv_heads": 2, "head_dim": 64, "vocabulary": 1000, "max_context": 4096,
        },
        "ownership": "push", "block_tokens": 16, "budget": 2048, "sequences": 64,
        "roles": [role("prefill", prompts=PROMPTS, slowed=1.2), role("decode", decodes=DECODES, weights="int8")],
        "handoffs": [
            {"tokens": size, "seconds": 0.002 + size * 1e-5, "fitted": True, "predicted": 0.0} for size in (16, 256)
        ],
        "gateway_seconds": 0.001, **changes,
    }  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(value: Any) -> Path:
        path = tmp_path / "c.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def test_it_reads_as_it_was_written(written: Any) -> None:
    found = read_calibration(written(document()))
    assert json.loads(found.to_json()) == json.loads(read_calibration(written(found.to_json())).to_json())
    assert found.roles[0].slowed == 1.2


def test_its_fleet_takes_the_seconds_that_were_seen(written: Any) -> None:
    found = read_calibration(written(document()))
    design, perf = found.design(), found.perf()
    prefill, decode = (pool.members[0].worker for pool in design.pools)
    assert perf.prefill(prefill, 64).seconds == pytest.approx(0.01 + 64 / 500)
    assert perf.decode(decode, 4, 100).seconds == pytest.approx(0.036 + 4e-4)
    link = design.boundary.link  # type: ignore[union-attr]
    kv = prefill.model.kv_bytes_per_token(prefill.precision.kv)
    assert [link.alpha + n * kv / link.bandwidth for n in (16, 256)] == pytest.approx([0.00216, 0.00456])


def test_workers_that_are_alike_share_what_either_was_seen_to_do(written: Any) -> None:
    found = read_calibration(
        written(document(roles=[role("prefill", prompts=PROMPTS), role("decode", decodes=DECODES)]))
    )
    (steps,) = found.perf().steps.values()
    assert steps.prompts is not None
    assert steps.decodes is not None


def test_one_pool_has_no_boundary(written: Any) -> None:
    found = read_calibration(written(document(roles=[role("colocated", prompts=PROMPTS, decodes=DECODES)])))
    assert found.design().boundary is None
    assert found.design().pools[0].role is Role.COLOCATED


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"kind": "plan"}, "kind"),
        ({"colour": 1}, "colour"),
        ({"gateway_seconds": -1}, "gateway_seconds"),
        ({"roles": []}, "roles"),
        ({"roles": [role("prefill", prompts=PROMPTS)]}, "roles"),
        ({"roles": [role("prefill"), role("decode", decodes=DECODES)]}, "prefill"),
        ({"roles": [role("prefill", prompts=PROMPTS), role("decode")]}, "decode"),
        ({"roles": [role("prefill", prompts=PROMPTS, kv="int9"), role("decode", decodes=DECODES)]}, "prefill"),
        ({"machine": {"cpu": "", "cores": 0, "memory_bytes": 1}}, "cores"),
    ],
)
def test_what_does_not_fit_is_named(written: Any, changes: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInput, match=place):
        read_calibration(written(document(**changes)))


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"kind": "calibration"}', "[" * 5000])
def test_what_is_none_is_refused(written: Any, text: str) -> None:
    with pytest.raises(InvalidInput):
        read_calibration(written(text))


def test_there_is_a_schema_and_a_word_for_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "Calibration" in json.dumps(schema())
    with pytest.raises(InvalidInput, match="No such file"):
        read_calibration(tmp_path / "none.json")


def test_no_number_is_taken_for_finite_that_is_not(written: Any) -> None:
    text = json.dumps(document(gateway_seconds=float("nan")))
    with pytest.raises(InvalidInput):
        read_calibration(written(text))
    assert np.isfinite(read_calibration(written(document())).gateway_seconds)
