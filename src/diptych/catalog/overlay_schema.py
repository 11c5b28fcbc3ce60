"""What a user's catalog file may say: key by key, how its value is read.

A reader takes the plain value and raises `ValueError` with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diptych.catalog import quantities
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import LinkKind
from diptych.catalog.memory import TierKind
from diptych.catalog.provenance import Confidence
from diptych.errors import did_you_mean

Read = Callable[[Any], Any]
Schema = Mapping[str, Read]


def _one_of(kind: type[LinkKind] | type[TierKind] | type[Confidence]) -> Read:
    def read(value: Any) -> Any:
        names = [member.value for member in kind]
        if str(value) not in names:
            raise ValueError(f"{value!r} is not one of {', '.join(names)}")
        return kind(str(value))

    return read


def _compute(value: Any) -> dict[Dtype, float]:
    if not isinstance(value, dict) or not value:
        raise ValueError("not a mapping of formats to rates")
    names = [dtype.value for dtype in Dtype]
    peaks = {}
    for name, rate in value.items():
        if name not in names:
            raise ValueError(f"unknown format {name!r}; {did_you_mean(str(name), names)}")
        peaks[Dtype(name)] = quantities.compute(rate)
    return peaks


def _scaleup(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a mapping of technology, bandwidth, world")
    readers: Schema = {"technology": quantities.text, "bandwidth": quantities.bandwidth, "world": quantities.count}
    for name in value:
        if name not in readers:
            raise ValueError(f"unknown key {name!r}; {did_you_mean(str(name), list(readers))}")
    return {name: readers[name](part) for name, part in value.items()}


def _names(value: Any) -> tuple[str, ...]:
    return tuple(quantities.text(part) for part in (value if isinstance(value, list) else [value]))


def _config(value: Any) -> Any:
    if not isinstance(value, (str, dict)):
        raise ValueError("not a path or a mapping")
    return value


ORIGIN: Schema = {"source": quantities.text, "as_of": quantities.text, "confidence": _one_of(Confidence)}
ACCELERATOR: Schema = {
    "like": quantities.text,
    "vendor": quantities.text,
    "memory": quantities.size,
    "memory_bandwidth": quantities.bandwidth,
    "compute": _compute,
    "scaleup": _scaleup,
    "pcie_bandwidth": quantities.bandwidth,
    "nic_bandwidth": quantities.bandwidth,
    "tdp": quantities.watts,
    "form_factor": quantities.text,
    "notes": quantities.text,
    "aliases": _names,
    **ORIGIN,
}
LINK: Schema = {
    "kind": _one_of(LinkKind),
    "bandwidth": quantities.bandwidth,
    "alpha": quantities.duration,
    "efficiency": quantities.share,
    "half_size": quantities.byte_count,
    "per_piece": quantities.duration,
    "same_server": quantities.flag,
    "notes": quantities.text,
    **ORIGIN,
}
TIER: Schema = {
    "kind": _one_of(TierKind),
    "capacity": quantities.size,
    "read_bandwidth": quantities.bandwidth,
    "write_bandwidth": quantities.bandwidth,
    "latency": quantities.duration,
    "usd_per_gb_hour": quantities.amount,
    **ORIGIN,
}
MODEL: Schema = {"config": _config, "aliases": _names, "published_parameters": quantities.price, **ORIGIN}
OFFER: Schema = {
    "book": quantities.text,
    "accelerator": quantities.text,
    "provider": quantities.text,
    "instance": quantities.text,
    "gpus": quantities.count,
    "usd_per_hour": quantities.price,
    "region": quantities.text,
    "date": quantities.text,
    "price_type": quantities.text,
    "nic_bandwidth": quantities.bandwidth,
    **ORIGIN,
}
