"""`diptych catalog`: what exists, each number with its source and day."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from diptych.catalog.catalog import Catalog
from diptych.catalog.offer import Offer, PriceBook
from diptych.cli.output import out, print_json
from diptych.report import catalog_tables as tables

app = typer.Typer(
    name="catalog",
    help="What exists: accelerators, links, memory tiers, models and offers, each number with its source and day.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str | None, typer.Argument(help="One of them, by any of its names, in detail.")]
Overlays = Annotated[
    list[Path] | None, typer.Option("--catalog", help="A YAML or JSON file laid over the built-in catalog; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Book = Annotated[str, typer.Option("--book", help="Price book by name, or a CSV of prices.")]
AnyBook = Annotated[str | None, typer.Option("--book", help="Only this price book, or a CSV of prices.")]


def _show(found: list[Table], rows: Any, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    for table in found:
        _console(table).print(table)


def _console(table: Table) -> Console:
    """The terminal, or for a pipe, which has no width, one as wide as the table: no number is cut or wrapped."""
    if out.is_terminal:
        return out
    needed = Measurement.get(out, out.options.update(max_width=500), table).maximum
    return Console(width=max(80, needed), highlight=False)


@app.command()
def accelerators(name: Name = None, catalog: Overlays = None, book: Book = "aws", as_json: Json = False) -> None:
    """Accelerators: memory, bandwidth, dense compute, ridge point, and what a book asks for them."""
    loaded = Catalog.load(*(catalog or ()))
    prices = loaded.book(book)
    if name is None:
        rows: Any = [tables.accelerator_row(accelerator, prices) for accelerator in loaded.accelerators.values()]
        return _show([] if as_json else [tables.accelerators_table(loaded, prices)], rows, as_json)
    found = loaded.accelerator(name)
    rows = {**tables.accelerator_row(found, prices), "facts": tables.fact_rows(found)}
    return _show(tables.accelerator_detail(found, prices), rows, as_json)


@app.command()
def links(name: Name = None, catalog: Overlays = None, as_json: Json = False) -> None:
    """Links: latency, line rate and what is achieved of it."""
    loaded = Catalog.load(*(catalog or ()))
    if name is None:
        rows = [tables.link_row(link) for link in loaded.links.values()]
        return _show([tables.links_table(loaded.links.values())], rows, as_json)
    row = tables.link_row(loaded.link(name))
    return _show([tables.pairs_table(row["name"], row)], row, as_json)


@app.command()
def tiers(name: Name = None, catalog: Overlays = None, as_json: Json = False) -> None:
    """Memory tiers in which KV may reside."""
    loaded = Catalog.load(*(catalog or ()))
    if name is None:
        rows = [tables.tier_row(tier) for tier in loaded.tiers.values()]
        return _show([tables.tiers_table(loaded.tiers.values())], rows, as_json)
    row = tables.tier_row(loaded.tier(name))
    return _show([tables.pairs_table(row["name"], row)], row, as_json)


@app.command()
def models(name: Name = None, catalog: Overlays = None, as_json: Json = False) -> None:
    """Models: parameters, layers, KV bytes. NAME may be a Hugging Face id, a config.json or its directory."""
    loaded = Catalog.load(*(catalog or ()))
    if name is None:
        rows = [tables.model_row(model) for model in loaded.models.values()]
        return _show([tables.models_table(loaded.models.values())], rows, as_json)
    found = loaded.model(name)
    return _show(tables.model_detail(found), tables.model_row(found), as_json)


@app.command()
def offers(name: Name = None, catalog: Overlays = None, book: AnyBook = None, as_json: Json = False) -> None:
    """Price books; with NAME the offers of an accelerator, with --book those of one book."""
    loaded = Catalog.load(*(catalog or ()))
    if name is None and book is None:
        rows = [tables.book_row(each) for each in loaded.books.values()]
        return _show([tables.books_table(loaded.books.values())], rows, as_json)
    chosen = [loaded.book(book)] if book else list(loaded.books.values())
    only = loaded.accelerator(name).name if name else None
    found = [(each, offer) for each in chosen for offer in each if only in (None, offer.accelerator)]
    found.sort(key=_cheapest_first)
    title = " · ".join(filter(None, ("offers", only, f"{chosen[0].name}, {chosen[0].date}" if book else "all books")))
    rows = [tables.offer_row(loaded, each, offer) for each, offer in found]
    return _show([tables.offers_table(loaded, title, found)], rows, as_json)


def _cheapest_first(pair: tuple[PriceBook, Offer]) -> tuple[Any, ...]:
    book, offer = pair
    return (offer.usd_per_gpu_hour, offer.accelerator, book.name, offer.gpus, offer.instance, offer.region)
