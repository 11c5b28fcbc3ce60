"""A calibration: what a probe saw of one fleet's workers, as a file that a simulation takes its step times from.

One JSON document, read strictly. It holds the points themselves, those that were fitted and those that were held out; the fit is
made anew wherever it is read, so that the two cannot drift apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from diptych.catalog.accelerator import Accelerator, ScaleUp
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.model import Attention, LayerGroup, Model
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Ownership, Placement, Representation
from diptych.design.design import Design, Member, Pool
from diptych.errors import Finding, InvalidInput
from diptych.perf.probed import Decodes, DecodeStep, Probed, Prompts, PromptStep, Steps, affine

MAX_BYTES = 4 << 20
_FAST = 1e15
"""Bytes/s of what costs nothing by itself, because the measured handoff has it in already."""

_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Count = Annotated[int, Meta(ge=1, le=1 << 31)]
_Some = Annotated[float, Meta(gt=0, lt=1e12)]
_None = Annotated[float, Meta(ge=0, lt=1e12)]
_Format = Annotated[str, Meta(pattern="^[a-z0-9_]{2,16}$")]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Machine(_Strict, frozen=True):
    """Where it was measured."""

    cpu: Annotated[str, Meta(max_length=256)]
    cores: _Count
    memory_bytes: Annotated[int, Meta(ge=1, le=1 << 60)]


class Shape(_Strict, frozen=True):
    """What a simulation must know of the model: how large its KV is."""

    name: _Name
    layers: _Count
    kv_heads: _Count
    head_dim: _Count
    vocabulary: _Count
    max_context: _Count


class SeenPrompt(_Strict, frozen=True):
    """A prompt, the median of some: tokens computed, tokens that were in KV before, seconds, what the fit says of it."""

    tokens: _Some
    past: _None
    seconds: _Some
    fitted: bool
    predicted: float


class SeenDecode(_Strict, frozen=True):
    """Decode steps, the median of some: sequences, their mean context, seconds of one step, what the fit says of it."""

    batch: _Some
    context: _None
    seconds: _Some
    fitted: bool
    predicted: float


class SeenRole(_Strict, frozen=True):
    """Workers of one role. `slowed`: how much longer a step takes while the other role's workers, or its own others, compute."""

    role: Role
    count: _Count
    device: _Name
    weights: _Format
    kv: _Format
    threads: _Count
    blocks: _Count
    prompts: Annotated[tuple[SeenPrompt, ...], Meta(max_length=256)] = ()
    decodes: Annotated[tuple[SeenDecode, ...], Meta(max_length=256)] = ()
    slowed: Annotated[float, Meta(ge=1, le=100)] = 1.0

    def steps(self) -> Steps:
        """The fit."""
        prompts = [PromptStep(each.tokens, each.past, each.seconds, not each.fitted) for each in self.prompts]
        decodes = [DecodeStep(each.batch, each.context, each.seconds, not each.fitted) for each in self.decodes]
        return Steps(Prompts.fit(prompts) if prompts else None, Decodes.fit(decodes) if decodes else None)


class SeenHandoff(_Strict, frozen=True):
    """A prompt's handoff: seconds from its first token, as prefill says it, until decode owns the KV and says it too."""

    tokens: _Some
    seconds: _Some
    fitted: bool
    predicted: float


class Calibration(_Strict, frozen=True):
    """The document. `gateway_seconds`: what the gateway adds to a first token."""

    kind: Literal["calibration"]
    made: Annotated[str, Meta(max_length=64)]
    versions: dict[str, str]
    machine: Machine
    model: Shape
    ownership: Ownership
    block_tokens: _Count
    budget: _Count
    sequences: _Count
    roles: Annotated[tuple[SeenRole, ...], Meta(min_length=1, max_length=2)]
    handoffs: Annotated[tuple[SeenHandoff, ...], Meta(max_length=256)] = ()
    gateway_seconds: _None = 0.0

    def to_json(self) -> str:
        """The file's text."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

    # --- as nouns of a design -----------------------------------------------------------------------------------------

    def design(self) -> Design:
        """The fleet that was probed."""
        pools = tuple(Pool(role.role, (Member(self.worker(role), role.count),)) for role in self.roles)
        return Design(pools, self._boundary() if len(pools) == 2 else None)

    def perf(self) -> Probed:
        """Its step times; workers that are alike share what either was seen to do."""
        found: dict[Worker, Steps] = {}
        for role in self.roles:
            worker, steps = self.worker(role), role.steps()
            found[worker] = found[worker].beside(steps) if worker in found else steps
        return Probed(found)

    def worker(self, role: SeenRole) -> Worker:
        """A worker of a role: one device, in the precision that it ran in."""
        precision = Precision(Dtype(role.weights), Dtype(role.weights), Dtype(role.kv))
        return Worker(
            self._model(), self._accelerator(role), precision, Parallelism(), "diptych", self.sequences, self.budget
        )

    def _accelerator(self, role: SeenRole) -> Accelerator:
        name = f"{role.device}x{role.threads}" if role.threads > 1 else role.device
        memory = float(self.machine.memory_bytes)
        return Accelerator(name, "", memory, _FAST, {}, ScaleUp("", _FAST, 1), _FAST, _FAST, 0.0)

    def _model(self) -> Model:
        shape = self.model
        attention = Attention(shape.kv_heads, shape.kv_heads, shape.head_dim, shape.head_dim)
        hidden = shape.kv_heads * shape.head_dim
        group = LayerGroup(shape.layers, attention, None)
        return Model(shape.name, hidden, shape.vocabulary, (group,), max_context=shape.max_context)

    def _boundary(self) -> Boundary:
        """What was seen of handoffs is the whole of them: transfer, conversion, messages; a link of that latency and slope."""
        prefill, decode = self.roles
        wire = Dtype(prefill.kv)
        alpha, token = affine([(each.tokens, each.seconds) for each in self.handoffs if each.fitted] or [(1.0, 1e-6)])
        size = self._model().kv_bytes_per_token(wire)
        link = Link("measured", LinkKind.TCP, min(size / token, _FAST) if token else _FAST, alpha)
        codec = Codec.RAW if prefill.kv == decode.kv else Codec.CAST
        return Boundary(Placement.SAME_NODE, link, Representation(codec, wire), self.ownership)


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file.

    Raises:
        InvalidInput: it cannot be read, or is none; the place of what does not fit is named.
    """
    try:
        data = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        raise InvalidInput(Finding(str(path), error.strerror or str(error), "what diptych calibrate wrote")) from None
    if len(data) > MAX_BYTES:
        raise InvalidInput(Finding(str(path), "is too long", f"at most {MAX_BYTES:,} bytes"))
    try:
        found = msgspec.json.decode(data, type=Calibration)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(Finding(str(path), str(error)[:300], "what diptych calibrate wrote")) from None
    findings = list(_unusable(found, str(path)))
    if findings:
        raise InvalidInput(findings)
    return found


def _unusable(found: Calibration, where: str) -> list[Finding]:
    """What the types cannot say: which roles there are together, formats by name, points enough for a fit."""
    findings = []
    roles = [role.role for role in found.roles]
    if roles not in ([Role.COLOCATED], [Role.PREFILL, Role.DECODE]):
        findings.append(Finding(f"{where}: roles", f"are {', '.join(roles)}", "prefill and decode, or colocated"))
    for role in found.roles:
        at = f"{where}: {role.role}"
        findings += [
            Finding(at, f"the format {name!r}", ", ".join(Dtype))
            for name in (role.weights, role.kv)
            if name not in list(Dtype)
        ]
        if role.role is not Role.DECODE and not any(each.fitted and not each.past for each in role.prompts):
            findings.append(Finding(at, "no prompt without a past among its points", "one or more that are fitted"))
        if role.role is not Role.PREFILL and not any(each.fitted for each in role.decodes):
            findings.append(Finding(at, "no decode step among its points", "one or more that are fitted"))
    return findings


def schema() -> dict[str, Any]:
    """JSON Schema of the file."""
    return msgspec.json.schema(Calibration)
