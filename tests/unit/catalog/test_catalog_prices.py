"""A user's price list: read row by row, refused row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from diptych.catalog.catalog import Catalog
from diptych.errors import InvalidCatalog

HEADER = "accelerator,provider,instance,gpus,usd_per_hour,region,date,nic_gbs\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ours.csv"
    path.write_text(text)
    return path


def test_a_list_becomes_a_book_named_after_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "H100,us,rack,8,16,berlin,2026-11-01,25\nL40S,us,box,4,3.2,,,\n")
    for book in (Catalog.load().book(str(path)), Catalog.load(prices=path).book("ours")):
        assert (book.name, book.date) == ("ours", "2026-11-01")
        first, second = book.offers
        assert (first.accelerator, first.usd_per_gpu_hour, first.nic_bandwidth) == ("H100-SXM-80GB", 2.0, 25e9)
        assert (second.accelerator, second.gpus, second.nic_bandwidth) == ("L40S", 4, 0)
        assert first.provenance is not None
        assert first.provenance.source == f"{path}:2"


def test_optional_columns_may_be_absent(tmp_path: Path) -> None:
    book = Catalog.load().book(write(tmp_path, "accelerator,provider,instance,gpus,usd_per_hour\nT4,a,b,1,0.3\n"))
    assert book.date == "undated"


def test_accelerators_of_an_overlay_can_be_priced(tmp_path: Path) -> None:
    overlay = tmp_path / "o.yaml"
    overlay.write_text("accelerators: {Mine: {memory: 1GB, memory_bandwidth: 1TB/s, compute: {bf16: 1}}}")
    path = write(tmp_path, HEADER + "mine,us,x,1,1,,,\n")
    assert Catalog.load(overlay, prices=path).book("ours").offers[0].accelerator == "Mine"


def test_every_bad_row_is_named(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER
        + "H10O,us,a,8,16,,,\n"
        + "H100,us,a,8,nan,,,\n"
        + "H100,us,a,8,-1,,,\n"
        + "H100,us,a,eight,16,,,\n"
        + "H100,us,a,2.5,16,,,-3\n"
        + "H100,us,a\n"
        + "H100,us,a,8,$16,,,\n"
        + "H100,us,a,1,2,,,,,\n",
    )
    with pytest.raises(InvalidCatalog) as caught:
        Catalog.load(prices=path)
    text = str(caught.value)
    for line, said in (
        (2, "unknown accelerator 'H10O'; did you mean H100"),
        (3, "usd_per_hour: 'nan' is not a finite number"),
        (4, "usd_per_hour: '-1' is not above zero"),
        (5, "gpus: 'eight' is not a number"),
        (6, "gpus: '2.5' is not a whole number"),
        (6, "nic_gbs: '-3' is negative"),
        (7, "as many values as there are columns"),
        (8, "usd_per_hour: '$16' is not a number"),
        (9, "as many values as there are columns"),
    ):
        assert any(row.startswith(f"{path}:{line}:") and said in row for row in text.splitlines()), (line, said)
    assert len(caught.value.findings) == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column accelerator is missing"),
        ("accelerator,provider,instance,gpus,price\n", "unknown column 'price'"),
        ("accelerator,provider,instance,gpus\n", "column usd_per_hour is missing"),
        (HEADER, "no offers"),
        (HEADER + "H100," + "x" * 200_000 + ",a,1,1,,,\n", "not CSV: field larger"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidCatalog) as caught:
        Catalog.load().book(write(tmp_path, text))
    assert said in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    catalog = Catalog.load()
    with pytest.raises(InvalidCatalog, match="No such file"):
        catalog.book(tmp_path / "nowhere.csv")
    with pytest.raises(InvalidCatalog, match="Is a directory"):
        catalog.book(tmp_path)
    path = tmp_path / "binary.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidCatalog, match="not UTF-8"):
        catalog.book(path)
    path.write_bytes(b"x" * 10_000_000)
    with pytest.raises(InvalidCatalog, match="at most"):
        catalog.book(path)


def test_overlay_and_price_findings_come_together(tmp_path: Path) -> None:
    overlay = tmp_path / "o.yaml"
    overlay.write_text("acelerators: {}")
    with pytest.raises(InvalidCatalog) as caught:
        Catalog.load(overlay, prices=write(tmp_path, HEADER))
    assert len(caught.value.findings) == 2
