"""The catalog that is shipped: complete, sourced, found by any of its names."""

from __future__ import annotations

import math

import pytest

from diptych.catalog.accelerator import missing_numbers
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import LinkKind
from diptych.catalog.load import builtin_catalog
from diptych.catalog.memory import TierKind
from diptych.catalog.provenance import Confidence
from diptych.errors import InvalidCatalog

CATALOG = Catalog.load()

INCOMPLETE = {
    "Cerebras-WSE3": ("dense 8-bit or 16-bit compute",),
    "MetaX-C500": ("memory", "memory bandwidth"),
    "Rubin-CPX": ("dense 8-bit or 16-bit compute",),
    "SambaNova-SN40L": ("dense 8-bit or 16-bit compute",),
    "THead-PPU": ("memory bandwidth",),
}


def test_all_accelerators_are_there_and_the_incomplete_say_what_they_lack() -> None:
    assert len(CATALOG.accelerators) == 66
    assert {a.name: a.missing for a in CATALOG.accelerators.values() if not a.is_complete} == INCOMPLETE
    assert len(CATALOG.planable) == 66 - len(INCOMPLETE)


def test_every_number_has_a_source_a_day_and_no_share_alike_origin() -> None:
    for accelerator in CATALOG.accelerators.values():
        for fact, origin in accelerator.provenance.items():
            assert origin.source, (accelerator.name, fact)
            assert origin.as_of, (accelerator.name, fact)
            assert "evokernel" not in origin.source, (accelerator.name, fact)
            assert "recalled" not in origin.source or origin.confidence is not Confidence.HIGH
        present = (accelerator.memory_bytes, accelerator.memory_bandwidth, accelerator.tdp_w, accelerator.nic_bandwidth)
        facts = ("memory_gb", "memory_bandwidth_gbs", "tdp_w", "nic_gbs_per_dir_typical")
        for value, fact in zip(present, facts, strict=True):
            assert (value > 0) == (fact in accelerator.provenance), (accelerator.name, fact)


def test_data_sheets_read_as_printed() -> None:
    h100 = CATALOG.accelerator("H100")
    assert (h100.memory_bytes, h100.memory_bandwidth, h100.tdp_w) == (80e9, 3.35e12, 700)
    assert h100.peak_flops[Dtype.BF16] == 989e12
    assert h100.scaleup.bandwidth == 450e9
    assert h100.scaleup.world == 8
    assert h100.ridge_point == pytest.approx(295.2, abs=0.1)


def test_no_sheet_value_is_the_sparse_one() -> None:
    assert CATALOG.accelerator("L40S").peak_flops[Dtype.FP8] == 733e12
    assert CATALOG.accelerator("RTX-4090").peak_flops[Dtype.FP8] == pytest.approx(330.3e12)
    assert CATALOG.accelerator("H200").peak_flops[Dtype.BF16] == 989e12


def test_cdna3_multiplies_the_other_fp8() -> None:
    assert CATALOG.accelerator("MI300X").fp8_format is Dtype.FP8_FNUZ
    assert CATALOG.accelerator("MI355X").fp8_format is Dtype.FP8
    assert CATALOG.accelerator("A100").fp8_format is None


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100", "H100-SXM-80GB"),
        ("h100", "H100-SXM-80GB"),
        ("A100-80", "A100-SXM4-80GB"),
        ("A100-40", "A100-SXM4-40GB"),
        ("L40S", "L40S"),
        ("L40", "L40"),
        ("H20", "H20-96GB"),
        ("910B2", "Ascend-910B2"),
        ("trn2", "Trainium2"),
        ("v6e", "TPU-v6e"),
        ("M3-Ultra", "Apple-M3-Ultra"),
    ],
)
def test_accelerators_answer_to_short_names(spelling: str, name: str) -> None:
    assert CATALOG.accelerator(spelling).name == name


def test_no_two_accelerators_or_models_share_a_spelling() -> None:
    names = [alias.casefold() for a in CATALOG.accelerators.values() for alias in (a.name, *a.aliases)]
    assert len(names) == len(set(names))
    models = [alias.casefold() for m in CATALOG.models.values() for alias in (m.name, *m.aliases)]
    assert len(models) == len(set(models))


def test_every_name_and_alias_finds_its_own_entry() -> None:
    for accelerator in CATALOG.accelerators.values():
        for name in (accelerator.name, *accelerator.aliases):
            assert CATALOG.accelerator(name) is accelerator, name
    for model in CATALOG.models.values():
        for name in (model.name, *model.aliases):
            assert CATALOG.model(name).name == model.name, name


@pytest.mark.parametrize(
    ("look_up", "wrong", "right"),
    [
        (CATALOG.accelerator, "H1000", "H100"),
        (CATALOG.model, "Lama-3.1-70B", "Llama-3.1-70B"),
        (CATALOG.link, "rmda-400g", "rdma-400g"),
        (CATALOG.tier, "drum", "dram"),
        (CATALOG.book, "awz", "aws"),
    ],
)
def test_an_unknown_name_gets_the_nearest(look_up, wrong: str, right: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidCatalog, match=right):
        look_up(wrong)


def test_links_cover_every_kind_and_give_what_was_measured() -> None:
    assert {link.kind for link in CATALOG.links.values()} == set(LinkKind)
    for link in CATALOG.links.values():
        assert 0 < link.efficiency <= 1
        assert link.alpha > 0
        assert link.provenance is not None
        assert link.provenance.source
        assert link.same_server == (link.kind in (LinkKind.SCALEUP, LinkKind.PCIE))
    assert CATALOG.link("ib-400g").achievable == pytest.approx(49.5e9)
    assert CATALOG.link("tcp-100g-ucx").achievable == pytest.approx(0.55e9, rel=0.02)
    assert CATALOG.link("nvlink4").achievable == pytest.approx(348e9, rel=0.01)


def test_mooncake_tables_come_back_from_the_fitted_links() -> None:
    """Reported milliseconds beside ours, eight ports of one node; 1K to 32K tokens within 6 % (their spread around a line)."""
    tokens = (1024, 2048, 4096, 8192, 16384, 32768)
    tables = {
        "rdma-200g": (147456, (1.50, 2.51, 4.75, 8.84, 16.43, 31.65), 8),
        "rdma-400g": (2 * 192512, (3.96, 6.43, 10.95, 20.31, 39.14, 76.78), 4),
    }
    for name, (per_token, reported, ports) in tables.items():
        link = CATALOG.link(name)
        for count, milliseconds in zip(tokens, reported, strict=True):
            ours = link.alpha + count * per_token / (ports * link.achievable)
            assert ours == pytest.approx(milliseconds * 1e-3, rel=0.06), (name, count)


def test_tiers_are_one_of_each_kind() -> None:
    assert [tier.kind for tier in CATALOG.tiers.values()] == list(TierKind)


def test_books_name_their_day_and_hold_known_accelerators_at_sane_prices() -> None:
    assert {
        "aws",
        "azure",
        "gcp",
        "gcp-spot",
        "crusoe",
        "hyperstack",
        "nebius",
        "lambda",
        "runpod",
        "neo",
        "tco",
    } <= set(CATALOG.books)
    for book in CATALOG.books.values():
        assert book.date, book.name
        for offer in book:
            assert offer.accelerator in CATALOG.accelerators
            assert offer.gpus >= 1
            assert 0.05 < offer.usd_per_gpu_hour < 100
            assert math.isfinite(offer.usd_per_hour)


def test_the_published_h100_hour_runs_from_2_40_to_11_06() -> None:
    cheapest = {name: book.offers_of("H100-SXM-80GB") for name, book in CATALOG.books.items()}
    hour = {name: offers[0].usd_per_gpu_hour for name, offers in cheapest.items() if offers}
    assert hour["neo"] == pytest.approx(2.40)
    assert hour["aws"] == pytest.approx(6.88)
    assert hour["gcp"] == pytest.approx(11.06, abs=0.01)
    assert hour["tco"] == pytest.approx(1.69)


def test_neo_keeps_the_cheapest_of_every_instance_size() -> None:
    neo = CATALOG.book("neo")
    sizes = [(offer.accelerator, offer.gpus) for offer in neo]
    assert len(sizes) == len(set(sizes))
    for name in ("crusoe", "hyperstack", "lambda", "nebius", "runpod"):
        for offer in CATALOG.book(name):
            rival = next(o for o in neo if (o.accelerator, o.gpus) == (offer.accelerator, offer.gpus))
            assert rival.usd_per_hour <= offer.usd_per_hour


def test_aws_is_us_east_1_and_carries_its_network() -> None:
    aws = CATALOG.book("aws")
    assert {offer.region for offer in aws} == {"us-east-1"}
    by_instance = {offer.instance: offer for offer in aws}
    assert by_instance["g5.xlarge"].nic_bandwidth == pytest.approx(0.3125e9)  # 2.5 Gbit/s
    assert by_instance["p5.48xlarge"].nic_bandwidth == pytest.approx(50e9)  # 3,200 Gbit/s over 8


def test_an_offer_without_network_falls_back_to_the_accelerator() -> None:
    offer = CATALOG.book("hyperstack").offers_of("H100-SXM-80GB")[0]
    assert offer.nic_bandwidth == 0
    assert CATALOG.nic_bandwidth(offer) == CATALOG.accelerator("H100").nic_bandwidth
    aws = CATALOG.book("aws").offers_of("A10G")[0]
    assert CATALOG.nic_bandwidth(aws) == aws.nic_bandwidth


def test_loading_twice_gives_the_same_catalog() -> None:
    assert builtin_catalog() is builtin_catalog()
    assert Catalog.load() == CATALOG


def test_missing_numbers_accepts_any_eight_or_sixteen_bit_rate() -> None:
    assert missing_numbers(1, 1, {Dtype.INT8: 1.0}) == ()
    assert missing_numbers(1, 1, {Dtype.FP4: 1.0, Dtype.FP32: 1.0}) == ("dense 8-bit or 16-bit compute",)
    assert missing_numbers(0, 0, {}) == ("memory", "memory bandwidth", "dense 8-bit or 16-bit compute")
