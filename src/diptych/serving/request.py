"""One request's life: queued → prefilling → handing off → decoding → finished, or refused, or lost on the way and begun again."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final


class Stage(IntEnum):
    """Where a request is. Every request that arrives ends as FINISHED or REFUSED."""

    QUEUED = 0  # at the gateway or before a worker's batch
    PREFILLING = 1  # at least one chunk of its prompt was scheduled
    HANDING_OFF = 2  # its KV is pinned at the source and not yet owned by the target
    DECODING = 3
    FINISHED = 4
    REFUSED = 5


QUEUED: Final = Stage.QUEUED
NO_BLOCKS: Final[list[Any]] = []  # never changed in place


class Sequence:
    """A request as a worker sees it, in tokens.

    `todo` is what must be in KV before it can decode: the prompt, and after a preemption or a loss the tokens generated so far
    too. `computed` ≤ todo is what is there. `held` counts the blocks it alone holds outside the decode batch's own arithmetic,
    `taken` are the hashes of the prefix blocks it refers to and `shared` their tokens. `finish` is the batch step that makes its
    last token.
    """

    __slots__ = (
        "blocks",
        "computed",
        "epoch",
        "finish",
        "generated",
        "hands_off",
        "held",
        "id",
        "order",
        "osl",
        "prompt",
        "shared",
        "stage",
        "taken",
        "todo",
    )

    def __init__(self, id: int, prompt: int, osl: int, blocks: tuple[Any, ...] = ()) -> None:
        self.id = id
        self.prompt = self.todo = prompt
        self.osl = osl
        self.blocks = blocks  # hashes of the prompt's full blocks, () when unknown
        self.computed = self.generated = self.held = self.shared = self.epoch = self.finish = self.order = 0
        self.taken: list[Any] = NO_BLOCKS
        self.hands_off = False  # its prefill ends here and its KV goes elsewhere
        self.stage = QUEUED

    def lose(self) -> None:
        """Its KV is gone: prompt and generated tokens must be computed again. A new epoch fences late messages."""
        self.todo = self.prompt + self.generated
        self.computed = self.held = self.shared = self.finish = 0
        self.taken = NO_BLOCKS
        self.hands_off = False
        self.stage = QUEUED
        self.epoch += 1
