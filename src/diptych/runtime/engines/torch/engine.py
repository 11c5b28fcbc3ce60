"""`TorchEngine`: a checkpoint in one role's precision, computing batches of chunks and steps over KV in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from diptych.boundary.descriptor import KVState, Layout, Storage
from diptych.boundary.identity import Identity, Position, PositionKind
from diptych.boundary.layers import LayerKind, Layers
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.runtime.engine import Chunk, EngineFault, Prefilled, Step
from diptych.runtime.engines.misfit import misfit
from diptych.runtime.engines.torch import paged
from diptych.runtime.engines.torch.attention import DecodeAttention, DenseAttention, PrefillAttention
from diptych.runtime.engines.torch.checkpoint import Checkpoint, SafetensorsCheckpoint
from diptych.runtime.engines.torch.dense import Dense
from diptych.runtime.engines.torch.forward import Attend, Decoder
from diptych.runtime.engines.torch.linear import Weights
from diptych.runtime.engines.torch.sampler import Choice, choose, reported
from diptych.runtime.memory import KVMemory, allocate
from diptych.runtime.sampling import Sampled

LOGIT_ROWS = 64
"""Tokens whose logits exist at once when a prompt's log probabilities are asked for."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How a role runs a checkpoint. `name` is the model's, by default the checkpoint's; `max_context` 0 is the checkpoint's."""

    weights: str = "fp32"
    kv: str = "fp32"
    blocks: int = 256
    block_tokens: int = 16
    device: str = "cpu"
    name: str = ""
    max_context: int = 0

    def __post_init__(self) -> None:
        least = (
            ("blocks", self.blocks, 1),
            ("block_tokens", self.block_tokens, 1),
            ("max_context", self.max_context, 0),
        )
        findings = [Finding(name, f"is {value}", f"{low} or more") for name, value, low in least if value < low]
        if findings:
            raise InvalidInput(findings)


class TorchEngine:
    """One model in one precision on one device. One thread at a time drives it."""

    def __init__(
        self, checkpoint: Checkpoint, setup: Setup, room: paged.Room | None = None, decoder: Decoder | None = None
    ) -> None:
        """`decoder`: the checkpoint in this precision, where it is loaded already."""
        device = device_named(setup.device)
        self.setup = setup
        self.decoder = decoder or Decoder(checkpoint, weights_named(setup.weights), device)
        shape = checkpoint.shape
        self.vocabulary, self.eos = shape.vocabulary, shape.eos
        self.max_context = min(setup.max_context or shape.max_context, shape.max_context)
        self.state = _state(checkpoint, setup)
        own = paged.pinned_room if device.type == "cuda" else None
        self.memory: KVMemory = allocate(self.state, setup.blocks, room or own)
        self.layers = paged.over(self.memory, device)
        self._device = device
        self._dense = Dense(self.layers, self.decoder.dtype) if device.type == "cpu" else None
        self._tails: dict[int, torch.Tensor] = {}

    @classmethod
    def load(cls, place: Path, setup: Setup, room: paged.Room | None = None) -> TorchEngine:
        """The engine of a checkpoint: a directory of safetensors or a GGUF file.

        Raises:
            InvalidInput: the checkpoint or the setup cannot be used; every finding names file and field.
        """
        return cls(open_checkpoint(place), setup, room)

    @torch.inference_mode()
    def prefill(
        self, chunks: Sequence[Chunk], on_layer: Callable[[int], None] | None = None
    ) -> list[Prefilled | EngineFault]:
        faults = [self._misfit(chunk.sequence, chunk.tokens, chunk.start, chunk.blocks) for chunk in chunks]
        sound = [chunk for chunk, fault in zip(chunks, faults, strict=True) if fault is None]
        if not sound:
            return [fault for fault in faults if fault is not None]
        for chunk in sound:
            self._forget(chunk.sequence)
        attend = PrefillAttention(self.layers, sound, on_layer)
        tokens = [token for chunk in sound for token in chunk.tokens]
        positions = [chunk.start + place for chunk in sound for place in range(len(chunk.tokens))]
        hidden = self._hidden(tokens, positions, attend)
        answers = iter(self._prefilled(sound, torch.split(hidden, [len(chunk.tokens) for chunk in sound])))
        return [fault if fault is not None else next(answers) for fault in faults]

    def insert(self, sequence: int, blocks: tuple[int, ...], tokens: int) -> None:
        self._forget(sequence)
        for layer in self.layers:
            layer.fetch(blocks[: -(-tokens // self.memory.block_tokens)])

    @torch.inference_mode()
    def decode_step(
        self, steps: Sequence[Step], on_layer: Callable[[int], None] | None = None
    ) -> list[Sampled | EngineFault]:
        faults = [self._misfit(step.sequence, (step.token,), step.position, step.blocks) for step in steps]
        sound = [step for step, fault in zip(steps, faults, strict=True) if fault is None]
        answers = iter(self._decoded(sound, on_layer) if sound else ())
        return [fault if fault is not None else next(answers) for fault in faults]

    @torch.inference_mode()
    def log_probabilities(self, chunk: Chunk) -> torch.Tensor:
        """Of every token after each token of a chunk that is computed: (tokens, vocabulary)."""
        positions = list(range(chunk.start, chunk.start + len(chunk.tokens)))
        hidden = self._hidden(list(chunk.tokens), positions, PrefillAttention(self.layers, [chunk]))
        return torch.log_softmax(self.decoder.logits(hidden), -1)

    def release(self, sequence: int) -> None:
        self._tails.pop(sequence, None)
        self._forget(sequence)

    def _forget(self, sequence: int) -> None:
        if self._dense is not None:
            self._dense.drop(sequence)

    def _misfit(self, sequence: int, tokens: Sequence[int], start: int, blocks: Sequence[int]) -> EngineFault | None:
        return misfit(self.memory, self.vocabulary, self.max_context, sequence, tokens, start, blocks)

    def _hidden(self, tokens: list[int], positions: list[int], attend: Attend) -> torch.Tensor:
        where = torch.tensor(positions, device=self._device)
        return self.decoder.hidden(torch.tensor(tokens, device=self._device), where, max(positions), attend)

    def _decoded(self, steps: Sequence[Step], on_layer: Callable[[int], None] | None) -> list[Sampled | EngineFault]:
        rows = self._dense.rows(steps) if self._dense is not None else None
        attend = (
            DecodeAttention(self.layers, steps, self.decoder.dtype, on_layer)
            if rows is None
            else DenseAttention(self.layers, steps, rows, on_layer)
        )
        hidden = self._hidden([step.token for step in steps], [step.position for step in steps], attend)
        if self._dense is not None and rows is not None:
            self._dense.wrote(steps)
        finite = hidden.isfinite().all(-1)
        choices = [Choice(step.sampling, step.position + 1, step.generated) for step in steps]
        if finite.all():
            return list(choose(self.decoder.logits(hidden), choices))
        return [
            choose(self.decoder.logits(hidden[row : row + 1]), [choices[row]])[0] if finite[row] else self._again(step)
            for row, step in enumerate(steps)
        ]

    def _again(self, step: Step) -> Sampled | EngineFault:
        """A step alone, as a chunk of one token: it reads nothing beyond its own tokens, which a batch's padding may."""
        chunk = Chunk(step.sequence, (step.token,), step.position, step.blocks, step.sampling, (), step.generated)
        attend = PrefillAttention(self.layers, [chunk])
        answer = self._prefilled([chunk], [self._hidden([step.token], [step.position], attend)])[0]
        if isinstance(answer, EngineFault):
            return answer
        assert answer.sampled is not None
        return answer.sampled

    def _prefilled(self, chunks: Sequence[Chunk], hidden: Sequence[torch.Tensor]) -> list[Prefilled | EngineFault]:
        found: list[Prefilled | EngineFault] = []
        lasts = {place: rows[-1:] for place, rows in enumerate(hidden) if rows.isfinite().all()}
        asked = [place for place in lasts if chunks[place].sampling is not None]
        sampled = dict(zip(asked, self._chosen([(chunks[place], lasts[place]) for place in asked]), strict=True))
        for place, chunk in enumerate(chunks):
            if place not in lasts:
                found.append(EngineFault(chunk.sequence, "its KV gives numbers that are not finite"))
            else:
                found.append(Prefilled(sampled.get(place), self._prompt(chunk, hidden[place])))
        return found

    def _chosen(self, ends: Sequence[tuple[Chunk, torch.Tensor]]) -> list[Sampled]:
        if not ends:
            return []
        choices = [
            Choice(chunk.sampling, chunk.start + len(chunk.tokens), chunk.generated)
            for chunk, _ in ends
            if chunk.sampling is not None
        ]
        return choose(self.decoder.logits(torch.cat([last for _, last in ends])), choices)

    def _prompt(self, chunk: Chunk, hidden: torch.Tensor) -> tuple[Sampled, ...]:
        """Log probabilities of a chunk's tokens, the first by what the chunk before left."""
        if chunk.prompt_logprobs is None:
            return ()
        before = self._tails.pop(chunk.sequence, None)
        if chunk.sampling is None:
            self._tails[chunk.sequence] = hidden[-1:].clone()
        told = chunk.tokens if chunk.start else chunk.tokens[1:]
        rows = hidden[:-1]
        if chunk.start and before is None:
            return (Sampled(told[0]), *self._told(told[1:], rows, chunk.prompt_logprobs))
        return tuple(self._told(told, rows if before is None else torch.cat((before, rows)), chunk.prompt_logprobs))

    def _told(self, tokens: Sequence[int], hidden: torch.Tensor, count: int) -> list[Sampled]:
        """Log probability of each token by the row that predicts it."""
        found: list[Sampled] = []
        for begin in range(0, len(tokens), LOGIT_ROWS):
            end = min(begin + LOGIT_ROWS, len(tokens))
            rows = torch.log_softmax(self.decoder.logits(hidden[begin:end]), -1)
            found.extend(reported(token, row, count) for token, row in zip(tokens[begin:end], rows, strict=True))
        return found


def open_checkpoint(place: Path) -> Checkpoint:
    """A directory of safetensors, or a .gguf file. Raises InvalidInput."""
    if place.suffix == ".gguf":
        from diptych.runtime.engines.torch.gguf_file import GgufCheckpoint

        return GgufCheckpoint.open(place)
    return SafetensorsCheckpoint.open(place)


def weights_named(name: str) -> Weights:
    """A precision of weights by its name. Raises InvalidInput."""
    try:
        return Weights(name)
    except ValueError:
        raise InvalidInput(
            Finding("weights", f"is {name[:40]!r}", ", ".join(Weights), did_you_mean(name[:40], list(Weights)))
        ) from None


def device_named(name: str) -> torch.device:
    """'cpu', 'cuda' or 'cuda:1', if it is there. Raises InvalidInput."""
    kind, _, index = name.partition(":")
    known = (kind == "cpu" and not index) or (kind == "cuda" and (not index or index.isdecimal()))
    if not known:
        raise InvalidInput(Finding("device", f"is {name[:40]!r}", "cpu, cuda or cuda:N"))
    if kind == "cuda" and not (torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count()):
        raise InvalidInput(
            Finding("device", f"{name[:40]} is not there", f"one of {torch.cuda.device_count()} CUDA devices, or cpu")
        )
    return torch.device(name)


def _state(checkpoint: Checkpoint, setup: Setup) -> KVState:
    shape = checkpoint.shape
    rope = shape.rope
    identity = Identity(
        model=setup.name or checkpoint.place.resolve().name,
        weights=checkpoint.digest(),
        tokenizer=_tokenizer(checkpoint.place),
        position=Position(PositionKind.ROPE, rope.theta, str(rope), keys_rotated=True),
    )
    layers = Layers(
        LayerKind.FULL, shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim, v_head_dim=shape.head_dim
    )
    return KVState(identity, (layers,), paged.stored_as(setup.kv), Storage(setup.block_tokens, Layout.LBHNC))


def _tokenizer(place: Path) -> str | None:
    file = place / "tokenizer.json"
    return xxhash.xxh3_128_hexdigest(file.read_bytes()) if file.is_file() else None
