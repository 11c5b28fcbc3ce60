"""How published load tests drove their servers, as their scripts say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diptych.catalog.catalog import Catalog
from diptych.planner.benchmark_cases import Case, Unanswerable, case_of
from diptych.planner.benchmark_rows import Kind, read_table

TABLE = Path(__file__).parents[2] / "data/benchmarks/benchmarks_unified.csv.gz"


@pytest.fixture(scope="module")
def sweeps() -> list[Case]:
    catalog, cases = Catalog.load(), []
    for row in read_table(TABLE).rows:
        if row.kind is Kind.CLOSED and "aiconfigurator" in row.source:
            try:
                cases.append(case_of(row, catalog))
            except Unanswerable:
                continue
    return cases


def settings(cases: list[Case], engine: str, model: str, accelerator: str) -> dict[tuple[float, ...], set[float]]:
    """By (nominal prompt, TP, clients): poll of SGLang's rows, hold of TensorRT-LLM's."""
    found: dict[tuple[float, ...], set[float]] = {}
    for case in cases:
        worker = case.decode
        if (worker.engine, worker.model.name) == (engine, model) and worker.accelerator.name.startswith(accelerator):
            key = (case.row.isl or 0.0, worker.parallelism.tp, case.row.concurrency or 0.0)
            value = case.protocol.poll if engine == "sglang" else case.protocol.hold
            found.setdefault(key, set()).add(value)
    return found


def test_sglang_looks_rarely_on_blackwell_only_where_its_script_says_so(sweeps: list[Case]) -> None:
    deepseek = settings(sweeps, "sglang", "DeepSeek-V3", "B200")
    assert deepseek[1024, 8, 8] == {10.0}
    assert deepseek[1024, 8, 64] == {30.0}
    for accelerator in ("B200", "B300", "H200"):
        assert set().union(*settings(sweeps, "sglang", "GLM-5", accelerator).values()) == {1.0}
    assert set().union(*settings(sweeps, "sglang", "DeepSeek-R1", "H200").values()) == {1.0}


def test_tensorrt_batches_prompts_of_llama_70b_at_1k_1k_below_tp8(sweeps: list[Case]) -> None:
    waits = settings(sweeps, "trtllm", "Llama-3.1-70B", "H200")
    assert 20.0 in waits[1024, 2, 16]
    elsewhere = [value for (isl, tp, _), value in waits.items() if isl != 1024 or tp == 8]
    assert elsewhere
    assert all(value == {0.0} for value in elsewhere)


def test_other_load_tests_wait_for_nothing(sweeps: list[Case]) -> None:
    others = [case for case in sweeps if case.protocol.spread == 1.0]
    assert others
    assert {(case.protocol.poll, case.protocol.hold) for case in others} == {(1.0, 0.0)}
