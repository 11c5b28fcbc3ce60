"""Where a number comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Confidence(StrEnum):
    """How far a sourced number is trusted."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Provenance:
    """The source of one catalog number, the day it was read (ISO), and the trust put in it."""

    source: str
    as_of: str = ""
    confidence: Confidence = Confidence.MEDIUM
    licence: str = ""
