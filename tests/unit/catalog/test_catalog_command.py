"""`diptych catalog` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diptych import cli
from diptych.catalog.catalog import Catalog

SECTIONS = ("accelerators", "links", "tiers", "models", "offers")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["diptych", "catalog", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


@pytest.fixture
def diptych(capsys, monkeypatch):  # type: ignore[no-untyped-def]
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


@pytest.mark.parametrize("section", SECTIONS)
def test_lists_as_table_and_as_json(diptych, section: str) -> None:  # type: ignore[no-untyped-def]
    code, table, _ = diptych(section)
    assert code == 0
    code, text, _ = diptych(section, "--json")
    assert code == 0
    rows = json.loads(text)
    assert len(rows) == len(getattr(Catalog.load(), "books" if section == "offers" else section))
    for row in rows:
        assert row["name"] in table


@pytest.mark.parametrize(
    ("section", "name", "shown"),
    [
        ("accelerators", "h100", "aiconfigurator-core"),
        ("accelerators", "THead-PPU", "cannot be planned with, lacks"),
        ("links", "rdma-200g", "Mooncake"),
        ("tiers", "dram", "PCIe"),
        ("models", "meta-llama/Llama-3.1-70B-Instruct", "GQA 64/8 heads of 128"),
        ("models", "DeepSeek-V3", "MLA 128 heads, latent 512+64"),
        ("offers", "MI300X", "crusoe"),
    ],
)
def test_details(diptych, section: str, name: str, shown: str) -> None:  # type: ignore[no-untyped-def]
    code, text, _ = diptych(section, name)
    assert code == 0
    assert shown in text
    code, text, _ = diptych(section, name, "--json")
    assert code == 0
    assert json.loads(text)


def test_every_number_of_a_detail_has_source_day_and_confidence(diptych) -> None:  # type: ignore[no-untyped-def]
    _, text, _ = diptych("accelerators", "A100-80", "--json", "--book", "neo")
    detail = json.loads(text)
    assert detail["book"] == "neo"
    assert detail["bytes_per_usd"] == pytest.approx(2.039e12 * 3600 / detail["usd_per_hour"])
    assert detail["ridge_point_flop_per_byte"] == pytest.approx(153, abs=0.1)
    assert len(detail["facts"]) >= 12
    for fact in detail["facts"]:
        assert fact["source"]
        assert fact["as_of"]
        assert fact["confidence"]


def test_every_fact_of_every_accelerator_is_shown() -> None:
    from diptych.report.catalog_tables import fact_rows

    for accelerator in Catalog.load().accelerators.values():
        shown = {row["fact"] for row in fact_rows(accelerator)} | {"pcie_generation"}
        assert set(accelerator.provenance) <= shown, accelerator.name


def test_no_line_of_the_lists_is_wrapped_or_cut_in_a_pipe(diptych) -> None:  # type: ignore[no-untyped-def]
    _, table, _ = diptych("accelerators")
    assert "H100-SXM-80GB          80     3350    989" in table
    assert "…" not in table


def test_an_overlay_and_a_price_list_show(diptych, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("accelerators: {C600: {memory: 144GB, memory_bandwidth: 4TB/s, compute: {bf16: 500}}}")
    prices = tmp_path / "ours.csv"
    prices.write_text("accelerator,provider,instance,gpus,usd_per_hour\nC600,us,x,8,16\n")
    code, text, _ = diptych("accelerators", "c600", "--catalog", str(overlay), "--book", "aws", "--json")
    assert code == 0
    assert json.loads(text)["usd_per_hour"] is None
    code, _, err = diptych("accelerators", "c600", "--book", str(prices))
    assert (code, "unknown accelerator 'C600'" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("accelerators", "H10O"), "did you mean H100"),
        (("models", "nothing-like-it-at-all"), "unknown model"),
        (("links", "rdma-40g"), "did you mean rdma-400g"),
        (("tiers", "tape"), "unknown memory tier"),
        (("offers", "--book", "awss"), "did you mean aws"),
        (("accelerators", "--catalog", "nowhere.yaml"), "No such file"),
        (("models", "./nowhere"), "No such file"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_2(diptych, arguments: tuple[str, ...], said: str) -> None:  # type: ignore[no-untyped-def]
    code, out, err = diptych(*arguments)
    assert code == 2
    assert said in err
    assert not out
    assert "Traceback" not in err
