"""A number that knows how it was obtained and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Basis(StrEnum):
    """How a time was obtained, best first."""

    MEASURED = "measured"  # interpolated inside measured points of this accelerator
    FITTED = "fitted"  # this accelerator's curves, fitted to measurements
    ROOFLINE = "roofline"  # the data sheet with curves transferred from other accelerators


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds (an array), their physical floor, their basis, and a relative error band: the truth is within
    seconds·(1 ± band) for about nine cases in ten. `outside` marks points beyond what was measured."""

    seconds: Array
    floor: Array
    basis: Basis
    band: float
    outside: Any = False
