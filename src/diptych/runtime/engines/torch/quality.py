"""What a precision costs in quality: forced along a text, how far a pair of roles is from one engine in the baseline's precision.

Prefill computes the context of a window, its KV crosses, decode is forced along the rest. All see the same tokens: answers that
run freely part ways at the first near tie, and then compare nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.stored import StoredKV
from diptych.boundary.describe import usual_scaling
from diptych.boundary.element import Element
from diptych.boundary.format import Format
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.runtime.engine import Chunk
from diptych.runtime.engines.torch.checkpoint import Checkpoint
from diptych.runtime.engines.torch.engine import Setup, TorchEngine, device_named, weights_named
from diptych.runtime.engines.torch.forward import Decoder
from diptych.runtime.engines.torch.paged import STORED, Slots, Table

WIRES = {
    **STORED,
    "int4": Format(Element.INT4, usual_scaling(Element.INT4)),
    "nvfp4": Format(Element.NVFP4, usual_scaling(Element.NVFP4)),
}
"""KV that may cross; what is not among `STORED` no role of this engine keeps."""
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Role:
    """The precision of one role's weights, and of the KV it keeps."""

    weights: str
    kv: str


@dataclass(frozen=True, slots=True)
class Pairing:
    """A prefill role, what its KV crosses as ("": as it is), and a decode role."""

    prefill: Role
    wire: str
    decode: Role


@dataclass(frozen=True, slots=True)
class Quality:
    """Over `tokens` tokens: perplexity, share of equal greedy choices, mean KL from the baseline in nats a token.

    `change` is the perplexity over the baseline's, minus one, and `error` its standard error, token by token.
    """

    pairing: Pairing
    tokens: int
    perplexity: float
    change: float
    error: float
    agreement: float
    divergence: float


@dataclass(frozen=True, slots=True)
class Windows:
    """Runs of a text: `context` tokens are prefilled, the `rest` after them is scored."""

    tokens: tuple[tuple[int, ...], ...]
    context: int
    rest: int

    @classmethod
    def of(cls, tokens: Sequence[int], context: int, rest: int, most: int) -> Windows:
        """At most `most` windows, evenly over the text.

        Raises:
            InvalidInput: the text does not fill one.
        """
        size = context + rest
        count = min(most, len(tokens) // size)
        if not count:
            raise InvalidInput(Finding("--text", f"has {len(tokens)} tokens", f"{size} or more, one window"))
        step = (len(tokens) - size) // max(1, count - 1) if count > 1 else 0
        return cls(tuple(tuple(tokens[place * step : place * step + size]) for place in range(count)), context, rest)


def pairings(baseline: Role, weights: Sequence[str], kvs: Sequence[str]) -> list[Pairing]:
    """The baseline; every pair of weights; every KV precision as what crosses, as what decode keeps, and as what both keep.

    Raises:
        InvalidInput: names that are none.
    """
    findings = [
        Finding("--kv", f"unknown precision {kv[:40]!r}", hint=did_you_mean(kv[:40], list(WIRES)))
        for kv in kvs
        if kv not in WIRES
    ]
    if findings:
        raise InvalidInput(findings)
    all_weights = list(dict.fromkeys((baseline.weights, *(str(weights_named(each)) for each in weights))))
    roles = [replace(baseline, weights=each) for each in all_weights]
    found = [Pairing(prefill, "", decode) for prefill in roles for decode in roles]
    for kv in kvs:
        kept = replace(baseline, kv=kv)
        found.append(Pairing(baseline, kv, baseline))
        if kv in STORED:
            found += [Pairing(baseline, "", kept), Pairing(kept, "", kept)]
    return list(dict.fromkeys(found))


class Gauge:
    """Measures pairings of one checkpoint over the same windows."""

    def __init__(self, checkpoint: Checkpoint, windows: Windows, device: str = "cpu") -> None:
        self._checkpoint, self._windows, self._device = checkpoint, windows, device
        self._blocks = tuple(range(-(-(windows.context + windows.rest) // _BLOCK)))
        self._decoders: dict[str, Decoder] = {}
        self._contexts: dict[Role, list[list[torch.Tensor]]] = {}

    def measure(
        self, baseline: Role, some: Sequence[Pairing], done: Callable[[int], None] = lambda count: None
    ) -> Iterator[Quality]:
        """One after the other; the baseline role is both halves of the reference."""
        wanted = self._scores(Pairing(baseline, "", baseline))
        coming = [torch.tensor(window[self._windows.context + 1 :]) for window in self._windows.tokens]
        for count, pairing in enumerate(some, 1):
            yield _quality(pairing, wanted, self._scores(pairing), coming)
            done(count)

    def _scores(self, pairing: Pairing) -> list[torch.Tensor]:
        """Log probabilities after every scored token but the last, window by window."""
        engine = self._engine(pairing.decode)
        scores = []
        for window, context in zip(self._windows.tokens, self._context(pairing.prefill), strict=True):
            self._hand_over(context, pairing.wire, engine)
            rest = window[self._windows.context : -1]
            scores.append(engine.log_probabilities(Chunk(0, rest, self._windows.context, self._blocks)))
        return scores

    def _context(self, role: Role) -> list[list[torch.Tensor]]:
        """Every window's and layer's KV as a role keeps it: (2, heads, tokens, dim), float32."""
        if role not in self._contexts:
            engine, size = self._engine(role), self._windows.context
            found = []
            for window in self._windows.tokens:
                engine.prefill([Chunk(0, window[:size], 0, self._blocks)])
                table = Table.of([self._blocks], engine.layers[0].heads, engine.layers[0].codes.device)
                found.append([layer.read(table, torch.float32)[:, 0, :, :size].clone() for layer in engine.layers])
            self._contexts[role] = found
        return self._contexts[role]

    def _hand_over(self, context: Sequence[torch.Tensor], wire: str, engine: TorchEngine) -> None:
        device = engine.layers[0].codes.device
        slots = Slots.of([(self._blocks, 0, self._windows.context)], _BLOCK, device)
        for values, layer in zip(context, engine.layers, strict=True):
            crossed = _crossed(values, WIRES[wire]) if wire else values
            layer.write(slots, crossed.permute(2, 0, 1, 3).to(device))

    def _engine(self, role: Role) -> TorchEngine:
        if role.weights not in self._decoders:
            weights, device = weights_named(role.weights), device_named(self._device)
            self._decoders[role.weights] = Decoder(self._checkpoint, weights, device)
        setup = Setup(role.weights, role.kv, len(self._blocks), _BLOCK, self._device)
        return TorchEngine(self._checkpoint, setup, decoder=self._decoders[role.weights])


def _crossed(values: torch.Tensor, wire: Format) -> torch.Tensor:
    """(2, heads, tokens, dim) float32 values after the boundary's codec, there and back."""
    dim = values.shape[-1]
    if wire.scaling.group > dim:
        wire = Format(wire.element, replace(wire.scaling, group=dim))
    canonical = np.ascontiguousarray(values.transpose(1, 2)[None].numpy())
    back = convert(convert(StoredKV.of(canonical), wire), Format(Element.FP32))
    return torch.from_numpy(back.array[0]).transpose(1, 2)


def _quality(
    pairing: Pairing, wanted: Sequence[torch.Tensor], found: Sequence[torch.Tensor], coming: Sequence[torch.Tensor]
) -> Quality:
    losses, references, equal, divergence = [], [], 0, 0.0
    for one, other, tokens in zip(wanted, found, coming, strict=True):
        place = tokens.to(other.device)[:, None]
        losses.append(-other.gather(1, place).double())
        references.append(-one.gather(1, place).double())
        equal += int((one.argmax(-1) == other.argmax(-1)).sum())
        divergence += float((one.exp() * (one - other)).double().sum())
    loss, more = torch.cat(losses), torch.cat(losses) - torch.cat(references)
    count, change = len(loss), float(more.mean().exp())
    error = change * float(more.std()) / count**0.5
    return Quality(
        pairing, count, float(loss.mean().exp()), change - 1, error, equal / count, max(0.0, divergence / count)
    )
