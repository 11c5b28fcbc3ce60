"""An engine that one can compute by hand: every token follows from hashes of the tokens before it, read back from KV memory.

Each token leaves in every layer a state, a keyed hash of (layer, the state before, token); the next token is a keyed hash of all
states so far. Nothing else is remembered, so KV that was lost, damaged or another's gives a fault or other tokens, and
`ToyModel.expected` says what a stream must be. Elements are whole numbers from −7 to 7: every KV format stores them exactly
enough to be read back, so that streams survive any conversion unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from diptych.boundary.codecs.stored import DTYPES
from diptych.boundary.descriptor import KVState, Layout, Storage
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.boundary.identity import Identity, Position, PositionKind
from diptych.boundary.layers import LayerKind, Layers
from diptych.errors import Finding, InvalidInput
from diptych.runtime.engine import Chunk, EngineFault, Prefilled, Step
from diptych.runtime.engines.misfit import misfit
from diptych.runtime.memory import KVMemory, LayerMemory, allocate, code_bytes
from diptych.runtime.sampling import GREEDY, Sampled, Sampling

ELEMENTS = 32  # of one token in one layer: keys and values together
TOP = 7
UNIT_INT8 = Format(Element.INT8, Scaling(ScaleSource.UNIT))
INLINE_TOKEN = Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN)
_ELEMENT_OF_BYTE = bytes((byte % (2 * TOP + 1) - TOP) & 0xFF for byte in range(256))
_NOTHING = bytes(ELEMENTS)

States = NDArray[np.int8]
"""(tokens, 32)"""


@dataclass(frozen=True, slots=True)
class ToyModel:
    """What the tokens follow from. `eos` is the last token, chosen as the `eos_after`th of an answer and never else."""

    key: bytes = b"toy"
    layers: int = 2
    heads: int = 2
    vocabulary: int = 256
    max_context: int = 1 << 20
    eos_after: int | None = None

    def __post_init__(self) -> None:
        bounds = (
            ("key", len(self.key), 1, 64),
            ("layers", self.layers, 1, 256),
            ("vocabulary", self.vocabulary, 2, 1 << 31),
        )
        findings = [
            Finding(name, f"is {value}", f"{low} to {high}")
            for name, value, low, high in bounds
            if not low <= value <= high
        ]
        if self.heads not in (1, 2, 4, 8, 16):
            findings.append(Finding("heads", f"is {self.heads}", "1, 2, 4, 8 or 16"))
        if findings:
            raise InvalidInput(findings)

    @property
    def eos(self) -> int:
        return self.vocabulary - 1

    @property
    def identity(self) -> Identity:
        """Two models are the same when their tokens are."""
        what = (self.key, self.layers, self.vocabulary, self.eos_after)
        digest = blake2b(repr(what).encode(), digest_size=16).hexdigest()
        return Identity("toy", "", digest, tokenizer="", position=Position(PositionKind.NONE))

    def state(self, layer: int, before: bytes, token: int) -> bytes:
        """What `token` leaves in `layer` behind the state `before`: 32 elements as int8."""
        said = layer.to_bytes(4, "little") + token.to_bytes(8, "little") + before
        return blake2b(said, digest_size=ELEMENTS, key=self.key).digest().translate(_ELEMENT_OF_BYTE)

    def choice(self, states: bytes, sampling: Sampling) -> int:
        """A number of 64 bits that the next token follows from. `states`: of all tokens, those of one token together."""
        return xxhash.xxh3_64_intdigest(states, self.seed(sampling))

    def seed(self, sampling: Sampling) -> int:
        """The key of a choice: greedy answers have one, others one per seed."""
        key = int.from_bytes(self.key[:8], "little")
        return key if sampling.temperature == 0 else (key + 1 + sampling.seed) % 2**64

    def sampled(self, choice: int, generated: int, sampling: Sampling) -> Sampled:
        """The token of a choice, after `generated` others of the answer, with made-up log probabilities where asked for."""
        ends = self.eos_after is not None and generated + 1 >= max(self.eos_after, sampling.min_tokens + 1)
        return self.told(self.eos if ends else choice % (self.vocabulary - 1), sampling.logprobs)

    def told(self, token: int, logprobs: int | None) -> Sampled:
        """A token with log probabilities that follow from it: −(token mod 7) / 8, and those of the tokens after it, falling."""
        if logprobs is None:
            return Sampled(token)
        mine = -(token % 7) / 8
        top = tuple(((token + more) % self.vocabulary, mine - more) for more in range(min(logprobs, self.vocabulary)))
        return Sampled(token, mine, top)

    def expected(self, prompt: Sequence[int], count: int, sampling: Sampling = GREEDY) -> list[int]:
        """The first `count` tokens of the answer to a prompt, fewer where it ends by itself: no memory, no engine."""
        whole = xxhash.xxh3_64(seed=self.seed(sampling))
        states = [_NOTHING] * self.layers
        answer: list[int] = []
        coming = list(prompt)
        while len(answer) < count and self.eos not in answer[-1:]:
            for token in coming:
                states = [self.state(layer, before, token) for layer, before in enumerate(states)]
                whole.update(b"".join(states))
            answer.append(self.sampled(whole.intdigest(), len(answer), sampling).token)
            coming = answer[-1:]
        return answer


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in seconds: a chunk's token, a decode step, and each of its sequences. `sleep` makes it so."""

    prefill_token: float = 0.0
    decode_step: float = 0.0
    decode_token: float = 0.0
    sleep: Callable[[float], None] = time.sleep

    def wait(self, seconds: float) -> None:
        if seconds > 0:
            self.sleep(seconds)


class ToyEngine:
    """The engine of a `ToyModel`.

    `form`: any float; int8 or e4m3fn under a scale of one; int8 with inline scales per token.
    """

    def __init__(
        self,
        model: ToyModel = ToyModel(),
        *,
        blocks: int = 1024,
        block_tokens: int = 16,
        form: Format = UNIT_INT8,
        pace: Pace = Pace(),
        room: Callable[[int], memoryview] | None = None,
    ) -> None:
        self.model, self.pace = model, pace
        self.vocabulary, self.max_context, self.eos = model.vocabulary, model.max_context, frozenset((model.eos,))
        dim = ELEMENTS // 2 // model.heads
        layers = Layers(LayerKind.FULL, model.layers, kv_heads=model.heads, head_dim=dim, v_head_dim=dim)
        self.state = KVState(model.identity, (layers,), form, Storage(block_tokens, Layout.LBHNC))
        self.memory: KVMemory = allocate(self.state, blocks, room)
        self._layers = [_StoredStates.over(layer, blocks) for layer in self.memory.layers]

    def prefill(
        self, chunks: Sequence[Chunk], on_layer: Callable[[int], None] | None = None
    ) -> list[Prefilled | EngineFault]:
        faults = {place: fault for place, chunk in enumerate(chunks) if (fault := self._misfit(chunk))}
        took = self.pace.prefill_token * sum(len(chunk.tokens) for chunk in chunks) / self.model.layers
        for layer in range(self.model.layers):
            for place, chunk in enumerate(chunks):
                if place not in faults:
                    self._fill(layer, chunk)
            self.pace.wait(took)
            if on_layer is not None:
                on_layer(layer)
        return [faults.get(place) or self._prefilled(chunk) for place, chunk in enumerate(chunks)]

    def insert(self, sequence: int, blocks: tuple[int, ...], tokens: int) -> None:
        """Nothing to do: all is read from the blocks at every step."""

    def decode_step(
        self, steps: Sequence[Step], on_layer: Callable[[int], None] | None = None
    ) -> list[Sampled | EngineFault]:
        took = (self.pace.decode_step + self.pace.decode_token * len(steps)) / self.model.layers
        for layer in range(self.model.layers):
            self.pace.wait(took)
            if on_layer is not None:
                on_layer(layer)
        return [self._next(step) for step in steps]

    def release(self, sequence: int) -> None:
        """Nothing is kept of a sequence."""

    def _next(self, step: Step) -> Sampled | EngineFault:
        chunk = Chunk(step.sequence, (step.token,), step.position, step.blocks)
        if fault := self._misfit(chunk):
            return fault
        for layer in range(self.model.layers):
            self._fill(layer, chunk)
        return self._sampled(chunk, len(step.generated), step.sampling)

    def _misfit(self, chunk: Chunk) -> EngineFault | None:
        said = chunk.sequence, chunk.tokens, chunk.start, chunk.blocks
        return misfit(self.memory, self.vocabulary, self.max_context, *said)

    def _fill(self, layer: int, chunk: Chunk) -> None:
        stored = self._layers[layer]
        before = stored.read(chunk.blocks, chunk.start - 1, chunk.start).tobytes() if chunk.start else _NOTHING
        states = []
        for token in chunk.tokens:
            before = self.model.state(layer, before, token)
            states.append(before)
        stored.write(chunk.blocks, chunk.start, np.frombuffer(b"".join(states), np.int8).reshape(-1, ELEMENTS))

    def _prefilled(self, chunk: Chunk) -> Prefilled | EngineFault:
        asked = chunk.prompt_logprobs
        told = chunk.tokens if chunk.start else chunk.tokens[1:]
        prompt = () if asked is None else tuple(self.model.told(token, asked) for token in told)
        if chunk.sampling is None:
            return Prefilled(prompt=prompt)
        sampled = self._sampled(chunk, len(chunk.generated), chunk.sampling)
        return sampled if isinstance(sampled, EngineFault) else Prefilled(sampled, prompt)

    def _sampled(self, chunk: Chunk, generated: int, sampling: Sampling) -> Sampled | EngineFault:
        """The token that follows from all of a sequence's KV."""
        count = chunk.start + len(chunk.tokens)
        states = np.empty((count, self.model.layers, ELEMENTS), np.int8)
        for layer, stored in enumerate(self._layers):
            states[:, layer] = stored.read(chunk.blocks, 0, count)
        if np.abs(states).max() > TOP or not states.any(axis=(1, 2)).all():
            return EngineFault(chunk.sequence, "KV that no token of this model leaves")
        return self.model.sampled(self.model.choice(states.tobytes(), sampling), generated, sampling)


@dataclass(frozen=True, slots=True)
class _StoredStates:
    """The states in one layer's memory. `codes`: (blocks, parts, heads, tokens, dim); `scales`: per token and head."""

    codes: NDArray[Any]
    scales: NDArray[np.float32] | None

    @classmethod
    def over(cls, layer: LayerMemory, blocks: int) -> _StoredStates:
        form, dims = layer.form, (layer.parts, layer.heads, layer.tokens, layer.dim)
        inline = form.scaling == INLINE_TOKEN
        if form.element not in DTYPES or (
            form.scaling.source not in (ScaleSource.NONE, ScaleSource.UNIT) and not inline
        ):
            raise InvalidInput(
                Finding("form", f"{form}", "a float, int8 or fp8 under scale 1, or inline scales per token")
            )
        whole = np.frombuffer(layer.bytes, np.uint8).reshape(blocks, layer.stride)
        end = code_bytes(form, *dims)
        codes = whole[:, :end].view(DTYPES[form.element]).reshape(blocks, *dims)
        return cls(
            codes, whole[:, end : layer.block_bytes].view(np.float32).reshape(blocks, *dims[:3]) if inline else None
        )

    def read(self, blocks: Sequence[int], begin: int, end: int) -> States:
        """The states of positions `begin` to `end`; what is no number is 127."""
        size = self.codes.shape[3]
        first = begin // size
        some = list(blocks[first : -(-end // size)])
        values = self.codes[some]
        if self.scales is not None or values.dtype != np.int8:
            values = values.astype(np.float32)
            if self.scales is not None:
                values *= self.scales[some][..., None]
            values = np.nan_to_num(np.rint(values), nan=127).clip(-127, 127).astype(np.int8)
        by_token = values.transpose(0, 3, 1, 2, 4).reshape(-1, ELEMENTS)
        return by_token[begin - first * size : end - first * size]

    def write(self, blocks: Sequence[int], begin: int, states: States) -> None:
        """Put states at the positions from `begin` on."""
        positions = np.arange(begin, begin + len(states))
        block, slot = np.asarray(blocks)[positions // self.codes.shape[3]], positions % self.codes.shape[3]
        values = states.reshape(len(states), *self.codes.shape[1:3], -1)
        if self.scales is not None:
            peak = np.abs(values).max(axis=-1)
            scales = np.where(peak > 0, peak / np.float32(127), np.float32(1)).astype(np.float32)
            self.scales[block, :, :, slot] = scales
            values = np.rint(values / scales[..., None])
        self.codes[block, :, :, slot] = values
