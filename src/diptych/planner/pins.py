"""What the user has settled: an axis of a role, a decision of the boundary, a place. What is not pinned is searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.design.axes import Parallelism, Precision


@dataclass(frozen=True, slots=True)
class Pins:
    """Choices the user has made. None leaves an axis free; texts are what a flag takes.

    `prefill` and `decode` name accelerators, several separated by commas. Precisions are a format ('fp8' for weights and
    activations) or 'w=fp8 a=fp8 kv=bf16'; parallelisms are 'tp4' or 'tp4·pp2' ('tp4,pp2', 'tp4 pp2'). Residency is where KV lives
    (hbm, dram, nvme, remote): of prefill, the prefixes it reuses; of decode, the KV it reads. Batches are sequences, batched
    tokens the prompt tokens of one step. `wire` is the format and `codec` the kind of KV on the wire, `converts_at` the side that
    converts; prompts shorter than `local_below` tokens stay on the decode side. `engine` is both roles', unless one has its own;
    with a release ('vllm@0.33') only what that stock engine can be told is planned.
    """

    prefill: str | None = None
    decode: str | None = None
    interconnect: str | None = None
    placement: str | None = None
    prefill_precision: str | None = None
    decode_precision: str | None = None
    prefill_parallelism: str | None = None
    decode_parallelism: str | None = None
    wire: str | None = None
    ownership: str | None = None
    overlap: str | None = None
    engine: str | None = None
    provider: str | None = None
    region: str | None = None
    codec: str | None = None
    converts_at: str | None = None
    local_below: int | None = None
    prefill_engine: str | None = None
    decode_engine: str | None = None
    prefill_residency: str | None = None
    decode_residency: str | None = None
    prefill_max_batch: int | None = None
    decode_max_batch: int | None = None
    prefill_max_batched_tokens: int | None = None
    decode_max_batched_tokens: int | None = None

    def given(self) -> dict[str, str]:
        """The pins that are set, by name."""
        return {field.name: str(value) for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True, slots=True)
class RolePins:
    """One role's pins, resolved; empty tuples, None and 0 leave the axis free."""

    accelerators: tuple[Accelerator, ...] = ()
    precision: Mapping[str, Dtype] | None = None
    parallelism: Parallelism | None = None
    engine: str | None = None
    residency: TierKind | None = None
    max_batch: int = 0
    max_batched_tokens: int = 0

    def allows_precision(self, precision: Precision) -> bool:
        return all(getattr(precision, name) is dtype for name, dtype in (self.precision or {}).items())

    def differs(self, other: RolePins) -> bool:
        """Whether no one worker keeps the formats and sizes of both."""
        mine, theirs = self.precision or {}, other.precision or {}
        sizes = {self.parallelism, other.parallelism} - {None}
        return len(sizes) > 1 or any(mine[name] is not theirs[name] for name in mine.keys() & theirs.keys())
