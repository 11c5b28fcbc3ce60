"""A user's file over the built-in catalog: what it may say, and every way in which it may be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import LinkKind
from diptych.catalog.memory import TierKind
from diptych.catalog.provenance import Confidence
from diptych.errors import InvalidCatalog

GOOD = """\
accelerators:
  C600:
    vendor: MetaX
    memory: 144GB
    memory_bandwidth: 4TB/s
    compute: {bf16: 0.5PFLOPS, int8: 1000}
    scaleup: {technology: MetaXLink, bandwidth: 200GB/s, world: 8}
    nic_bandwidth: 400Gb/s
    tdp: 1.2kW
    aliases: [metax]
    source: a colleague
    as_of: 2026-10-01
    confidence: low
links:
  wan: {kind: tcp, bandwidth: 100Gb/s, alpha: 2ms, efficiency: 0.8, half_size: 1MB, per_piece: 5us}
tiers:
  pool: {kind: remote, capacity: 2TB, read_bandwidth: 10GB/s, write_bandwidth: 9, latency: 0}
models:
  tiny:
    config: {num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4, intermediate_size: 128, vocab_size: 100}
    aliases: petite
offers:
  - {book: mine, accelerator: metax, provider: us, instance: rack, gpus: 8, usd_per_hour: 12, date: 2026-10-01}
"""


def lay(tmp_path: Path, text: str, name: str = "mine.yaml") -> Catalog:
    path = tmp_path / name
    path.write_text(text)
    return Catalog.load(path)


def complaints(tmp_path: Path, text: str, name: str = "mine.yaml") -> str:
    with pytest.raises(InvalidCatalog) as caught:
        lay(tmp_path, text, name)
    return str(caught.value)


def test_new_entries_in_every_section(tmp_path: Path) -> None:
    catalog = lay(tmp_path, GOOD)
    chip = catalog.accelerator("c600")
    assert (chip.memory_bytes, chip.memory_bandwidth, chip.nic_bandwidth, chip.tdp_w) == (144e9, 4e12, 50e9, 1200)
    assert chip.peak_flops == {Dtype.BF16: 5e14, Dtype.INT8: 1e15}
    assert chip.scaleup.world == 8
    assert chip.is_complete
    origin = chip.provenance["memory_gb"]
    assert (origin.source, origin.as_of, origin.confidence) == ("a colleague", "2026-10-01", Confidence.LOW)
    link = catalog.link("wan")
    assert link.kind is LinkKind.TCP
    assert (link.achievable, link.alpha, link.half_size) == (1e10, 2e-3, 1e6)
    assert link.per_piece == pytest.approx(5e-6)
    tier = catalog.tier("pool")
    assert (tier.kind, tier.capacity, tier.write_bandwidth, tier.latency) == (TierKind.REMOTE, 2e12, 9e9, 0)
    assert catalog.model("petite").num_layers == 2
    (offer,) = catalog.book("mine")
    assert (offer.accelerator, offer.usd_per_gpu_hour, offer.date) == ("C600", 1.5, "2026-10-01")
    assert catalog.book("mine").date == "2026-10-01"


def test_the_built_in_catalog_is_untouched(tmp_path: Path) -> None:
    lay(tmp_path, GOOD)
    assert "C600" not in Catalog.load().accelerators
    assert "mine" not in Catalog.load().books


def test_one_number_of_a_known_accelerator_replaced_by_alias(tmp_path: Path) -> None:
    chip = lay(tmp_path, "accelerators: {H100: {memory: 94GB}}").accelerator("H100-SXM-80GB")
    plain = Catalog.load().accelerator("H100")
    assert chip.memory_bytes == 94e9
    assert chip.memory_bandwidth == plain.memory_bandwidth
    assert chip.provenance["memory_gb"].source.endswith("mine.yaml:1")
    assert chip.provenance["tdp_w"] == plain.provenance["tdp_w"]


def test_a_missing_number_supplied_makes_it_complete(tmp_path: Path) -> None:
    catalog = lay(tmp_path, "accelerators: {THead-PPU: {memory_bandwidth: 2.8TB/s}}")
    assert catalog.accelerator("THead-PPU").is_complete


def test_like_copies_under_a_new_name(tmp_path: Path) -> None:
    catalog = lay(tmp_path, "accelerators: {H100-half: {like: H100, compute: {bf16: 495}}}")
    assert catalog.accelerator("H100-half").peak_flops[Dtype.BF16] == 495e12
    assert catalog.accelerator("H100").name == "H100-SXM-80GB"


def test_json_is_read_too(tmp_path: Path) -> None:
    text = json.dumps({"accelerators": {"H100": {"memory": 94}}}, indent="\t")
    assert lay(tmp_path, text, "mine.json").accelerator("H100").memory_bytes == 94e9


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert lay(tmp_path, "# nothing\n") == Catalog.load()


def test_extends_lays_the_base_down_first(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("accelerators: {H100: {memory: 90GB, tdp: 600W}}")
    catalog = lay(tmp_path, "extends: base.yaml\naccelerators: {H100: {memory: 91GB}}")
    chip = catalog.accelerator("H100")
    assert (chip.memory_bytes, chip.tdp_w) == (91e9, 600)


def test_later_files_win(tmp_path: Path) -> None:
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("links: {rdma-400g: {alpha: 1ms}}")
    second.write_text("links: {rdma-400g: {alpha: 2ms}}")
    assert Catalog.load(first, second).link("rdma-400g").alpha == 2e-3
    assert Catalog.load(second, first).link("rdma-400g").alpha == 1e-3


def test_a_cycle_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml")
    (tmp_path / "b.yaml").write_text("extends: [c.yaml]")
    (tmp_path / "c.yaml").write_text("extends: a.yaml")
    with pytest.raises(InvalidCatalog, match=r"extends itself: a.yaml → b.yaml → c.yaml → a.yaml"):
        Catalog.load(tmp_path / "a.yaml")


def test_a_file_that_extends_itself(tmp_path: Path) -> None:
    assert "mine.yaml → mine.yaml" in complaints(tmp_path, "extends: mine.yaml")


def test_a_diamond_is_no_cycle(tmp_path: Path) -> None:
    (tmp_path / "root.yaml").write_text("accelerators: {H100: {memory: 90GB}}")
    (tmp_path / "left.yaml").write_text("extends: root.yaml")
    (tmp_path / "right.yaml").write_text("extends: root.yaml")
    assert lay(tmp_path, "extends: [left.yaml, right.yaml]").accelerator("H100").memory_bytes == 90e9


def test_all_findings_come_at_once_with_their_lines(tmp_path: Path) -> None:
    text = complaints(
        tmp_path,
        "accelerators:\n"
        "  H100:\n"
        "    memory: -80GB\n"
        "    memory_bandwith: 3TB/s\n"
        "  Mine:\n"
        "    memory: 80 parsecs\n"
        "    compute: {bf17: 1}\n"
        "offers:\n"
        "  - {accelerator: H10O, gpus: 8, usd_per_hour: 10}\n"
        "  - {accelerator: H100, gpus: 0, usd_per_hour: .nan}\n"
        "acelerators: {}\n",
    )
    for line, said in (
        (3, "'-80GB' is not above zero"),
        (4, "unknown key 'memory_bandwith'; did you mean memory_bandwidth"),
        (6, "unknown unit 'parsecs'"),
        (7, "unknown format 'bf17'"),
        (9, "unknown accelerator 'H10O'; did you mean H100"),
        (10, "gpus: 0 is not a whole number from 1"),
        (10, "usd_per_hour: nan is not a finite number"),
        (11, "unknown section 'acelerators'; did you mean accelerators"),
    ):
        assert any(f"mine.yaml:{line}:" in row and said in row for row in text.splitlines()), (line, said, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accelerators: {New: {memory: 80GB}}", "is new and lacks memory_bandwidth, compute"),
        ("accelerators: {New: {like: H20O}}", "unknown accelerator 'H20O'; did you mean H20"),
        ("accelerators: {H100: {memory: .inf}}", "is not a finite number"),
        ("accelerators: {H100: {memory: 80GB/s}}", "unknown unit 'GB/s'"),
        ("accelerators: {H100: {memory: true}}", "True is not a number"),
        ("accelerators: {H100: {compute: 989TFLOPS}}", "not a mapping of formats"),
        ("accelerators: {H100: {compute: {bf16: 989GB}}}", "is not a compute rate"),
        ("accelerators: {H100: {scaleup: {speed: 1}}}", "unknown key 'speed'"),
        ("accelerators: {H100: {tdp: 700kg}}", "is not a power"),
        ("accelerators: {H100: 80GB}", "accelerators.H100 is not a mapping"),
        ("accelerators: [H100]", "accelerators is not a mapping of names"),
        ("accelerators: {H100: {confidence: certain}}", "is not one of high, medium, low"),
        ("links: {x: {kind: wire, bandwidth: 1, alpha: 1ms}}", "'wire' is not one of scaleup"),
        ("links: {x: {kind: tcp, bandwidth: 1, alpha: 5}}", "5 has no unit"),
        ("links: {x: {kind: tcp, bandwidth: 1, alpha: -5ms}}", "is negative"),
        ("links: {x: {kind: tcp, bandwidth: 1, alpha: 1ms, efficiency: 1.2}}", "is not in (0, 1]"),
        ("links: {x: {kind: tcp}}", "is new and lacks bandwidth, alpha"),
        ("tiers: {x: {kind: dram}}", "is new and lacks capacity, read_bandwidth, write_bandwidth"),
        ("tiers: {dram: {usd_per_gb_hour: -1}}", "-1 is negative"),
        ("models: {x: {}}", "is new and lacks config"),
        ("models: {x: {config: ./nowhere}}", "No such file"),
        ("models: {x: {config: {num_hidden_layers: 2}}}", "models.x: hidden_size or n_embd or d_model is missing"),
        ("models: {x: {config: 5}}", "not a path or a mapping"),
        ("offers: {a: b}", "offers is not a list"),
        ("offers: [{accelerator: H100}]", "lacks gpus, usd_per_hour"),
        ("offers: [{accelerator: H100, gpus: 1, usd_per_hour: -2}]", "-2 is not above zero"),
        ("extends: {a: 1}", "extends is not a file name"),
        ('extends: "a\\0b"', "extends is not a file name"),
        (f"extends: {'x' * 5000}", "File name too long"),
        ('models: {x: {config: "a\\0b"}}', "not JSON: ValueError"),
        ("extends: nowhere.yaml", "nowhere.yaml: No such file"),
        ("[1, 2]", "not a mapping"),
        ("accelerators: {H100: {memory: 80GB, memory: 94GB}}", "memory is given twice"),
        (
            "accelerators: {H100: {memory: !!python/object/apply:os.system [ls]}}",
            "tag tag:yaml.org,2002:python/object/apply:os.system",
        ),
        ("accelerators: {H100: {memory: !!python/name:os.system x}}", "tag tag:yaml.org,2002:python/name:os.system"),
        ("? [a, b]\n: 1", "a key that is not plain text"),
        ("a: [1", "not YAML"),
        ("a: \x07", "not YAML"),
        ("a:\n\t- b: 1", "mine.yaml:2: not YAML"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaints(tmp_path, text)


def test_a_billion_laughs_is_refused_unbuilt(tmp_path: Path) -> None:
    rows = ['a0: &a0 ["lol"]'] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    text = complaints(tmp_path, "\n".join(rows))
    assert "more than 64 aliases" in text


def test_few_aliases_that_unfold_to_very_much_are_refused(tmp_path: Path) -> None:
    rows = [f"a0: &a0 [{', '.join(['x'] * 2000)}]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 12)]
    assert "aliases unfold to more than" in complaints(tmp_path, "\n".join(rows))


def test_an_alias_that_holds_itself_is_refused(tmp_path: Path) -> None:
    assert "mine.yaml" in complaints(tmp_path, "links: &a {x: *a}")


def test_deep_nesting_is_refused_unbuilt(tmp_path: Path) -> None:
    assert "more than 24 levels deep" in complaints(tmp_path, "a: " + "[" * 30)
    assert "nesting depth" in complaints(tmp_path, "a: " + "[" * 50_000)  # libyaml's own limit comes first


def test_a_ten_megabyte_file_is_not_read(tmp_path: Path) -> None:
    assert "bytes; expected at most" in complaints(tmp_path, "#" * 10_000_000)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\xfa\x00")
    with pytest.raises(InvalidCatalog, match=r"mine\.yaml"):
        Catalog.load(tmp_path / "mine.yaml")


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidCatalog) as caught:
        Catalog.load(tmp_path / "nowhere.yaml", tmp_path)
    assert [finding.problem for finding in caught.value.findings] == ["No such file or directory", "not a file"]


def test_too_many_files(tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"{index}.yaml").write_text(f"extends: {index + 1}.yaml")
    with pytest.raises(InvalidCatalog, match="more than 32 files"):
        Catalog.load(tmp_path / "0.yaml")


def test_an_offer_in_a_known_book_replaces_its_namesake(tmp_path: Path) -> None:
    old = Catalog.load().book("nebius").offers_of("B200-SXM")[0]
    text = (
        f"offers: [{{book: nebius, accelerator: B200, provider: Nebius, instance: {old.instance}, "
        f"region: {old.region}, gpus: 8, usd_per_hour: 20}}]"
    )
    offers = lay(tmp_path, text).book("nebius").offers_of("B200-SXM")
    assert [offer.usd_per_hour for offer in offers] == [20]
