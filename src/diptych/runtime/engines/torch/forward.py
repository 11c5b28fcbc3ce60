"""The decoder's arithmetic: embeddings in, hidden states out; what attends to what is the caller's `Attend`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from diptych.errors import Finding, InvalidInput
from diptych.runtime.engines.torch.checkpoint import Checkpoint
from diptych.runtime.engines.torch.linear import Linear, Weights, linear
from diptych.runtime.engines.torch.rope import Rotation, frequencies, rotate

Attend = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, queries (tokens, heads, dim), keys and values (tokens, 2, kv heads, dim)) to (tokens, heads · dim)."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights, q, k and v in one product, gate and up in another."""

    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """A model in one precision on one device."""

    def __init__(self, checkpoint: Checkpoint, weights: Weights, device: torch.device) -> None:
        self.shape, self.weights, self.device = checkpoint.shape, weights, device
        self.dtype = weights.activations
        loading = _Loading(checkpoint, weights, device)
        self.embedding = loading.table()
        self.layers = [loading.layer(number) for number in range(self.shape.layers)]
        self.norm = loading.vector("model.norm.weight", self.shape.hidden)
        self.head = loading.head()
        turning = frequencies(self.shape.rope, self.shape.head_dim, checkpoint.frequency_factors())
        self.rotation = Rotation(turning, device, self.dtype)
        loading.finish()

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, most: int, attend: Attend) -> torch.Tensor:
        """The last layer's normalised output: (tokens, hidden). `most`: the highest position."""
        shape = self.shape
        cos, sin = self.rotation.at(positions, most)
        flow = functional.embedding(tokens, self.embedding)
        for number, layer in enumerate(self.layers):
            normed = self._norm(flow, layer.attention_norm)
            projected = layer.qkv(normed).view(-1, shape.heads + 2 * shape.kv_heads, shape.head_dim)
            attended = attend(number, *self._turned(layer, projected, cos, sin))
            flow = flow + layer.output(attended)
            gate_up = layer.gate_up(self._norm(flow, layer.mlp_norm))
            gate, up = gate_up.chunk(2, -1)
            flow = flow + layer.down(functional.silu(gate) * up)
        return self._norm(flow, self.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(tokens, vocabulary), float32."""
        return self.head(hidden).float()

    def _turned(
        self, layer: DecoderLayer, projected: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, and keys beside values; queries and keys normalised where the family does, and rotated."""
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        if layer.q_norm is not None and layer.k_norm is not None:
            queries = self._norm(projected[:, :heads], layer.q_norm)
            keys = self._norm(projected[:, heads : heads + kv_heads], layer.k_norm)
            turned = rotate(torch.cat((queries, keys), 1), cos, sin)
        else:
            turned = rotate(projected[:, : heads + kv_heads], cos, sin)
        kv = torch.stack((turned[:, heads:], projected[:, heads + kv_heads :]), 1)
        return turned[:, :heads], kv

    def _norm(self, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if values.dtype is not torch.float32:
            return functional.rms_norm(values, weight.shape, weight, self.shape.epsilon)
        size: torch.Tensor = torch.linalg.vector_norm(values, dim=-1, keepdim=True)  # fewer passes than rms_norm's own
        size.square_().mul_(1 / weight.shape[0]).add_(self.shape.epsilon).rsqrt_()
        return (values * size).mul_(weight)


class _Loading:
    """Takes a checkpoint's tensors, and says of all that are missing or misshapen at once."""

    def __init__(self, checkpoint: Checkpoint, weights: Weights, device: torch.device) -> None:
        self.checkpoint, self.weights, self.device = checkpoint, weights, device
        self.shape = checkpoint.shape
        self.findings: list[Finding] = []

    def finish(self) -> None:
        if self.findings:
            raise InvalidInput(self.findings[:20])

    def tensor(self, name: str, *dims: int) -> torch.Tensor:
        """One tensor, or zeros and a finding."""
        if len(self.findings) < 20:
            try:
                return self.checkpoint.tensor(name, dims)
            except InvalidInput as error:
                self.findings.extend(error.findings)
        return torch.zeros(dims)

    def vector(self, name: str, size: int) -> torch.Tensor:
        return self.tensor(name, size).to(self.device, self.weights.activations)

    def table(self) -> torch.Tensor:
        """The embedding, which is only looked up: int8 roles keep it in bf16's two bytes where the checkpoint does."""
        table = self.tensor("model.embed_tokens.weight", self.shape.vocabulary, self.shape.hidden)
        return table.to(self.device, self.weights.activations)

    def head(self) -> Linear:
        name = "model.embed_tokens.weight" if self.shape.tied else "lm_head.weight"
        return self.linear([(name, self.shape.vocabulary)], self.shape.hidden)

    def linear(self, parts: list[tuple[str, int]], inputs: int, *, bias: bool = False) -> Linear:
        """Several weights of the same inputs as one."""
        weight = torch.cat([self.tensor(name, outputs, inputs) for name, outputs in parts])
        offset = None
        if bias:
            offset = torch.cat([self.tensor(name.replace(".weight", ".bias"), outputs) for name, outputs in parts])
        return linear(weight, offset, self.weights, self.device)

    def layer(self, number: int) -> DecoderLayer:
        shape, place = self.shape, f"model.layers.{number}."
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        attention, mlp = f"{place}self_attn.", f"{place}mlp."
        qkv = [(f"{attention}{name}_proj.weight", size) for name, size in (("q", queries), ("k", keys), ("v", keys))]
        gate_up = [(f"{mlp}{name}_proj.weight", shape.intermediate) for name in ("gate", "up")]
        output, down = [(f"{attention}o_proj.weight", shape.hidden)], [(f"{mlp}down_proj.weight", shape.hidden)]
        return DecoderLayer(
            attention_norm=self.vector(f"{place}input_layernorm.weight", shape.hidden),
            qkv=self.linear(qkv, shape.hidden, bias=shape.attention_bias),
            q_norm=self.vector(f"{attention}q_norm.weight", shape.head_dim) if shape.qk_norm else None,
            k_norm=self.vector(f"{attention}k_norm.weight", shape.head_dim) if shape.qk_norm else None,
            output=self.linear(output, queries, bias=shape.output_bias),
            mlp_norm=self.vector(f"{place}post_attention_layernorm.weight", shape.hidden),
            gate_up=self.linear(gate_up, shape.hidden, bias=shape.mlp_bias),
            down=self.linear(down, shape.intermediate, bias=shape.mlp_bias),
        )
