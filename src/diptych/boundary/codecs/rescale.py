"""e4m3fn and e4m3fnuz into each other by their scale: the same byte is half the value in e4m3fnuz, but for three codes.

| byte | e4m3fn | e4m3fnuz | fn to fnuz, scale doubled | fnuz to fn, scale halved |
| --- | --- | --- | --- | --- |
| 0x80 | −0 | NaN | 0x00: zero, its sign lost | 0x7f: NaN |
| 0x7f, 0xff | NaN | ±240 | 0x80: NaN | 0x7e, 0xfe: ±224, the largest that fits, 6.7 % less |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diptych.boundary.codecs.stored import Bytes
from diptych.boundary.element import Element

CHUNK = 131072


def fn_to_fnuz(codes: Bytes, out: Bytes) -> None:
    """Bytes for twice the scale."""
    kept = np.equal(codes, 0x80).view(np.uint8)
    kept -= np.uint8(1)  # all ones but for −0
    np.bitwise_and(codes, kept, out=out)
    np.bitwise_and(codes, 0x7F, out=kept)
    if kept.max(initial=0) == 0x7F:
        out[kept == 0x7F] = 0x80


def fnuz_to_fn(codes: Bytes, out: Bytes) -> None:
    """Bytes for half the scale. NaN and the two largest codes each become the byte below."""
    lower = np.equal(np.bitwise_and(codes, 0x7F), 0x7F)
    lower |= np.equal(codes, 0x80)
    np.subtract(codes, lower.view(np.uint8), out=out)


RESCALES: dict[tuple[Element, Element], tuple[float, Callable[[Bytes, Bytes], None]]] = {
    (Element.E4M3FN, Element.E4M3FNUZ): (2.0, fn_to_fnuz),
    (Element.E4M3FNUZ, Element.E4M3FN): (0.5, fnuz_to_fn),
}
"""The factor on the scale, and what is done to the bytes."""


def copy_bytes(codes: Bytes, out: Bytes, origin: Element, wanted: Element) -> None:
    """The bytes of one format as those of the other, or as they are."""
    if origin is wanted:
        np.copyto(out, codes)
        return
    _, by = RESCALES[origin, wanted]
    for start in range(0, codes.size, CHUNK):
        by(codes[start : start + CHUNK], out[start : start + CHUNK])
