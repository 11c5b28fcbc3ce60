"""The finalists in simulation, in words: predictions beside what was seen."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.planner.plan import Checked, Percentiles, Verification
from diptych.report import words
from diptych.units import format_seconds


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """A finalist: its fate, p90 of each latency as `plan / seen`, the share of requests inside the SLO, why it was changed."""

    label: str
    fate: str
    usd_per_hour: float
    ttft: str
    tpot: str
    inside: str
    reason: str


def verified_rows(verification: Verification) -> tuple[VerifiedRow, ...]:
    """A row for each finalist."""
    return tuple(
        VerifiedRow(
            checked.label, str(checked.fate), checked.usd_per_hour, both(checked, "ttft"), both(checked, "tpot"),
            words.percent(checked.attainment), f"{checked.planned}: {checked.reason}" if checked.reason else "",
        )
        for checked in verification.finalists
    )  # fmt: skip


def counted(verification: Verification) -> str:
    """`6 finalists: 2 kept, 3 corrected and 1 dropped; 19,366 requests of conv.csv in each of 31 simulations`."""
    number = words.plural(len(verification.finalists), "finalist")
    fates = ((verification.kept, "kept"), (verification.corrected, "corrected"), (verification.dropped, "dropped"))
    came = words.listed(f"{count} {fate}" for count, fate in fates if count)
    of = "" if verification.requests == verification.workload_requests else f" of {verification.workload_requests:,}"
    each = f"{verification.requests:,}{of} requests of {verification.workload} in each of"
    return f"{number}: {came}; {each} {words.plural(verification.simulations, 'simulation')}"


def both(checked: Checked, metric: str) -> str:
    """`1.03 s / 1.9 s` at p90."""
    return f"{_at90(checked.predicted[metric])} / {_at90(checked.simulated[metric])}"


def _at90(values: Percentiles) -> str:
    return "–" if values.p90 is None else format_seconds(values.p90)
