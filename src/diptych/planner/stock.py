"""What one release of a stock engine can be told: its rules as constraints on workers, pairs and what is open at the boundary.

The rules are those that check real commands (`engines.objections`), so what a plan chooses here is what `deploy` accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from diptych.design.axes import Parallelism, Worker
from diptych.design.boundary import Boundary, Codec, Representation
from diptych.design.capability import family
from diptych.design.ruling import Pair
from diptych.engines.engine import READ, Engine, Version, engine_at
from diptych.engines.handling import HANDLING, Handling
from diptych.engines.objections import objections
from diptych.engines.of_design import needs_checkpoint


@dataclass(frozen=True, eq=False)
class Stock:
    """An engine at a release. Answers are remembered by what the rules look at."""

    engine: Engine
    version: Version
    _known: dict[tuple[object, ...], str | None] = field(init=False, repr=False, default_factory=dict)

    @classmethod
    def parse(cls, text: str, where: str = "--engine") -> Stock:
        """'vllm@0.33', 'sglang@0.5'; a series stands for its release that was read. Raises InvalidInput."""
        engine, version = engine_at(text, where)
        named = text.partition("@")[2].strip().removeprefix("v").rstrip(".")
        return cls(engine, READ[engine] if f"{READ[engine]}.".startswith(f"{named}.") else version)

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"

    @property
    def handling(self) -> Handling:
        """What it can be told of a handoff."""
        return HANDLING[self.engine]

    def worker(self, worker: Worker) -> str | None:
        """Why it does not start a worker from the model's own checkpoint, or None."""
        kv = worker.precision.kv
        if not kv.is_16bit and kv not in self.handling.kv:
            return f"{self} has no KV cache in {kv}"
        if worker.residency not in self.handling.tiers:
            return f"{self} alone does not keep KV in {worker.residency}"
        if needs_checkpoint(worker):
            return f"{worker.precision.weights} weights need a checkpoint of their own"
        return None

    def pair(self, pair: Pair) -> str | None:
        """Why it does not serve two workers and their boundary rightly, or None."""
        return self._asked(pair.prefill, pair.decode, pair.boundary)

    def accelerators(self, prefill: Worker, decode: Worker, boundary: Boundary) -> str | None:
        """What its rules have against two accelerators and KV formats whatever the parallelism: a part of `pair`."""
        raw = replace(boundary, representation=Representation(Codec.RAW, prefill.precision.kv))
        plain = Parallelism()
        sides = replace(prefill, parallelism=plain), replace(decode, parallelism=plain)
        return self._asked(*sides, raw) if sides[0].precision.kv is sides[1].precision.kv else None

    def shapes(self, prefill: Worker, decode: Worker, boundary: Boundary) -> str | None:
        """What its rules have against two parallelisms whatever the accelerators: a part of `pair`."""
        key = ("shapes", prefill.parallelism, decode.parallelism, boundary.ownership, boundary.overlap)
        if key not in self._known:
            alike = replace(prefill, parallelism=decode.parallelism)
            raw = replace(boundary, representation=Representation(Codec.RAW, prefill.precision.kv))
            self._known[key] = self._asked(prefill, alike, raw)
        return self._known[key]

    def _asked(self, prefill: Worker, decode: Worker, boundary: Boundary) -> str | None:
        link = boundary.link
        key = (
            _seen(prefill), _seen(decode), boundary.placement, boundary.representation, boundary.ownership, boundary.overlap,
            link.kind, link.name == "efa",
        )  # fmt: skip
        if key not in self._known:
            first = next(objections(prefill, decode, boundary, self.engine, self.version), None)
            self._known[key] = str(first) if first else None
        return self._known[key]


def _seen(worker: Worker) -> tuple[object, ...]:
    """What the rules look at in a worker; the model is that of the question."""
    return (
        family(worker.accelerator), worker.accelerator.vendor, worker.precision, worker.parallelism, worker.residency,
        worker.max_batch, worker.max_batched_tokens,
    )  # fmt: skip
