"""The capability table is complete for the catalog, and a user's accelerator is assumed to run what its row multiplies."""

from __future__ import annotations

from dataclasses import replace

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Precision
from diptych.design.capability import CUSTOM, UNSERVED, capabilities, engines, executable, family

CATALOG = Catalog.load()


def test_every_accelerator_of_the_catalog_has_a_family() -> None:
    assert [a.name for a in CATALOG.accelerators.values() if family(a) == CUSTOM] == []


def test_families_follow_the_longest_prefix() -> None:
    names = {"L4": "ada", "L40S": "ada", "A100-SXM4-80GB": "ampere", "H20-96GB": "hopper", "H200-SXM-141GB": "hopper"}
    assert {name: family(CATALOG.accelerator(name)) for name in names} == names


def test_every_row_names_its_source_and_an_engine() -> None:
    for accelerator in CATALOG.accelerators.values():
        for row in capabilities(accelerator):
            assert row.source
            assert row.engines


def test_no_engine_runs_what_the_silicon_does_not_multiply() -> None:
    for accelerator in CATALOG.accelerators.values():
        assert all(accelerator.peak_flops.get(p.activations) for p in executable(accelerator))


def test_unserved_parts_execute_nothing() -> None:
    groq = CATALOG.accelerator("Groq-LPU-v1")
    assert family(groq) == UNSERVED
    assert executable(groq) == ()


def test_a_users_accelerator_runs_what_it_multiplies() -> None:
    mine = replace(CATALOG.accelerator("H100"), name="my-chip", peak_flops={Dtype.BF16: 1e14, Dtype.FP8: 2e14})
    assert Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8) in executable(mine)
    assert Precision(Dtype.INT8, Dtype.INT8, Dtype.BF16) not in executable(mine)
    assert engines(mine, Precision(Dtype.INT4, Dtype.BF16, Dtype.BF16)) == ("vllm",)
