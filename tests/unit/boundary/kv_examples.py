"""KV states by name, as the golden files hold them: together they use every field."""

from __future__ import annotations

from diptych.boundary.descriptor import Holding, KVState, Layout, Shard, Storage
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.boundary.identity import Identity, Position, PositionKind, TokenRange
from diptych.boundary.layers import LayerKind, Layers
from diptych.catalog.memory import TierKind

GROUPS = Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=64)

EXAMPLES = {
    "least": KVState(
        Identity("Qwen3-32B"),
        (Layers(LayerKind.FULL, 64, kv_heads=8, head_dim=128, v_head_dim=128),),
        Format(Element.BF16),
        Storage(16),
    ),
    "handoff": KVState(
        Identity(
            "Llama-3.1-70B",
            "1605565",
            "sha256:4be7",
            "lora/support",
            "sha256:79e3",
            Position(PositionKind.ROPE, 500000.0, "llama3 factor=8", True),
            TokenRange(64, 128),
            ("a1", "b2", "c3", "d4"),
        ),
        (Layers(LayerKind.FULL, 80, kv_heads=8, head_dim=128, v_head_dim=128),),
        Format(Element.E4M3FNUZ, Scaling(ScaleSource.CHECKPOINT, ScaleGranularity.TENSOR, "sha256:51")),
        Storage(16, Layout.LBNHC, 65536, "aiter"),
        Shard(8, 2, 4, 2, 7, 1, 3, (39, 41)),
        Holding(TierKind.DRAM, "prefill-3", 41),
    ),
    "hybrid": KVState(
        Identity("made-up", adapter=None),
        (
            Layers(LayerKind.SLIDING, 2, kv_heads=4, head_dim=64, v_head_dim=64, window=128, index=(0, 2)),
            Layers(LayerKind.LATENT, 1, latent_rank=512, rope_dim=64, index=(1,)),
            Layers(LayerKind.STATE, 1, state_elements=524288.0, state_format=Element.BF16, index=(3,)),
            Layers(LayerKind.FULL, 1, kv_heads=1, head_dim=512, compress=4, index=(4,)),
        ),
        Format(Element.INT4, GROUPS),
        Storage(64, Layout.BLHNC),
    ),
}
