"""A limit on the whole latency bounds both stages, so that a tight one ends the search instead of opening it."""

from __future__ import annotations

from typing import Any

import pytest

from diptych.catalog.catalog import Catalog
from diptych.design.axes import Role
from diptych.perf.roofline import Roofline
from diptych.planner.ask import ask
from diptych.planner.meeting import Meeting
from diptych.planner.planning import Search, plan
from diptych.planner.stages import Margins
from diptych.workload.load import load_workload

CATALOG, PERF = Catalog.load(), Roofline()
WORKLOAD = load_workload("fixed:1000x100", rate=1.0)


def searching(limit: str) -> Search:
    asked = ask("Llama-3.1-8B", WORKLOAD, f"e2e_p90<{limit}", catalog=CATALOG, perf=PERF, prices="hyperstack", rate=1.0)
    return Search.of(asked)


@pytest.mark.parametrize("limit", ["450ms", "600ms", "1s", "3s"])
def test_few_fleets_are_judged_however_tight_the_limit(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judged, margins = [0], Meeting.margins

    def counted(self: Meeting, rate: float, prefill: Any, decode: Any) -> Margins:
        judged[0] += 1
        return margins(self, rate, prefill, decode)

    monkeypatch.setattr(Meeting, "margins", counted)
    searching(limit).at(1.0)
    assert judged[0] < 4_000


def test_what_an_alone_stage_cannot_keep_is_not_paired() -> None:
    search = searching("450ms")
    for role in (Role.PREFILL, Role.DECODE):
        for candidate in search.spaces[role].candidates[::7]:
            stage = search.tables.stage(role, candidate.worker)
            if getattr(stage, "hopeless", False):
                assert search.tables.least(role, candidate.worker, 1.0) is None
            floor = search.tables.floor(role, candidate.worker, 1.0)
            least = search.tables.least(role, candidate.worker, 1.0)
            assert least is None or (floor is not None and floor <= least)


def test_a_tight_limit_is_kept() -> None:
    found = plan("Llama-3.1-8B", WORKLOAD, "e2e_p90<600ms", catalog=CATALOG, perf=PERF, prices="hyperstack")
    assert found.best.e2e.p90 <= 0.6
    assert sum(found.best.ttft_parts.values()) == pytest.approx(found.best.ttft_decode.mean)
