"""Workers of vLLM in one process: tensors packed as vLLM's CPU attention packs them, and a joint over them."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import numpy as np
import torch

from diptych.boundary.element import Element
from diptych.boundary.messages import Speaker
from diptych.integrations.vllm.cache import TorchBlocks
from diptych.integrations.vllm.facts import Facts
from diptych.integrations.vllm.host import Rank
from diptych.integrations.vllm.jobs import Fetch, Finished
from diptych.integrations.vllm.joint import Joint
from diptych.integrations.vllm.settings import Settings
from diptych.integrations.vllm.ticket import Place

LAYERS, HEADS, DIM, BLOCKS = 3, 2, 16, 12
FACTS = Facts("m", "", "w", {"rope_theta": 1e4}, LAYERS, HEADS, DIM, 32, "torch.float32", "auto")
KEY = (b"0123456789abcdef", 7)
DTYPES = {
    Element.FP32: torch.float32,
    Element.BF16: torch.bfloat16,
    Element.FP16: torch.float16,
    Element.E4M3FN: torch.float8_e4m3fn,
}


def packed_places(tokens: int, heads: int = HEADS) -> np.ndarray:
    """Each head's keys with tokens innermost, then its values."""
    whole = np.arange(heads * 2 * tokens * DIM).reshape(heads, 2, tokens * DIM)
    keys = whole[:, 0].reshape(heads, DIM, tokens).transpose(0, 2, 1)
    return np.stack([keys, whole[:, 1].reshape(heads, tokens, DIM)])


class Worker:
    """Tensors as vLLM would have them, and a joint over them. It holds `heads` of the model's `total`."""

    def __init__(
        self,
        tokens: int,
        dtype: str,
        cache: str = "auto",
        *,
        heads: int = HEADS,
        total: int = HEADS,
        rank: Rank | None = None,
        speaker: Speaker = Speaker.PREFILL,
        **settings,
    ) -> None:
        self.tokens, self.heads = tokens, heads
        state = replace(FACTS, block_tokens=tokens, model_dtype=dtype, cache_dtype=cache, kv_heads=heads).state()
        self.dtype = DTYPES[state.format.element]
        self.tensors = [torch.zeros(BLOCKS, heads, tokens, 2 * DIM, dtype=self.dtype) for _ in range(LAYERS)]
        self.said: list[str] = []
        self.blocks = TorchBlocks.of(self.tensors, packed_places(tokens, heads), state, total)
        self.joint = Joint(rank or Rank(f"w{id(self)}"), self.blocks, Settings.of(settings), self.said.append, speaker)
        self.done = Finished()

    def put(self, values: np.ndarray, blocks: list[int]) -> None:
        """(layers, parts, tokens, heads, dim) into these blocks, as the backend would."""
        flat = self._flat()
        for token in range(values.shape[2]):
            block, slot = blocks[token // self.tokens], token % self.tokens
            for layer in range(LAYERS):
                at = packed_places(self.tokens, self.heads)[:, :, slot]
                flat[layer][block, torch.from_numpy(at.copy())] = torch.from_numpy(values[layer, :, token]).to(
                    self.dtype
                )

    def get(self, count: int, blocks: list[int]) -> np.ndarray:
        """The first `count` tokens of these blocks."""
        found = np.zeros((LAYERS, 2, count, self.heads, DIM), np.float32)
        for layer, flat in enumerate(self._flat()):
            for token in range(count):
                at = packed_places(self.tokens, self.heads)[:, :, token % self.tokens]
                found[layer, :, token] = flat[blocks[token // self.tokens]].float()[torch.from_numpy(at.copy())]
        return found

    def _flat(self) -> list[torch.Tensor]:
        return [tensor.view(BLOCKS, -1) for tensor in self.tensors]

    @property
    def place(self) -> Place:
        return Place(self.joint.rank.name, self.joint.doorbell)

    def fetch(self, source: Worker, tokens: int, blocks: list[int], held: int = 0, key=KEY, request="d") -> None:
        self.joint.fetch(Fetch(key, request, tuple(blocks), tokens, held, ranks=(source.place,)))

    def wait(self, seconds: float = 10, **told: str) -> Finished:
        """Until vLLM would have been told so of these requests."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.joint.take()
            for each in fields(Finished):
                getattr(self.done, each.name).update(getattr(found, each.name))
            if all(request in getattr(self.done, name) for name, request in told.items()):
                return self.done
            time.sleep(0.005)
        raise AssertionError(f"not told: {self.done}, {self.said}")


def values(tokens: int, seed: int = 1, heads: int = HEADS) -> np.ndarray:
    """Values that every element format keeps exactly."""
    found = np.random.default_rng(seed).integers(-7, 8, (LAYERS, 2, tokens, heads, DIM))
    return found.astype(np.float32)
