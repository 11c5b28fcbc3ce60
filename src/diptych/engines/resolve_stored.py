"""What a role will store and its engine compare, as far as settings, model and accelerator tell."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.boundary.descriptor import Layout
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling

UNIT = Scaling(ScaleSource.UNIT)
FROM_CHECKPOINT = Scaling(ScaleSource.CHECKPOINT, ScaleGranularity.TENSOR)
PER_TOKEN = Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN)
DYNAMIC = Scaling(ScaleSource.DYNAMIC, ScaleGranularity.TENSOR)


@dataclass(frozen=True, slots=True)
class Stored:
    """What one role stores. None, "", () and UNKNOWN stand for what is not known; `unknown` says of each why.

    `word` is the KV format as the engine compares it, not as the user wrote it. `block_tokens` is the block that is allocated,
    `moved_tokens` the one that the connector moves by: a kernel that takes smaller blocks splits it. `backends` are the names
    that the attention backend may report: more than one where an installed package decides. `hybrid` says whether groups of
    unlike layers have caches of their own (vLLM's hybrid KV cache manager). `packing` names a kernel's own order inside a block.
    """

    word: str
    element: Element | None = None
    scaling: Scaling | None = None
    model_element: Element | None = None
    block_tokens: int | None = None
    moved_tokens: int | None = None
    layout: Layout = Layout.UNKNOWN
    backends: tuple[str, ...] = ()
    hybrid: bool | None = None
    packing: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        """The format for a person: what is stored, and the word where that says something else.

        >>> Stored("auto", Element.BF16).says, Stored("auto").says
        ("bf16 ('auto')", "unknown ('auto')")
        """
        return f"{self.element or 'unknown'} ({self.word!r})"


def same_bytes(prefill: Stored, decode: Stored) -> bool | None:
    """Whether one value is stored as the same bytes on both sides; None when either format is not known.

    Scales that come with a checkpoint count as the same here: which checkpoint it is, is a matter of identity.
    """
    if prefill.element is None or decode.element is None:
        return None
    return prefill.element is decode.element and prefill.scaling == decode.scaling
