"""Workloads written out instead of measured: `fixed:2048x128` and `lognormal:mu=9.9,sigma=1,low=128,high=131072,osl=1024`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from diptych.errors import Finding, InvalidInput
from diptych.units import parse_count
from diptych.workload.checks import MAX_TOKENS
from diptych.workload.distributions import TruncatedLogNormal
from diptych.workload.lengths import Lengths
from diptych.workload.workload import Arrivals, Workload

FORMS = "a file, a bundled trace's name, preset:NAME, fixed:2048x128 or lognormal:mu=9.9,sigma=1,low=128,high=131072,osl=1024"


def fixed(text: str) -> Workload:
    """Every request alike, from `2048x128`. Raises `InvalidInput`."""
    match = re.fullmatch(r"\s*([^x×/]+)[x×/]([^x×/]+)\s*", text)
    sizes = _counts(dict(zip(("isl", "osl"), match.groups(), strict=True))) if match else {}
    if not sizes:
        raise InvalidInput(Finding("--workload", f"cannot read fixed:{text}", "fixed:ISLxOSL, such as fixed:2048x128"))
    _in_reach(sizes, ("isl", "osl"))
    return Workload(f"fixed:{text}", Lengths.fixed(sizes["isl"], sizes["osl"]), _unknown_rate(), 0, "as given")


def lognormal(text: str) -> Workload:
    """Truncated log-normal prompts, from `mu=9.9,sigma=1,low=128,high=131072,osl=1024`. Raises `InvalidInput`."""
    wanted = ("mu", "sigma", "low", "high", "osl")
    values = dict(part.split("=", 1) for part in text.replace(" ", "").split(",") if "=" in part)
    problems = [f"{key} is missing" for key in wanted if key not in values]
    problems += [f"{key!r} is unknown" for key in values if key not in wanted]
    if problems:
        expected = "lognormal:mu=9.9,sigma=1,low=128,high=131072,osl=1024"
        raise InvalidInput(Finding("--workload", f"lognormal: {', '.join(problems)}", expected))
    sizes = _counts(values)
    osl = _in_reach(sizes, ("low", "high", "osl"))["osl"]
    try:
        prompts = TruncatedLogNormal(sizes["mu"], sizes["sigma"], sizes["low"], sizes["high"])
    except ValueError as error:
        raise InvalidInput(Finding("--workload", f"lognormal:{text}: {error}", FORMS)) from None
    return Workload(f"lognormal:{text}", prompts.lengths(osl), _unknown_rate(), 0, "as given")


def _counts(texts: Mapping[str, str]) -> dict[str, float]:
    findings, values = [], {}
    for key, text in texts.items():
        try:
            values[key] = parse_count(text)
        except ValueError as error:
            findings.append(Finding("--workload", f"{key}: {error}", "a count such as 2048 or 32k"))
    if findings:
        raise InvalidInput(findings)
    return values


def _in_reach(sizes: dict[str, float], keys: Sequence[str]) -> dict[str, float]:
    """The sizes, if each is a number of tokens that a model can have."""
    wrong = [Finding("--workload", f"{key} of {sizes[key]:g} tokens", f"1 to {MAX_TOKENS:,} tokens")
             for key in keys if not 1 <= sizes[key] <= MAX_TOKENS]  # fmt: skip
    if wrong:
        raise InvalidInput(wrong)
    return sizes


def _unknown_rate() -> Arrivals:
    return Arrivals(0.0, note="Poisson; no rate: give one")
