"""From settings to what will be stored: the engine's own resolution, repeated on the model and the accelerator of each role."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.model import Model
from diptych.engines.deployment import Deployment
from diptych.engines.role import RoleConfig


@dataclass(frozen=True, slots=True)
class Joint:
    """Two roles that may meet, with what is known of their model and accelerators; the argument of every rule."""

    prefill: RoleConfig
    decode: RoleConfig
    deployment: Deployment
    model: Model | None = None
    prefill_gpu: Accelerator | None = None
    decode_gpu: Accelerator | None = None
