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

from diptych.boundary.codecs.refusals import WrongLength
from diptych.boundary.codecs.stored import Bytes, KvShape, StoredKV, code_bytes, scale_bytes, travels
from diptych.boundary.format import Format
from diptych.errors import Finding

LEVEL = 1
HEAD = struct.Struct("<BI")
STORED, ZSTD = 0, 1
_WORTH = 0.97
_SAMPLE = 1 << 16


def compressed_bytes(shape: KvShape, form: Format) -> int:
    """The most that `compress` can make of such a tensor: every plane stored."""
    return sum(HEAD.size + size for size in plane_sizes(shape, form))


def plane_sizes(shape: KvShape, form: Format) -> list[int]:
    """Bytes of each plane: those of the elements, then the travelling scales as one."""
    width = max(1, form.element.bits // 8)
    sizes = [code_bytes(shape, form) // width] * width
    return [*sizes, scale_bytes(shape, form)] if travels(form) else sizes


def compress(kv: StoredKV, level: int = LEVEL) -> bytes:
    """The payload of a tensor, no longer than `compressed_bytes`."""
    packer = zstandard.ZstdCompressor(level=level, write_checksum=False)
    return b"".join(part for plane in _planes(kv) for part in _packed(plane, packer))


def _planes(kv: StoredKV) -> Iterator[Bytes]:
    width = max(1, kv.form.element.bits // 8)
    codes = kv.codes
    if width == 2:
        codes = _turned(codes, 1)
    for byte in range(width):
        yield np.ascontiguousarray(codes[byte::width])
    if travels(kv.form):
        yield kv.scales


def _turned(codes: Bytes, left: int) -> Bytes:
    """Two-byte elements with their bits rotated to the left."""
    words = codes.view(np.uint16)
    turned = np.left_shift(words, left)
    turned |= np.right_shift(words, 16 - left)
    return turned.view(np.uint8)


def _packed(plane: Bytes, packer: zstandard.ZstdCompressor) -> tuple[bytes, bytes]:
    raw = plane.tobytes()
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
    width = max(1, form.element.bits // 8)
    codes = planes[0] if width == 1 else np.stack(planes[:width], axis=1).reshape(-1)
    codes = _turned(codes, 15) if width == 2 else codes
    empty = np.empty(0, np.uint8)
    return StoredKV(shape, form, codes, planes[width] if travels(form) else empty if scales is None else scales)


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
