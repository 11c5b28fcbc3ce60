"""How fast KV codecs are beside memcpy, and how many bytes they leave; writes codecs.md, the last line is JSON.

What it must cost: a cast at 30 % of memcpy or more, on one core; int4 four times fewer bytes than bf16, scales counted.

    python benchmarks/codecs.py                # 32 MiB of bf16 KV; a few minutes
    python benchmarks/codecs.py --quick        # fewer repeats, nothing written

One thread, CPU-seconds, preallocated room on both sides, the best of several runs; memcpy of the same source is timed in turn
with every codec. GB/s count the bytes read and those written, as a memcpy of n bytes moves 2n. Losses and ratios are of a real
model's KV (`tests/data/kv`); speed is of Gaussian KV with outlier channels, which is larger.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import ml_dtypes
import numpy as np
import zstandard

from diptych.boundary.codecs import casting, compress, vector
from diptych.boundary.codecs.codec import Codec
from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.stored import KvShape, StoredKV
from diptych.boundary.descriptor import Layout, Shard
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.boundary.layout import empty_pool, permuted
from diptych.boundary.regroup import Paged, Pages, copy_pages, regroup
from diptych.boundary.reshard import reshard, reshard_plan

E, G = Element, ScaleGranularity
ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "tests/data/kv/smollm2_135m_bf16.zst"
SHAPE = KvShape(layers=8, parts=2, tokens=1024, heads=8, dim=128)  # an eighth of Llama-3.1-8B's layers, 32 MiB in bf16
BF16 = Format(E.BF16)
GOAL = 0.30


def inline(element: E, granularity: G, group: int = 0) -> Format:
    return Format(element, Scaling(ScaleSource.INLINE, granularity, group=group))


def unit(element: E) -> Format:
    return Format(element, Scaling(ScaleSource.UNIT))


CASTS = [
    (Format(E.FP32), BF16),
    (BF16, Format(E.FP32)),
    (Format(E.FP16), BF16),
    (BF16, Format(E.FP16)),
    (Format(E.FP32), Format(E.FP16)),
    (Format(E.FP16), Format(E.FP32)),
    (BF16, unit(E.E4M3FN)),
    (unit(E.E4M3FN), BF16),
    (BF16, unit(E.E4M3FNUZ)),
    (unit(E.E4M3FNUZ), BF16),
    (BF16, unit(E.E5M2)),
    (unit(E.E5M2), BF16),
    (Format(E.FP16), unit(E.E4M3FN)),
    (unit(E.E4M3FN), Format(E.FP16)),
    (inline(E.E4M3FN, G.HEAD), inline(E.E4M3FNUZ, G.HEAD)),
    (inline(E.E4M3FNUZ, G.HEAD), inline(E.E4M3FN, G.HEAD)),
]
QUANTISED = [
    inline(E.E4M3FN, G.HEAD),
    inline(E.E4M3FNUZ, G.HEAD),
    inline(E.E5M2, G.HEAD),
    inline(E.INT8, G.TENSOR),
    inline(E.INT8, G.HEAD),
    inline(E.INT8, G.TOKEN),
    inline(E.INT8, G.GROUP, 64),
    inline(E.INT4, G.HEAD),
    inline(E.INT4, G.TOKEN),
    inline(E.INT4, G.GROUP, 64),
    inline(E.INT4, G.GROUP, 32),
    inline(E.NVFP4, G.GROUP, 16),
]
COMPRESSED = [BF16, Format(E.FP16), inline(E.E4M3FN, G.HEAD), inline(E.INT8, G.TOKEN), *QUANTISED[8:]]


@dataclass(frozen=True)
class Speed:
    """Bytes moved per CPU-second, and a memcpy's in the same moments; `source` is how often its time goes into the call's."""

    rate: float
    memcpy: float
    source: float

    @property
    def share(self) -> float:
        return self.rate / self.memcpy

    def __str__(self) -> str:
        return f"{self.rate / 1e9:.1f} | {self.share:.0%}"


class Bench:
    """Times calls in turn with a memcpy of `source` bytes."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats

    def __call__(self, call: Callable[[], object], moved: int, source: int) -> Speed:
        room, copy = np.ones(source, np.uint8), np.zeros(source, np.uint8)
        best = [float("inf")] * 2
        call()
        for _ in range(self.repeats):
            for index, step in enumerate((call, lambda: np.copyto(copy, room))):
                begin = time.thread_time()
                step()
                best[index] = min(best[index], time.thread_time() - begin)
        return Speed(moved / best[0], 2 * source / best[1], best[1] / best[0])


def gaussian() -> StoredKV:
    """KV of some size: Gaussian, a few channels of every key head ten times as large."""
    random = np.random.default_rng(1)
    values = random.standard_normal(SHAPE.dims, np.float32)
    values[:, 0, :, :, random.integers(0, SHAPE.dim, 4)] *= 10
    return convert(StoredKV.of(values), BF16)


def sample() -> StoredKV:
    """KV of a real model."""
    raw = zstandard.ZstdDecompressor().decompress(SAMPLE.read_bytes())
    return StoredKV.of(np.frombuffer(raw, np.uint16).view(ml_dtypes.bfloat16).reshape(3, 2, 256, 3, 64))


def traffic(*sides: StoredKV) -> int:
    return sum(side.codes.nbytes + side.scales.nbytes for side in sides)


def conversion(bench: Bench, kv: StoredKV, wanted: Format) -> Speed:
    out = StoredKV.empty(kv.shape, wanted)
    return bench(lambda: convert(kv, wanted, out=out), traffic(kv, out), kv.codes.nbytes)


def by_tables(bench: Bench, kv: StoredKV, wanted: Format) -> Speed:
    """The same as if numkong were not installed."""
    trusted = casting._trusted
    casting._trusted = lambda origin, wanted: None  # type: ignore[assignment]
    try:
        return conversion(bench, kv, wanted)
    finally:
        casting._trusted = trusted


def cast_rows(bench: Bench, kv: StoredKV) -> Iterator[tuple[str, str, Speed, Speed | None]]:
    for origin, wanted in CASTS:
        source = convert(kv, origin)
        tables = by_tables(bench, source, wanted)
        vectors = conversion(bench, source, wanted) if vector.is_installed() else None
        yield name(origin), name(wanted), tables, vectors


def loss(codec: Codec, kv: StoredKV) -> float:
    """Root mean square error of a decoded tensor beside its root mean square."""
    values = kv.array.astype(np.float64)
    decoded = codec.decode(codec.encode(kv)).array.astype(np.float64)
    return float(np.sqrt(((decoded - values) ** 2).mean() / (values**2).mean()))


def quantised_rows(bench: Bench, kv: StoredKV, real: StoredKV) -> Iterator[tuple[Any, ...]]:
    for wire in QUANTISED:
        codec = Codec(BF16, wire)
        encode, decode = conversion(bench, kv, wire), conversion(bench, codec.encode(kv), BF16)
        fewer = kv.codes.nbytes / codec.wire_bytes(SHAPE)
        yield name(wire), fewer, loss(codec, real), encode, decode


def compressed_rows(bench: Bench, kv: StoredKV, real: StoredKV) -> Iterator[tuple[Any, ...]]:
    for wire in COMPRESSED:
        small, large = Codec(BF16, wire, True).encode(real), Codec(BF16, wire, True).encode(kv)
        packed = compress.compress(large)
        ratios = [convert(each, BF16).codes.nbytes / len(compress.compress(each)) for each in (small, large)]
        moved, source = traffic(large) + len(packed), traffic(large)
        speeds = [
            bench(call, moved, source)
            for call in (
                lambda large=large: compress.compress(large),
                lambda wire=wire, packed=packed: compress.decompress(SHAPE, wire, packed),
            )
        ]
        yield name(wire), real.codes.nbytes / Codec(BF16, wire).wire_bytes(real.shape), *ratios, *speeds


def geometry_rows(bench: Bench, kv: StoredKV) -> Iterator[tuple[str, Speed]]:
    size, keys = kv.codes.nbytes // 2, kv.array.view(np.uint16)[:, 0]
    hnd, nhd = Layout.of("HND"), Layout.of("NHD")
    pool = keys.reshape(8, 64, 16, 8, 128)
    yield "NHD to HND, blocks of 16", bench(lambda: permuted(pool, nhd, hnd), 2 * size, size)
    target = Paged(empty_pool(nhd, 8, 16, 64, 8, 128, np.dtype(np.uint16)), nhd, tuple(range(16)), 1024)
    source = Paged(pool, nhd, tuple(range(64)), 1024)
    yield "blocks of 16 to 64", bench(lambda: regroup(source, target), 2 * size, size)
    both = Paged(empty_pool(hnd, 8, 16, 64, 8, 128, np.dtype(np.uint16)), hnd, tuple(range(16)), 1024)
    yield "NHD blocks of 16 to HND of 64", bench(lambda: regroup(source, both), 2 * size, size)
    two = [np.ascontiguousarray(keys[:, None, :, rank * 4 : rank * 4 + 4]) for rank in range(2)]
    pieces = reshard_plan(Shard(tp=2), Shard(tp=4), 8)
    yield "TP 2 to TP 4, 8 heads", bench(lambda: reshard(two, pieces, Shard(tp=4), 8), 2 * size, size)
    count, stride = size // 131072, 147456
    here, there = (
        Pages(keys.reshape(-1).view(np.uint8), 131072, count),
        Pages(np.zeros(count * stride, np.uint8), stride, count),
    )
    every = tuple(range(count))
    yield (
        "pages of 128 KiB to a stride of 144",
        bench(lambda: copy_pages(here, every, there, every, 131072), 2 * size, size),
    )


def name(form: Format) -> str:
    scaling = form.scaling
    if scaling.source is ScaleSource.NONE:
        return str(form.element)
    if scaling.source is ScaleSource.UNIT:
        return f"{form.element}, scale 1"
    return f"{form.element} {scaling.granularity}" + (f" of {scaling.group}" if scaling.group else "")


def table(head: str, rows: list[str]) -> str:
    titles = [title.strip() for title in head.split("|")]
    rule = ["---"] + ["---:"] * (len(titles) - 1)
    return "\n".join(f"| {row} |" for row in (" | ".join(titles), " | ".join(rule), *rows))


INTRO = """# Codecs beside memcpy

Written by `python benchmarks/codecs.py` on {machine}.
One thread; CPU-seconds, the best of {repeats} runs; room on both sides allocated before. The tensor is
{dims} = (layers, parts, tokens, heads, dim), {size} MiB in bf16: Gaussian with outlier channels. GB/s count
bytes read and bytes written; a memcpy of the same source, timed in turn with each codec, moved {memcpy:.1f} GB/s so counted (the
median). Other work on the machine (load average {load:.1f}) moves both, so compare the shares.

## Casts

Goal: 30 % of memcpy on one core. {verdict}

{casts}

## Under scales

From bf16 and back to it, scales measured, stored and counted. "Fewer" is against bf16; the loss is the root mean square error
over the root mean square of a real model's KV.

{quantised}

No int4 with scales can be four times smaller than bf16: 4 bits and any scale are more than a quarter of 16 (one scale per head
of 1,024 tokens: 3.9998 times). Compressed without loss (below) it is; against fp32 it is twice these numbers, which says nothing
about the codec.

## Compressed without loss

Times fewer bytes than bf16, scales and heads counted: as it is, compressed on a real model's KV (SmolLM2-135M, three layers,
heads 64 wide), and compressed on the Gaussian tensor. The speed is of compression alone.

{compressed}

## Where bytes lie

{geometry}
"""
CAST_HEAD = "from | to | numpy and ml_dtypes, GB/s | of memcpy | with numkong, GB/s | of memcpy"
QUANTISED_HEAD = "wire | times fewer bytes | loss | encode, GB/s | of memcpy | decode, GB/s | of memcpy"
COMPRESSED_HEAD = " | ".join(
    (
        "wire | as it is | compressed, real KV | compressed, Gaussian",
        "compress, GB/s | of memcpy | decompress, GB/s | of memcpy",
    )
)
GEOMETRY_HEAD = "operation, 16 MiB of keys in two-byte elements | GB/s | of memcpy"


def page(bench: Bench) -> tuple[str, dict[str, Any]]:
    kv, real = gaussian(), sample()
    casts = list(cast_rows(bench, kv))
    quantised, compressed = list(quantised_rows(bench, kv, real)), list(compressed_rows(bench, kv, real))
    memcpy = sorted(tables.memcpy for _, _, tables, _ in casts)[len(casts) // 2]
    best = {f"{origin} to {to}": (vectors or tables) for origin, to, tables, vectors in casts}
    text = INTRO.format(
        machine=_machine(),
        load=os.getloadavg()[0],
        repeats=bench.repeats,
        dims=SHAPE.dims,
        size=kv.codes.nbytes >> 20,
        memcpy=memcpy / 1e9,
        verdict=_verdict(best),
        casts=table(CAST_HEAD, [f"{origin} | {to} | {slow} | {fast or '- | -'}" for origin, to, slow, fast in casts]),
        quantised=table(QUANTISED_HEAD, [f"{w} | {n:.2f} | {lost:.4f} | {e} | {d}" for w, n, lost, e, d in quantised]),
        compressed=table(
            COMPRESSED_HEAD, [f"{w} | {n:.2f} | {s:.2f} | {g:.2f} | {c} | {d}" for w, n, s, g, c, d in compressed]
        ),
        geometry=table(GEOMETRY_HEAD, [f"{what} | {speed}" for what, speed in geometry_rows(bench, kv)]),
    )
    found = {
        "memcpy_gb_s": round(memcpy / 1e9, 1),
        "casts_of_memcpy": {pair: round(speed.share, 2) for pair, speed in best.items()},
        "casts_below_goal": _short(best),
        "int4_fewer_bytes": {w: round(n, 2) for w, n, *_ in quantised if w.startswith("int4")},
        "int4_compressed_fewer_bytes": {w: round(s, 2) for w, _, s, *_ in compressed if w.startswith("int4")},
    }
    return text, found


def _machine() -> str:
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}"
    return f"{platform.machine()} with {os.cpu_count()} cores, {versions}, {_numkong()}"


def _numkong() -> str:
    return f"numkong {vector.numkong.__version__}" if vector.is_installed() else "numkong not installed"


def _short(best: dict[str, Speed]) -> list[str]:
    return [pair for pair, speed in best.items() if speed.share < GOAL]


def _verdict(best: dict[str, Speed]) -> str:
    short = _short(best)
    how = "with numkong" if vector.is_installed() else "without numkong"
    by_source = sum(speed.source >= GOAL for speed in best.values())
    lines = [f"{len(best) - len(short)} of {len(best)} reach it {how}."]
    lines += [f"Below it: {'; '.join(short)}."] if short else []
    lines += [f"Counted by the bytes of the source alone, as if writing were free, {by_source} of {len(best)} do."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repeats, nothing written")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    text, found = page(Bench(3 if options.quick else options.repeats))
    if options.quick:
        print(text)
    else:
        (ROOT / "benchmarks/codecs.md").write_text(text, encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
