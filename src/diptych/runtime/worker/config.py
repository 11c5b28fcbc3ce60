"""A worker's configuration: one JSON file, checked whole before anything starts. It names files of secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format, element_named
from diptych.errors import Finding, InvalidInput
from diptych.runtime.engine import Engine
from diptych.runtime.engines.toy import Pace, ToyEngine, ToyModel
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.peers import Tls
from diptych.runtime.worker.owner import Limits
from diptych.serving.batching import BatchRules

MAX_BYTES = 1 << 20
Room = Callable[[int], memoryview]
_Name = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]
_Count = Annotated[int, Meta(ge=1, le=1 << 31)]
_Seconds = Annotated[float, Meta(ge=0, le=86400)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Toy(_Strict, frozen=True, tag_field="kind", tag="toy"):
    """The engine that one computes by hand. `kv`: a float, 'int8' (scale 1), 'int8-token' (inline scales) or an fp8 kind."""

    key: Annotated[str, Meta(min_length=1, max_length=64)] = "toy"
    layers: _Count = 2
    heads: _Count = 2
    vocabulary: _Count = 256
    max_context: _Count = 1 << 20
    eos_after: _Count | None = None
    blocks: _Count = 1024
    block_tokens: _Count = 16
    kv: str = "int8"
    prefill_token_s: _Seconds = 0.0
    decode_step_s: _Seconds = 0.0
    decode_token_s: _Seconds = 0.0

    def make(self, room: Room | None = None) -> Engine:
        """The engine, its KV in memory from `room`. Raises InvalidInput."""
        model = ToyModel(self.key.encode(), self.layers, self.heads, self.vocabulary, self.max_context, self.eos_after)
        pace = Pace(self.prefill_token_s, self.decode_step_s, self.decode_token_s)
        return ToyEngine(
            model, blocks=self.blocks, block_tokens=self.block_tokens, form=toy_format(self.kv), pace=pace, room=room
        )


class Torch(_Strict, frozen=True, tag_field="kind", tag="torch"):
    """A checkpoint on this machine: a directory or a GGUF file. `threads`: of one computation."""

    path: str
    weights: str = "fp32"
    kv: str = "fp32"
    blocks: _Count = 256
    block_tokens: _Count = 16
    device: str = "cpu"
    name: str = ""
    max_context: Annotated[int, Meta(ge=0)] = 0
    threads: _Count = 1

    def make(self, room: Room | None = None) -> Engine:
        """The engine, its KV in memory from `room`; reads the checkpoint. Raises InvalidInput."""
        import torch

        from diptych.runtime.engines.torch.engine import Setup, TorchEngine

        torch.set_num_threads(self.threads)
        setup = Setup(self.weights, self.kv, self.blocks, self.block_tokens, self.device, self.name, self.max_context)
        return TorchEngine.load(Path(self.path), setup, room)


class BatchConfig(_Strict, frozen=True):
    """Tokens of a step, most sequences, whether prompts share steps with decodes and are cut into chunks."""

    budget: _Count = 2048
    sequences: _Count = 256
    mixes: bool = True
    chunks: bool = True
    shortest_first: bool = False


class LimitsConfig(_Strict, frozen=True):
    """See `handoffs.Limits`."""

    pinned: _Count = 32
    wait_ms: _Count = 60_000
    stall_ms: _Count = 2_000


class TierConfig(_Strict, frozen=True):
    """Memory below the device's: 'dram', 'nvme' in the folder `place`, 'remote' at a store's address. At most `bytes`."""

    kind: Annotated[str, Meta(pattern="^(dram|nvme|remote)$")]
    bytes: Annotated[int, Meta(ge=1, le=1 << 60)]
    place: Annotated[str, Meta(max_length=1024)] = ""


class TlsConfig(_Strict, frozen=True):
    """Files: this worker's certificate chain and key, and the authority that signs everybody's."""

    certificate: str
    key: str
    authority: str


class Config(_Strict, frozen=True):
    """One worker.

    `control` and `peer` are addresses ('unix:/PATH' or 'tcp:HOST:PORT'), by default files in `run_dir`, which is made
    for its owner alone. A `peer` of 'shm:/PATH', or 'nixl:/PATH' through NIXL, takes KV out of memory that sources
    on this host lend, and lends its own.
    `token_file` holds what a gateway must say. `parent`: the pid whose end ends this worker, 0 for none.
    """

    name: _Name
    role: Annotated[str, Meta(pattern="^(prefill|decode|colocated)$")]
    run_dir: Annotated[str, Meta(min_length=1, max_length=200)]
    engine: Toy | Torch
    control: str = ""
    peer: str = ""
    token_file: str = ""
    tls: TlsConfig | None = None
    batch: BatchConfig = BatchConfig()
    limits: LimitsConfig = LimitsConfig()
    prefixes: bool = True
    residency: Annotated[tuple[TierConfig, ...], Meta(max_length=8)] = ()
    drain_s: _Seconds = 30.0
    parent: Annotated[int, Meta(ge=0)] = 0

    @property
    def control_address(self) -> Address:
        return Address.of(self.control or f"unix:{self.run_dir}/{self.name}.control")

    @property
    def peer_address(self) -> Address:
        return Address.of(self.peer or f"unix:{self.run_dir}/{self.name}.peer")

    @property
    def rules(self) -> BatchRules:
        batch = self.batch
        return BatchRules(batch.budget, batch.sequences, batch.mixes, batch.chunks, batch.shortest_first)

    @property
    def handoff_limits(self) -> Limits:
        return Limits(self.limits.pinned, self.limits.wait_ms, self.limits.stall_ms)

    @property
    def peer_tls(self) -> Tls | None:
        return Tls(self.tls.certificate, self.tls.key, self.tls.authority) if self.tls else None


def read(path: Path) -> Config:
    """The configuration in a file.

    Raises:
        InvalidInput: it cannot be read, or does not say what a worker needs; addresses off this host without a token and TLS.
    """
    try:
        data = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        raise InvalidInput(Finding(str(path), error.strerror or str(error))) from None
    if len(data) > MAX_BYTES:
        raise InvalidInput(Finding(str(path), "is too long", f"at most {MAX_BYTES:,} bytes"))
    try:
        found = msgspec.json.decode(data, type=Config)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(Finding(str(path), str(error))) from None
    findings = [*_unsafe(found)]
    if findings:
        raise InvalidInput(findings)
    return found


def _unsafe(config: Config) -> list[Finding]:
    findings = []
    for where, address in (("control", config.control_address), ("peer", config.peer_address)):
        if not address.is_local and config.tls is None:
            findings.append(Finding(where, f"{address} leaves this host", "`tls`, or a loopback address"))
        if where == "control" and not address.is_local and not config.token_file:
            findings.append(Finding(where, f"{address} leaves this host", "`token_file`, or a loopback address"))
        if address.lends == "nixl" and not address.is_local:
            findings.append(
                Finding(where, f"{address} leaves this host, and NIXL does not encrypt", "tcp: under `tls`")
            )
        if where == "control" and address.lends:
            findings.append(Finding(where, f"{address} lends memory, which only peers do", "unix:/PATH"))
    return [*findings, *_unplaced(config)]


def _unplaced(config: Config) -> Iterator[Finding]:
    for place, tier in enumerate(config.residency):
        where = f"residency[{place}]"
        if tier.kind == "nvme" and not tier.place.startswith("/"):
            yield Finding(where, f"the folder {tier.place[:80]!r}", "an absolute path")
        elif tier.kind == "remote":
            try:
                address = Address.of(tier.place)
            except InvalidInput as error:
                yield from (Finding(where, each.problem, each.expected) for each in error.findings)
                continue
            if not address.is_local and config.tls is None:
                yield Finding(where, f"{address} leaves this host", "`tls`, or an address on it")


def toy_format(name: str) -> Format:
    """How a toy engine stores its KV. Raises InvalidInput."""
    if name == "int8-token":
        return Format(Element.INT8, Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN))
    element = element_named(name)
    return Format(element) if element.is_float else Format(element, Scaling(ScaleSource.UNIT))


def schema() -> dict[str, Any]:
    """JSON Schema of the file."""
    return msgspec.json.schema(Config)
