"""Lossless compression of stored KV: one plane per byte of an element, each through zstd or as it is.

Exponents of neighbouring values are alike, their mantissas are not; apart, the first shrink and the second cost no time. In
two-byte elements the sign is turned to the other end first, so that the upper byte starts with the exponent.

A compressed payload is, per plane, one byte (0 stored, 1 zstd), four bytes of length (little-endian) and that many bytes. The
receiver knows every plane's size from the description: a frame that says another is refused before anything is decompressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import zstandard
from numpy.typing import NDArray

from diptych.boundary.codecs.refusals import WrongLength
from diptych.boundary.codecs.stored import Bytes, KvShape, StoredKV, code_bytes, scale_bytes, travels
from diptych.boundary.format import Format
from diptych.errors import Finding

FAST = zstandard.ZstdCompressionParameters.from_level(1, hash_log=7, window_log=17, min_match=7)
"""There is little to match in KV, and looking for it costs half the speed and more bytes than it saves: what shrinks is the
entropy of single bytes. A hash table of 128 entries makes level 1 nearly a Huffman coder."""
HEAD = struct.Struct("<BI")
STORED, ZSTD = 0, 1
_WORTH = 0.97
_SAMPLE = 1 << 16
_CHUNK = 1 << 16
_NO_SCALES: Bytes = np.empty(0, np.uint8)


def compressed_bytes(shape: KvShape, form: Format) -> int:
    """The most that `compress` can make of such a tensor: every plane stored."""
    return sum(HEAD.size + size for size in plane_sizes(shape, form))


def plane_sizes(shape: KvShape, form: Format) -> list[int]:
    """Bytes of each plane: those of the elements, then the travelling scales as one."""
    width = max(1, form.element.bits // 8)
    sizes = [code_bytes(shape, form) // width] * width
    return [*sizes, scale_bytes(shape, form)] if travels(form) else sizes


def compress(kv: StoredKV) -> bytes:
    """The payload of a tensor, no longer than `compressed_bytes`."""
    packer = zstandard.ZstdCompressor(compression_params=FAST)
    return b"".join(part for plane in _planes(kv) for part in _packed(plane, packer))


def _planes(kv: StoredKV) -> Iterator[Bytes]:
    width = max(1, kv.form.element.bits // 8)
    if width == 2:
        yield from _halves(kv.codes.view(np.uint16))
    else:
        yield from (np.ascontiguousarray(kv.codes[byte::width]) for byte in range(width))
    if travels(kv.form):
        yield kv.scales


def _halves(words: NDArray[np.uint16]) -> tuple[Bytes, Bytes]:
    """The lower and upper bytes of two-byte elements rotated to the left by one bit."""
    low, high = np.empty(words.size, np.uint8), np.empty(words.size, np.uint8)
    for start in range(0, words.size, _CHUNK):
        piece = slice(start, start + _CHUNK)
        turned = np.left_shift(words[piece], 1)
        turned |= np.right_shift(words[piece], 15)
        np.copyto(low[piece], turned, casting="unsafe")
        turned >>= 8
        np.copyto(high[piece], turned, casting="unsafe")
    return low, high


def _joined(low: Bytes, high: Bytes) -> Bytes:
    """What `_halves` took apart."""
    words = np.empty(low.size, np.uint16)
    for start in range(0, words.size, _CHUNK):
        piece = slice(start, start + _CHUNK)
        turned = np.left_shift(high[piece], 8, dtype=np.uint16)
        turned |= low[piece]
        np.right_shift(turned, 1, out=words[piece])
        turned <<= 15
        words[piece] |= turned
    return words.view(np.uint8)


def _packed(plane: Bytes, packer: zstandard.ZstdCompressor) -> tuple[bytes, bytes | memoryview]:
    raw = plane.data
    sample = raw[:_SAMPLE]
    if len(packer.compress(sample)) < len(sample) * _WORTH:
        packed = packer.compress(raw)
        if len(packed) < len(raw):
            return HEAD.pack(ZSTD, len(packed)), packed
    return HEAD.pack(STORED, len(raw)), raw


def decompress(shape: KvShape, form: Format, payload: bytes | memoryview, scales: Bytes | None = None) -> StoredKV:
    """The tensor of a compressed payload. `scales`: those that do not travel.

    Raises:
        WrongLength: the payload, or a plane of it, is not as long as shape and format say, or is no zstd frame of that length.
    """
    have, at = memoryview(payload).cast("B"), 0
    planes = []
    for index, size in enumerate(plane_sizes(shape, form)):
        plane, at = _unpacked(have, at, size, f"plane {index}")
        planes.append(np.frombuffer(plane, np.uint8))
    if at != len(have):
        raise WrongLength(Finding("payload", f"{len(have) - at} bytes too many", f"{at} bytes"))
    width = len(planes) - travels(form)
    codes = (
        planes[0] if width == 1 else _joined(*planes[:2]) if width == 2 else np.stack(planes[:4], axis=1).reshape(-1)
    )
    inline = planes[width] if travels(form) else None
    return StoredKV(shape, form, codes, inline if inline is not None else _NO_SCALES if scales is None else scales)


def _unpacked(payload: memoryview, at: int, size: int, where: str) -> tuple[bytes | memoryview, int]:
    if len(payload) - at < HEAD.size:
        raise WrongLength(Finding(where, f"ends after {len(payload)} bytes", f"a head of {HEAD.size} bytes at {at}"))
    kind, length = HEAD.unpack_from(payload, at)
    start, end = at + HEAD.size, at + HEAD.size + length
    if kind not in (STORED, ZSTD) or end > len(payload) or length > size or (kind == STORED and length != size):
        raise WrongLength(
            Finding(where, f"of kind {kind} says {length} bytes", f"at most {size} of {len(payload) - start}")
        )
    body = payload[start:end]
    return (body if kind == STORED else _inflated(body, size, where)), end


def _inflated(body: memoryview, size: int, where: str) -> bytes:
    try:
        stated = zstandard.get_frame_parameters(body).content_size
        if stated != size:
            raise WrongLength(Finding(where, f"a frame of {stated} bytes", f"{size}"))
        plane = zstandard.ZstdDecompressor().decompress(body, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WrongLength(Finding(where, f"is no zstd frame: {error}", f"one of {size} bytes")) from None
    if len(plane) != size:
        raise WrongLength(Finding(where, f"holds {len(plane)} bytes", f"{size}"))
    return plane
