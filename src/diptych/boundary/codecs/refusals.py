"""What a codec refuses."""

from __future__ import annotations

from diptych.errors import InvalidInput


class WrongLength(InvalidInput):
    """A payload, block or buffer whose length is not what its description says. Nothing of it was read."""


class NotRepresentable(InvalidInput):
    """NaN or inf where the target has no code for it, or a scale that scales nothing: the request fails rather than its KV."""
