"""Requests by their newest epoch, so that what is said twice or late is done once."""

from __future__ import annotations

from collections import OrderedDict

REMEMBERED = 65536


class Seen:
    """The newest epoch of each of the last requests."""

    def __init__(self) -> None:
        self._epochs: OrderedDict[bytes, int] = OrderedDict()

    def is_late(self, request: bytes, epoch: int) -> bool:
        """Whether this epoch or a later one has been seen."""
        return epoch <= self._epochs.get(request, -1)

    def remember(self, request: bytes, epoch: int) -> None:
        """This epoch, or a later one that was seen already, is the newest."""
        self._epochs[request] = max(epoch, self._epochs.pop(request, -1))
        if len(self._epochs) > REMEMBERED:
            self._epochs.popitem(last=False)
