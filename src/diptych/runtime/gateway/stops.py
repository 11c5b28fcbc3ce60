"""Stop strings in text that comes in pieces: what may be the beginning of one is held back until it is known."""

from __future__ import annotations


class StopStrings:
    """Matches several strings; the earliest end wins, as if each character came alone.

    >>> stops = StopStrings(("END",))
    >>> stops.push("the E"), stops.push("N"), stops.push("Ding"), stops.hit
    ('the ', '', '', 'END')
    """

    __slots__ = ("_held", "_keeps", "_stops", "hit")

    def __init__(self, stops: tuple[str, ...], keeps: bool = False) -> None:
        self._stops, self._keeps = stops, keeps
        self._held = ""
        self.hit = ""

    def push(self, text: str, may_end: bool = True) -> str:
        """What can be given of the text so far. After a hit, the text before the stop string, and with it where kept.

        Without `may_end` nothing is matched: a least length is not reached yet.
        """
        if not self._stops:
            return text
        text, self._held = self._held + text, ""
        if not may_end:
            return text
        found = [(place + len(stop), place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            end, begin, self.hit = min(found)
            return text[: end if self._keeps else begin]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back, at the end."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of `text` begin `stop` without ending it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
