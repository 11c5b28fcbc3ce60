"""A worker's blocks, understood: known tokens are written through the attention backend into real blocks and looked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diptych.boundary.element import Element
from diptych.errors import Finding, InvalidInput
from diptych.integrations.vllm.cache import TorchBlocks, in_memory_order
from diptych.integrations.vllm.facts import Facts, weights_digest
from diptych.integrations.vllm.packing import BASE, Values, find_packing
from diptych.integrations.vllm.settings import Settings

_FLOATS = {
    Element.E4M3FN: torch.float8_e4m3fn,
    Element.E4M3FNUZ: torch.float8_e4m3fnuz,
    Element.E5M2: torch.float8_e5m2,
}
SEED = 20261129


def blocks_of(config: Any, caches: Mapping[str, torch.Tensor], kv_cache_config: Any, settings: Settings) -> TorchBlocks:
    """vLLM's KV tensors as blocks whose order is known. The blocks that are written are zeroed again: nobody uses them yet.

    Raises:
        InvalidInput: layers that are not alike, KV that a backend keeps in a way that cannot be read, scales of a checkpoint.
    """
    layers = {name: config.compilation_config.static_forward_context[name] for name in caches}
    _refuse_unlike(layers, caches, kv_cache_config)
    state = _facts(config, layers, kv_cache_config, settings).state()
    tensors = [in_memory_order(tensor) for tensor in caches.values()]
    first = next(iter(layers))
    heads, dim, tokens = state.layers[0].kv_heads, state.layers[0].head_dim, state.storage.block_tokens
    kept = _FLOATS.get(state.format.element)
    dtype = config.model_config.dtype
    places = find_packing(_Writer(layers[first], caches[first], 0, dtype, kept), 2, heads, tokens, dim)
    random = np.random.default_rng(SEED)
    for name, tensor in caches.items():
        digits = random.integers(0, BASE, (2, tokens, heads, dim)).astype(np.float32)
        stands = _Writer(layers[name], tensor, tensor.shape[0] - 1, dtype, kept)(digits)
        if not np.array_equal(stands[places], digits.transpose(0, 2, 1, 3)):
            raise _unlike(f"{name} keeps its blocks in another order than {first}")
        tensor[[0, -1]] = 0
    return TorchBlocks.of(tensors, places, state, config.model_config.get_total_num_kv_heads())


class _Writer:
    """Writes one block of one layer through the backend, and looks at it."""

    def __init__(
        self, layer: Any, tensor: torch.Tensor, block: int, dtype: torch.dtype, kept: torch.dtype | None
    ) -> None:
        self._layer, self._tensor, self._block, self._dtype, self._kept = layer, tensor, block, dtype, kept

    def __call__(self, values: Values) -> NDArray[Any]:
        tokens = values.shape[1]
        key, value = (
            torch.from_numpy(np.ascontiguousarray(part)).to(self._dtype).to(self._tensor.device) for part in values
        )
        begin = self._block * tokens
        slots = torch.arange(begin, begin + tokens, dtype=torch.int64, device=self._tensor.device)
        self._layer.impl.do_kv_cache_update(self._layer, key, value, self._tensor, slots)
        block = in_memory_order(self._tensor)[self._block].reshape(-1)
        found: NDArray[Any] = (block if self._kept is None else block.view(self._kept)).float().cpu().numpy()
        return found


def _facts(config: Any, layers: Mapping[str, Any], kv_cache_config: Any, settings: Settings) -> Facts:
    from vllm.platforms import current_platform  # type: ignore[import-not-found, unused-ignore]

    model, layer = config.model_config, next(iter(layers.values()))
    text = model.hf_text_config
    rope = dict(getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {})
    if "rope_theta" not in rope and getattr(text, "rope_theta", None) is not None:
        rope["rope_theta"] = text.rope_theta
    place = Path(model.model)
    return Facts(
        model=settings.model or place.name,
        revision=model.revision or "",
        weights=settings.weights or weights_digest(place),
        rope=rope,
        layers=len(layers),
        kv_heads=layer.num_kv_heads,
        head_dim=layer.head_size,
        block_tokens=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
        model_dtype=str(model.dtype),
        cache_dtype=str(config.cache_config.cache_dtype),
        fnuz=bool(current_platform.is_fp8_fnuz()),
    )


def _refuse_unlike(layers: Mapping[str, Any], caches: Mapping[str, torch.Tensor], kv_cache_config: Any) -> None:
    specs = {type(group.kv_cache_spec).__name__ for group in kv_cache_config.kv_cache_groups}
    if len(kv_cache_config.kv_cache_groups) != 1 or specs != {"FullAttentionSpec"}:
        raise _unlike(f"{len(kv_cache_config.kv_cache_groups)} groups of {', '.join(sorted(specs))}")
    shapes = {(layer.num_kv_heads, layer.head_size) for layer in layers.values()}
    if len(shapes) != 1:
        raise _unlike(f"layers of {len(shapes)} shapes")
    for name, layer in layers.items():
        if not hasattr(layer.impl, "do_kv_cache_update"):
            raise _unlike(f"{type(layer.impl).__name__} has no way to write known tokens")
        scales = {float(getattr(layer, f"_{part}_scale_float", 1.0)) for part in "kv"}
        if scales != {1.0}:
            raise _unlike(f"{name} has KV scales of the checkpoint")
        if caches[name].shape[0] != kv_cache_config.num_blocks:
            raise _unlike(f"{caches[name].shape[0]} blocks lie in a tensor for {kv_cache_config.num_blocks}")


def _unlike(problem: str) -> InvalidInput:
    expected = "layers of full attention and one shape, a block along a tensor's first dimension, KV without scales"
    return InvalidInput(Finding("vLLM's KV cache", problem, expected))
