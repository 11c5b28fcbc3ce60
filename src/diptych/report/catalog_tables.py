"""The catalog as tables for people and as plain rows for programs: each number with unit, source, day and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link
from diptych.catalog.memory import MemoryTier
from diptych.catalog.model import Attention, Experts, LayerGroup, Mlp, Model, StateSpace
from diptych.catalog.offer import Offer, PriceBook
from diptych.catalog.provenance import Confidence, Provenance
from diptych.units import GB, TFLOPS, format_bandwidth, format_bytes, format_seconds, format_usd

Row = dict[str, Any]

_CORE_FACTS = ("memory_gb", "memory_bandwidth_gbs", "bf16_tflops", "fp16_tflops")
_CONFIDENCE_ORDER = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
_NONE = "–"


def accelerator_row(accelerator: Accelerator, book: PriceBook) -> Row:
    """One accelerator in plain units, with what the book makes of it. None where no source gives the number."""
    offers = book.offers_of(accelerator.name)
    price = offers[0].usd_per_gpu_hour if offers else None
    return {
        "name": accelerator.name,
        "vendor": accelerator.vendor,
        "form_factor": accelerator.form_factor,
        "memory_bytes": accelerator.memory_bytes or None,
        "memory_bandwidth": accelerator.memory_bandwidth or None,
        "peak_flops": {dtype.value: flops for dtype, flops in accelerator.peak_flops.items()},
        "scaleup": {
            "technology": accelerator.scaleup.technology,
            "bandwidth": accelerator.scaleup.bandwidth or None,
            "world": accelerator.scaleup.world,
        },
        "pcie_bandwidth": accelerator.pcie_bandwidth or None,
        "nic_bandwidth": accelerator.nic_bandwidth or None,
        "tdp_w": accelerator.tdp_w or None,
        "ridge_point_flop_per_byte": accelerator.ridge_point or None,
        "book": book.name,
        "book_date": book.date,
        "usd_per_hour": price,
        "bytes_per_usd": accelerator.memory_bandwidth * 3600 / price if price else None,
        "missing": list(accelerator.missing),
        "confidence": core_confidence(accelerator).value,
        "aliases": list(accelerator.aliases),
        "notes": accelerator.notes,
    }


def core_confidence(accelerator: Accelerator) -> Confidence:
    """The least trusted of memory, its bandwidth and 16-bit compute."""
    known = [accelerator.provenance[fact].confidence for fact in _CORE_FACTS if fact in accelerator.provenance]
    return min(known, key=_CONFIDENCE_ORDER.index, default=Confidence.LOW)


def link_row(link: Link) -> Row:
    """One link in bytes, bytes/s and seconds."""
    return {
        "name": link.name,
        "kind": link.kind.value,
        "bandwidth": link.bandwidth,
        "achievable": link.achievable,
        "efficiency": link.efficiency,
        "alpha_s": link.alpha,
        "half_size_bytes": link.half_size,
        "per_piece_s": link.per_piece,
        "same_server": link.same_server,
        "notes": link.notes,
        **provenance_row(link.provenance),
    }


def tier_row(tier: MemoryTier) -> Row:
    """One memory tier in bytes, bytes/s and seconds."""
    return {
        "name": tier.name,
        "kind": tier.kind.value,
        "capacity_bytes": tier.capacity,
        "read_bandwidth": tier.read_bandwidth,
        "write_bandwidth": tier.write_bandwidth,
        "latency_s": tier.latency,
        "usd_per_gb_hour": tier.usd_per_gb_hour,
        **provenance_row(tier.provenance),
    }


def model_row(model: Model) -> Row:
    """One model: its counts, and its layers group by group."""
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "published_parameters": model.published_parameters,
        "layers": model.num_layers,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "max_context": model.max_context,
        "native": model.native.value,
        "weight_bytes": model.weight_bytes(model.native),
        "kv_bytes_per_token": {dtype.value: model.kv_bytes_per_token(dtype) for dtype in (Dtype.BF16, Dtype.FP8)},
        "kv_bytes_at_32k_bf16": float(model.kv_bytes(32768, Dtype.BF16)),
        "state_bytes": model.state_bytes,
        "groups": [
            {"count": group.count, "mixer": mixer_text(group), "mlp": mlp_text(group)} for group in model.layers
        ],
        "aliases": list(model.aliases),
        **provenance_row(model.provenance),
    }


def offer_row(catalog: Catalog, book: PriceBook, offer: Offer) -> Row:
    """One offer; `nic_bandwidth` falls back to the accelerator's usual one, which `nic_source` then says."""
    return {
        "book": book.name,
        "accelerator": offer.accelerator,
        "provider": offer.provider,
        "instance": offer.instance,
        "gpus": offer.gpus,
        "usd_per_hour": offer.usd_per_hour,
        "usd_per_gpu_hour": offer.usd_per_gpu_hour,
        "price_type": offer.price_type,
        "region": offer.region,
        "nic_bandwidth": catalog.nic_bandwidth(offer),
        "nic_source": "offer" if offer.nic_bandwidth else "accelerator",
        "date": offer.date,
        **provenance_row(offer.provenance),
    }


def book_row(book: PriceBook) -> Row:
    """One price book: its day and how much it holds."""
    return {
        "name": book.name,
        "date": book.date,
        "offers": len(book.offers),
        "accelerators": sorted({offer.accelerator for offer in book}),
    }


def provenance_row(provenance: Provenance | None) -> Row:
    """Source, day and confidence."""
    if provenance is None:
        return {"source": "", "as_of": "", "confidence": ""}
    return {"source": provenance.source, "as_of": provenance.as_of, "confidence": provenance.confidence.value}


def fact_rows(accelerator: Accelerator) -> list[Row]:
    """Every sourced number of an accelerator: fact, value, unit, source, day, confidence."""
    scaleup = accelerator.scaleup
    values: Mapping[str, tuple[Any, str]] = {
        "memory_gb": (accelerator.memory_bytes / GB, "GB"),
        "memory_bandwidth_gbs": (accelerator.memory_bandwidth / GB, "GB/s"),
        "scaleup_gbs_per_dir": (scaleup.bandwidth / GB, "GB/s"),
        "scaleup_bandwidth": (scaleup.bandwidth / GB, "GB/s"),
        "scaleup_technology": (scaleup.technology, ""),
        "scaleup_world_size": (scaleup.world, "accelerators"),
        "scaleup_world": (scaleup.world, "accelerators"),
        "pcie_gbs_per_dir": (accelerator.pcie_bandwidth / GB, "GB/s"),
        "nic_gbs_per_dir_typical": (accelerator.nic_bandwidth / GB, "GB/s, typical"),
        "tdp_w": (accelerator.tdp_w, "W"),
    }
    peaks = {f"{dtype}_tflops": (flops / TFLOPS, "TFLOPS") for dtype, flops in accelerator.peak_flops.items()}
    if Dtype.INT8 in accelerator.peak_flops:
        peaks["int8_tops"] = (accelerator.peak_flops[Dtype.INT8] / TFLOPS, "TOPS")
    known = {**peaks, **values}
    return [
        {"fact": fact, "value": known[fact][0], "unit": known[fact][1], **provenance_row(origin)}
        for fact, origin in accelerator.provenance.items()
        if fact in known
    ]


def mixer_text(group: LayerGroup) -> str:
    """'GQA 64/8 heads of 128', 'MLA 512+64', 'state 2.1 MB'."""
    mixer = group.mixer
    if mixer is None:
        return _NONE
    if isinstance(mixer, StateSpace):
        return f"state {format_bytes(mixer.state_bytes)}"
    return _attention_text(mixer)


def _attention_text(mixer: Attention) -> str:
    if mixer.is_mla:
        text = f"MLA {mixer.heads} heads, latent {mixer.latent_rank}+{mixer.rope_dim}"
    else:
        kind = "MQA" if mixer.kv_heads == 1 else "MHA" if mixer.kv_heads == mixer.heads else "GQA"
        text = f"{kind} {mixer.heads}/{mixer.kv_heads} heads of {mixer.head_dim}"
    if mixer.window:
        text += f", window {mixer.window}"
    if mixer.index_topk:
        text += f", reads {mixer.index_topk}"
    return text + (f", {mixer.compress}:1" if mixer.compress > 1 else "")


def mlp_text(group: LayerGroup) -> str:
    """'dense 28672' or '8 of 128 experts of 768'."""
    mlp = group.mlp
    if isinstance(mlp, Mlp):
        return f"dense {mlp.intermediate}" + ("" if mlp.gated else ", plain")
    if isinstance(mlp, Experts):
        shared = f" + {mlp.shared_intermediate} shared" if mlp.shared_intermediate else ""
        return f"{mlp.per_token} of {mlp.count} experts of {mlp.intermediate}{shared}"
    return _NONE


def accelerators_table(catalog: Catalog, book: PriceBook) -> Table:
    """All accelerators, the incomplete ones last with what they lack."""
    table = _table(
        f"accelerators · prices {book.name}, {book.date}",
        ("accelerator", "GB", "GB/s", "16-bit", "8-bit", "ridge", "NIC", "W", "$/h", "GB/s/$", "trust"),
    )
    ordered = sorted(catalog.accelerators.values(), key=lambda accelerator: bool(accelerator.missing))
    for accelerator in ordered:
        table.add_row(*_accelerator_cells(accelerator, book))
    incomplete = [f"{each.name} ({', '.join(each.missing)})" for each in ordered if each.missing]
    table.caption = (
        "dense TFLOPS; ridge: 16-bit FLOP per byte; NIC: GB/s; $/h: the book's cheapest accelerator-hour"
        + (f"\nincomplete, cannot be planned with: {'; '.join(incomplete)}" if incomplete else "")
    )
    return table


def _accelerator_cells(accelerator: Accelerator, book: PriceBook) -> tuple[str, ...]:
    row = accelerator_row(accelerator, book)
    narrow = [accelerator.peak_flops.get(dtype, 0.0) for dtype in (Dtype.FP8, Dtype.INT8)]
    price = row["usd_per_hour"]
    trust = "gaps" if accelerator.missing else row["confidence"]
    return (
        accelerator.name,
        _text(accelerator.memory_bytes / GB, "{:.3g}".format),
        _text(accelerator.memory_bandwidth / GB, "{:.0f}".format),
        _text(accelerator.peak_16bit / TFLOPS, "{:.0f}".format),
        _text(max(narrow) / TFLOPS, "{:.0f}".format),
        _text(accelerator.ridge_point, "{:.0f}".format),
        _text(accelerator.nic_bandwidth / GB, "{:.3g}".format),
        _text(accelerator.tdp_w, "{:.0f}".format),
        _text(price, format_usd),
        _text(accelerator.memory_bandwidth / GB / price if price else 0, "{:.0f}".format),
        trust,
    )


def accelerator_detail(accelerator: Accelerator, book: PriceBook) -> list[Table]:
    """Every number with its origin, then what follows from them and from the book."""
    title = (
        f"{accelerator.name} · {accelerator.vendor} {accelerator.form_factor} · dense compute, bandwidth per direction"
    )
    facts = _table(title, _FACT_COLUMNS)
    for row in fact_rows(accelerator):
        value = f"{_short(row['value'])} {row['unit']}".strip()
        facts.add_row(row["fact"], value, row["confidence"], row["as_of"], row["source"])
    derived = _table(f"derived · prices {book.name}, {book.date}", ("what", "value"))
    summary = accelerator_row(accelerator, book)
    price = summary["usd_per_hour"]
    derived.add_row("ridge point, 16-bit", _text(accelerator.ridge_point, "{:.1f} FLOP/B".format))
    derived.add_row("cheapest accelerator-hour", _text(price, "{:.4g} USD".format))
    derived.add_row("memory traffic per USD", _text(summary["bytes_per_usd"], format_bytes))
    if accelerator.missing:
        derived.add_row("cannot be planned with, lacks", ", ".join(accelerator.missing))
    if accelerator.aliases:
        derived.add_row("also called", ", ".join(accelerator.aliases))
    if accelerator.notes:
        derived.add_row("notes", accelerator.notes)
    return [facts, derived]


_FACT_COLUMNS = ("fact", "value", "trust", "as of", "source")


def links_table(links: Iterable[Link]) -> Table:
    """All links."""
    table = _table(
        "links · per accelerator and direction", ("link", "kind", "line", "achieved", "α", "per piece", "trust")
    )
    for link in links:
        per_piece = format_seconds(link.per_piece) if link.per_piece else _NONE
        trust = link.provenance.confidence.value if link.provenance else ""
        cells = (format_bandwidth(link.bandwidth), format_bandwidth(link.achievable), format_seconds(link.alpha))
        table.add_row(link.name, link.kind.value, *cells, per_piece, trust)
    return table


def tiers_table(tiers: Iterable[MemoryTier]) -> Table:
    """All memory tiers."""
    table = _table("memory tiers · per accelerator", ("tier", "kind", "capacity", "read", "write", "latency", "trust"))
    for tier in tiers:
        trust = tier.provenance.confidence.value if tier.provenance else ""
        rates = (_text(tier.read_bandwidth, format_bandwidth), _text(tier.write_bandwidth, format_bandwidth))
        table.add_row(
            tier.name, tier.kind.value, _text(tier.capacity, format_bytes), *rates, format_seconds(tier.latency), trust
        )
    table.caption = "hbm is the accelerator's own memory"
    return table


def models_table(models: Iterable[Model]) -> Table:
    """All models."""
    columns = ("model", "size", "active", "KV/token", "at 32K", "state", "native", "trust")
    table = _table("models · KV in 16 bit, bytes per token and of 32,768 tokens", columns)
    for model in models:
        table.add_row(
            model.name,
            f"{model.parameters / 1e9:.4g}B",
            f"{model.active_parameters / 1e9:.3g}B",
            f"{model.kv_bytes_per_token(Dtype.BF16):,.0f}",
            format_bytes(float(model.kv_bytes(32768, Dtype.BF16))),
            _text(model.state_bytes, format_bytes),
            model.native.value,
            model.provenance.confidence.value if model.provenance else "",
        )
    return table


def model_detail(model: Model) -> list[Table]:
    """The layers group by group, and the counts."""
    groups = _table(
        f"{model.name} · {model.num_layers} layers, hidden {model.hidden}", ("layers", "mixer", "feed-forward")
    )
    for group in model.layers:
        groups.add_row(str(group.count), mixer_text(group), mlp_text(group))
    return [groups, pairs_table("counts", {k: v for k, v in model_row(model).items() if k not in ("name", "groups")})]


def offers_table(catalog: Catalog, title: str, offers: Sequence[tuple[PriceBook, Offer]]) -> Table:
    """Offers, cheapest accelerator-hour first as given."""
    columns = ("book", "accelerator", "instance", "gpus", "$/h", "$/h each", "NIC each", "region", "date")
    table = _table(title, columns)
    for book, offer in offers:
        nic = format_bandwidth(catalog.nic_bandwidth(offer)) if catalog.nic_bandwidth(offer) else _NONE
        table.add_row(
            book.name,
            offer.accelerator,
            offer.instance,
            str(offer.gpus),
            format_usd(offer.usd_per_hour),
            format_usd(offer.usd_per_gpu_hour),
            nic if offer.nic_bandwidth else f"{nic}*",
            offer.region,
            offer.date,
        )
    table.caption = "* the source does not say: the accelerator's usual NIC"
    return table


def books_table(books: Iterable[PriceBook]) -> Table:
    """All price books."""
    table = _table("price books", ("book", "date", "offers", "accelerators"))
    for book in books:
        row = book_row(book)
        table.add_row(book.name, book.date, str(row["offers"]), str(len(row["accelerators"])))
    return table


def pairs_table(title: str, values: Mapping[str, Any]) -> Table:
    """Names and values, one a line."""
    table = _table(title, ("what", "value"))
    for name, value in values.items():
        if value not in (None, "", [], {}):
            table.add_row(name, _short(value))
    return table


_LONG_COLUMNS = ("source", "value", "mixer", "feed-forward", "instance")
_TEXT_COLUMNS = (*_LONG_COLUMNS, "trust", "kind")


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, header_style="bold")
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    for index, column in enumerate(columns):
        is_text = index == 0 or column in _TEXT_COLUMNS
        table.add_column(column, overflow="fold", no_wrap=index == 0, justify="left" if is_text else "right")
    return table


def _text(value: float | None, form: Any) -> str:
    return str(form(value)) if value else _NONE


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(part)}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
