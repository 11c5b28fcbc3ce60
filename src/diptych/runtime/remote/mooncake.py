"""Mooncake's bootstrap server: which engine of a prefill worker holds what.

Source: vLLM 0.33 kv_connector/v1/mooncake/mooncake_utils.py (`/query`: an engine's id for each data-parallel rank).
"""

from __future__ import annotations

import msgspec

from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.remote.halves import Prefiller
from diptych.runtime.remote.wire import Wire


class _Entry(msgspec.Struct):
    engine_id: str


async def engines_of(wire: Wire, prefiller: Prefiller) -> dict[int, str]:
    """Engine ids by data-parallel rank. Raises ClientError, TimeoutError, or Refusal for an answer that is none."""
    status, text = await wire.get(f"{prefiller.bootstrap}/query")
    try:
        found = msgspec.json.decode(text, type=dict[str, _Entry]) if status == 200 else {}
        engines = {int(rank): entry.engine_id for rank, entry in found.items()}
    except (msgspec.MsgspecError, ValueError, UnicodeDecodeError):
        engines = {}
    if not engines:
        raise Refusal(502, "the prefill worker's bootstrap server knows no engine", "prefill_failed", after=1)
    return engines
