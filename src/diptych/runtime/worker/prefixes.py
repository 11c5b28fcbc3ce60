"""Names of full blocks by what they hold: a chain of SHA-256 over tokens, so that equal names mean equal prefixes.

A chain begins with the tenant's salt, so that nobody can learn by timing what another tenant has asked.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

_BEGIN = b"diptych block chain"


def block_hashes(tokens: Sequence[int], size: int, salt: bytes = b"") -> tuple[bytes, ...]:
    """One hash of 32 bytes per full block of `size` tokens, each over the one before it and the block's tokens.

    >>> one, two = block_hashes(range(4), 2), block_hashes([0, 1, 9, 9, 9], 2)
    >>> one[0] == two[0], one[1] == two[1], len(two)
    (True, False, 2)
    """
    before = sha256(_BEGIN + salt).digest()
    found = []
    for begin in range(0, len(tokens) - size + 1, size):
        before = sha256(before + array("I", tokens[begin : begin + size]).tobytes()).digest()
        found.append(before)
    return tuple(found)
