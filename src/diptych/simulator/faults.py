"""What goes wrong, and what an operator changes, on the way: as data, and as the short texts of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from diptych.design.axes import Role
from diptych.errors import Finding, InvalidInput
from diptych.serving.scaling import Scaling, Signal
from diptych.units import parse_seconds

FOREVER = float("inf")
PATIENCE = 10.0  # s


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """A worker dies with all its KV, or a whole pool (`index` None), for `seconds`."""

    role: Role
    index: int | None
    at: float
    seconds: float = FOREVER


@dataclass(frozen=True, slots=True)
class LinkSlow:
    """The ports between the pools pass only `factor` of their bandwidth, 0 for a cut; one prefill or decode worker's, or all."""

    factor: float
    at: float
    seconds: float = FOREVER
    prefill: int | None = None
    decode: int | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Workers are added to a pool (they start up first) or drained from it (they finish what they have)."""

    role: Role
    change: int
    at: float


@dataclass(frozen=True, slots=True)
class Switch:
    """A worker drains, starts up in the other role, and serves there."""

    role: Role
    to: Role
    at: float


@dataclass(frozen=True, slots=True)
class Cancels:
    """A `share` of the clients whose requests come from `at` on, for `seconds`, give up, each at a moment drawn evenly from the
    `within` seconds after it came. Those whose answers are complete by then never do."""

    share: float
    within: float = PATIENCE
    at: float = 0.0
    seconds: float = FOREVER


@dataclass(frozen=True, slots=True)
class LinkCorrupts:
    """A `share` of the transfers that end in the time arrive damaged: all, or those of one prefill or decode worker."""

    share: float
    at: float
    seconds: float = FOREVER
    prefill: int | None = None
    decode: int | None = None


@dataclass(frozen=True, slots=True)
class Autoscale:
    """A pool grows and shrinks by a rule from the beginning on."""

    role: Role
    rule: Scaling
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Balance:
    """Prefill and decode lend each other workers by a rule: one that idles drains, starts up and serves on the other side."""

    rule: Scaling
    at: float = 0.0


Change = WorkerDown | LinkSlow | Scale | Switch | Cancels | LinkCorrupts | Autoscale | Balance

FORMS = (
    "'decode[1] dies @300s for 120s', 'prefill pool dies @300s', 'link prefill->decode at 10% @600s for 60s', "
    "'link prefill[0]->decode[2] cut @600s', 'link prefill->decode corrupts 1% @600s', "
    "'decode scales 1..8 by busy 30%..80%', 'pools balance by queue 1..10 every 10s cooldown 60s', "
    "'client cancels 5% within 10s @300s', 'decode +2 @900s', 'prefill -1 @900s', 'prefill to decode @900s'"
)
_WHEN = r"\s*@\s*(?P<at>\S+)(?:\s+for\s+(?P<span>\S+))?\s*$"
_DIES = re.compile(r"^\s*(?P<role>\w+)(?:\[(?P<index>\d+)\]|\s+(?P<pool>pool))\s+dies" + _WHEN)
_LINK = re.compile(
    r"^\s*link\s+prefill(?:\[(?P<p>\d+)\])?\s*->\s*decode(?:\[(?P<d>\d+)\])?\s+"
    r"(?:at\s+(?P<percent>\d+(?:\.\d+)?)\s*%|(?P<cut>cut)|corrupts\s+(?P<corrupts>\d+(?:\.\d+)?)\s*%)" + _WHEN
)
_CANCELS = re.compile(
    r"^\s*clients?\s+cancels?\s+(?P<percent>\d+(?:\.\d+)?)\s*%(?:\s+within\s+(?P<within>\S+))?"
    r"(?:\s*@\s*(?P<at>\S+)(?:\s+for\s+(?P<span>\S+))?)?\s*$"
)
_RULE = (
    r"\s+by\s+(?P<signal>\w+)\s+(?P<low>\d+(?:\.\d+)?)(?P<share>%?)\s*\.\.\s*(?P<high>\d+(?:\.\d+)?)(?P=share)"
    r"(?:\s+every\s+(?P<every>\S+))?(?:\s+cooldown\s+(?P<cooldown>\S+))?\s*$"
)
_AUTOSCALE = re.compile(r"^\s*(?P<role>\w+)\s+scales\s+(?P<least>\d+)\s*\.\.\s*(?P<most>\d+)" + _RULE)
_BALANCE = re.compile(r"^\s*pools\s+balance" + _RULE)
_SCALE = re.compile(r"^\s*(?P<role>\w+)\s+(?P<change>[+-]\d+)" + _WHEN)
_SWITCH = re.compile(r"^\s*(?P<role>\w+)\s+to\s+(?P<to>\w+)" + _WHEN)


def parse_changes(texts: Iterable[str], where: str = "--fault") -> tuple[Change, ...]:
    """Read faults and changes. Raises `InvalidInput` with every mistake in all of them.

    >>> parse_changes(["decode[1] dies @300s for 120s"])
    (WorkerDown(role=<Role.DECODE: 'decode'>, index=1, at=300.0, seconds=120.0),)
    """
    found: list[Change] = []
    findings: list[Finding] = []
    for text in texts:
        try:
            found.append(_parse(text))
        except ValueError as error:
            findings.append(Finding(where, f"cannot read {text!r}: {error}", FORMS))
    if findings:
        raise InvalidInput(findings)
    return tuple(found)


def _parse(text: str) -> Change:
    for pattern, make in _READERS:
        match = pattern.match(text)
        if match:
            return make(match)
    raise ValueError("no such form")


def _down(match: re.Match[str]) -> WorkerDown:
    at, seconds = _when(match)
    return WorkerDown(_role(match["role"]), int(match["index"]) if match["index"] else None, at, seconds)


def _link(match: re.Match[str]) -> LinkSlow | LinkCorrupts:
    at, seconds = _when(match)
    ends = [int(match[key]) if match[key] else None for key in ("p", "d")]
    if match["corrupts"]:
        return LinkCorrupts(_share(match["corrupts"]), at, seconds, *ends)
    return LinkSlow(0.0 if match["cut"] else float(match["percent"]) / 100, at, seconds, *ends)


def _cancels(match: re.Match[str]) -> Cancels:
    share = _share(match["percent"])
    within = parse_seconds(match["within"]) if match["within"] else PATIENCE
    at, seconds = _when(match) if match["at"] else (0.0, FOREVER)
    if within <= 0:
        raise ValueError("patience must last some time")
    return Cancels(share, within, at, seconds)


def _autoscale(match: re.Match[str]) -> Autoscale:
    least, most = int(match["least"]), int(match["most"])
    if not 1 <= least <= most:
        raise ValueError(f"{least}..{most} is no range from 1 worker on")
    return Autoscale(_role(match["role"]), replace(_rule(match), least=least, most=most))


def _balance(match: re.Match[str]) -> Balance:
    return Balance(_rule(match))


def _rule(match: re.Match[str]) -> Scaling:
    """Both thresholds are percents, or neither; a queue is a number of requests and everything else a share."""
    if match["signal"] not in tuple(Signal):
        raise ValueError(f"unknown signal {match['signal']!r}; {', '.join(Signal)}")
    signal = Signal(match["signal"])
    if bool(match["share"]) == (signal is Signal.QUEUE):
        raise ValueError("a queue is a number of requests, such as 1..10; busy and kv are shares, such as 30%..80%")
    low, high = (float(match[name]) / (100 if match["share"] else 1) for name in ("low", "high"))
    if low >= high:
        raise ValueError(f"{match['low']}..{match['high']} leaves no band between the thresholds")
    every, cooldown = (parse_seconds(match[name]) if match[name] else None for name in ("every", "cooldown"))
    if every is not None and every <= 0:
        raise ValueError("it must look from time to time")
    rule = Scaling(signal, low, high)
    return replace(rule, every=every or rule.every, cooldown=rule.cooldown if cooldown is None else cooldown)


def _share(text: str) -> float:
    share = float(text) / 100
    if not 0 < share <= 1:
        raise ValueError(f"{text} % is no share from above 0 to 100")
    return share


def _scale(match: re.Match[str]) -> Scale:
    return Scale(_role(match["role"]), int(match["change"]), _instant(match))


def _switch(match: re.Match[str]) -> Switch:
    return Switch(_role(match["role"]), _role(match["to"]), _instant(match))


def _when(match: re.Match[str]) -> tuple[float, float]:
    seconds = parse_seconds(match["span"]) if match["span"] else FOREVER
    if seconds <= 0:
        raise ValueError("it must last some time")
    return _at(match), seconds


def _instant(match: re.Match[str]) -> float:
    if match["span"]:
        raise ValueError("a change stays; give the opposite change at its own time")
    return _at(match)


def _at(match: re.Match[str]) -> float:
    at = parse_seconds(match["at"])
    if at < 0:
        raise ValueError("time starts at 0")
    return at


def _role(text: str) -> Role:
    if text not in tuple(Role):
        raise ValueError(f"unknown role {text!r}; {', '.join(Role)}")
    return Role(text)


_READERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Change]], ...] = (
    (_DIES, _down),
    (_LINK, _link),
    (_SCALE, _scale),
    (_SWITCH, _switch),
    (_CANCELS, _cancels),
    (_AUTOSCALE, _autoscale),
    (_BALANCE, _balance),
)
