"""Which phase a workload leans on, told from its tokens alone; a plan with a model and accelerators says it exactly.

A prompt token costs 2P FLOP (P: parameters). An output token's step reads 2P bytes of 16-bit weights, shared by the B requests of
the batch. Time of one output token over time of one prompt token is therefore (FLOP/s over bytes/s) / B: the ridge point over B.
Attention and KV reads are left out: both grow with context, the first on the prefill side, the second on the decode side.
"""

from __future__ import annotations

from dataclasses import dataclass

from diptych.workload.workload import Workload

RIDGE = 295.0  # FLOP per byte of an H100 at 16 bits; accelerators run from 37 (H20) to 560 (TPU v6e)
BATCH = 64.0  # requests in a decode batch
OUTPUT_TOKEN_COST = RIDGE / BATCH  # prompt tokens that take as long as one output token
_HEAVY = 2 / 3


@dataclass(frozen=True, slots=True)
class Regime:
    """`name` is prefill-heavy, decode-heavy, balanced or offline; `prefill_share` the part of machine time that prefill takes."""

    name: str
    prefill_share: float
    sentence: str


def regime(workload: Workload) -> Regime:
    """The regime of a workload, with a sentence of why.

    >>> from diptych.workload.presets import preset
    >>> regime(preset("codegen")).name, regime(preset("creative")).name
    ('prefill-heavy', 'decode-heavy')
    """
    lengths = workload.lengths
    computed = lengths.mean_isl - lengths.mean(lengths.cached)
    decode = OUTPUT_TOKEN_COST * lengths.mean_osl
    share = computed / (computed + decode)
    lean = "prefill-heavy" if share > _HEAVY else "decode-heavy" if share < 1 - _HEAVY else "balanced"
    cached = (
        f" ({lengths.hit_rate * 100:.0f} % of the prompt comes from the prefix cache)" if lengths.hit_rate > 0 else ""
    )
    why = (
        f"{computed:,.0f} prompt tokens to compute{cached} against {lengths.mean_osl:,.0f} output tokens per request: with an "
        f"output token as dear as {OUTPUT_TOKEN_COST:.1f} prompt tokens (ridge point {RIDGE:.0f} FLOP/byte over a batch of "
        f"{BATCH:.0f}), prefill takes about {share * 100:.0f} % of the machine time"
    )
    if workload.arrivals.offline:
        return Regime("offline", share, f"no latency to keep, so batches grow as memory allows; {lean}: {why}")
    return Regime(lean, share, why)
