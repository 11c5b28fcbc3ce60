"""From words to a `Design`: what a text or a file names is looked up, what it leaves out gets engines' usual choice.

`Written` is what was read, each word with its place; `resolve` turns it into a design or into every finding at once. The words
of a worker are `WORKER_WORDS`, those of the boundary `BOUNDARY_WORDS`; a worker's word among the options holds for every worker
that has none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Model
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Representation, Side
from diptych.design.capability import engines, executable
from diptych.design.design import Design, Member, Pool
from diptych.errors import Finding, InvalidDesign, InvalidInput, did_you_mean
from diptych.units import parse_bandwidth, parse_count

T = TypeVar("T")
SIZES = ("tp", "pp", "ep", "dp")
FORMATS = ("w", "a", "kv")
WORKER_WORDS = (*SIZES, *FORMATS, "engine", "batch", "tokens", "tier", "nic", "usd", "offer")
BOUNDARY_WORDS = ("link", "placement", "ownership", "overlap", "wire", "codec", "convert", "local")
LONG = {
    "weights": "w",
    "activations": "a",
    "interconnect": "link",
    "max_batch": "batch",
    "max_batched_tokens": "tokens",
    "residency": "tier",
    "usd_per_hour": "usd",
    "nic_bandwidth": "nic",
    "converts_at": "convert",
    "local_below": "local",
}
"""Longer names of the same words."""


@dataclass(frozen=True, slots=True)
class Word:
    """A value as written, and where."""

    text: str
    where: str


Words = dict[str, Word]


@dataclass(slots=True)
class WrittenMember:
    """`count` workers of an accelerator, with their own words."""

    count: Word
    accelerator: Word
    words: Words = field(default_factory=dict)


@dataclass(slots=True)
class Written:
    """A design as written: pools in order, options for all of it, and what was wrong with the writing itself."""

    where: str
    pools: list[tuple[Role, list[WrittenMember]]] = field(default_factory=list)
    options: Words = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def say(self, where: str, problem: str, expected: str = "", hint: str = "") -> None:
        """Note a mistake."""
        self.findings.append(Finding(where, problem, expected, hint))

    def put(self, words: Words, name: str, word: Word, known: tuple[str, ...]) -> None:
        """Add a word, unless it is unknown here or already there."""
        name = LONG.get(name, name)
        if name not in known:
            self.say(word.where, f"unknown word {name!r}", ", ".join(known), _near(name, known))
        elif name in words:
            self.say(word.where, f"{name} is given twice", "one value")
        else:
            words[name] = word


def resolve(written: Written, catalog: Catalog, model: Model) -> Design:
    """The design that was written.

    Raises:
        InvalidDesign: every finding at once, those of the writing included.
    """
    reading = _Reading(written, catalog, model)
    pools = tuple(reading.pool(role, members) for role, members in written.pools)
    roles = [role for role, _ in written.pools]
    boundary = reading.boundary(pools) if Role.PREFILL in roles else None
    if Role.PREFILL not in roles:
        reading.nothing_to_join()
    if written.findings:
        raise InvalidDesign(dict.fromkeys(written.findings))
    return Design(pools, boundary)


def wide_format(accelerator: Accelerator) -> Dtype:
    """The 16-bit format of an accelerator: bf16 where it has it."""
    has = accelerator.peak_flops
    return Dtype.BF16 if has.get(Dtype.BF16) or not has.get(Dtype.FP16) else Dtype.FP16


def usual_precision(model: Model, accelerator: Accelerator, given: Mapping[str, Dtype]) -> Precision:
    """`given` formats, and for the rest: weights as published where some engine runs them on the accelerator, else 16 bit;
    activations in the weights' format where it is multiplied, else 16 bit; KV in 16 bit."""
    wide = wide_format(accelerator)
    able = {precision.weights for precision in executable(accelerator)}
    native = wide if model.native.is_16bit else model.native
    weights = given.get("w") or (native if native in able else wide)
    multiplied = weights.bytes >= 1 and bool(accelerator.peak_flops.get(weights))
    activations = given.get("a") or (weights if multiplied else wide)
    return Precision(weights, activations, given.get("kv") or wide)


def usual_engine(accelerator: Accelerator, precision: Precision) -> str:
    """The first engine that executes the precision on the accelerator."""
    return next(iter(engines(accelerator, precision)), "vllm")


def usual_form(made: Dtype, used: Dtype, wire: Dtype | None = None) -> Representation:
    """KV on the wire when nothing is said: as it is between equal formats, else narrowed at prefill or widened at decode."""
    if wire is None:
        wire = used if used.bytes < made.bytes else made
    if wire is made is used:
        return Representation(Codec.RAW, wire)
    if wire is made:
        return Representation(Codec.CAST, wire, Side.DECODE)
    return Representation(Codec.QUANTISED if wire.bytes < made.bytes else Codec.CAST, wire, Side.PREFILL)


def usual_placement(link: Link, local: int) -> Placement:
    """Where pools are when nothing is said: a link that ends at the server's wall joins pools on one server."""
    if local:
        return Placement.CONDITIONAL
    return Placement.SAME_NODE if link.same_server else Placement.DISAGGREGATED


class _Reading:
    """Looks words up and notes what it cannot."""

    def __init__(self, written: Written, catalog: Catalog, model: Model) -> None:
        self.written, self.catalog, self.model = written, catalog, model
        self.shared = {name: word for name, word in written.options.items() if name in WORKER_WORDS}

    def attempt(self, word: Word, read: Callable[[str], T]) -> T | None:
        try:
            return read(word.text)
        except InvalidInput as error:
            for finding in error.findings:
                self.written.say(word.where, finding.problem, finding.expected, finding.hint)
        except ValueError as error:
            self.written.say(word.where, str(error))
        return None

    def pool(self, role: Role, members: list[WrittenMember]) -> Pool:
        made = (self.member(member) for member in members)
        return Pool(role, tuple(member for member in made if member is not None))

    def member(self, written: WrittenMember) -> Member | None:
        words = self.shared | written.words
        count = self.whole(written.count, 1)
        accelerator = self.attempt(written.accelerator, self.catalog.accelerator) if written.accelerator.text else None
        formats = {name: self.choice(words[name], Dtype) for name in FORMATS if name in words}
        sizes = {name: self.whole(words[name], 1) for name in SIZES if name in words}
        batch, tokens = self.whole(words.get("batch"), 0), self.whole(words.get("tokens"), 0)
        tier = self.choice(words["tier"], TierKind) if "tier" in words else TierKind.HBM
        usd = self.number(words.get("usd"), "USD per hour")
        nic = self.attempt(words["nic"], parse_bandwidth) if "nic" in words else None
        if nic is not None and nic <= 0:
            self.written.say(words["nic"].where, "a NIC without bandwidth", "a bandwidth such as 50GB/s")
        if accelerator is not None and accelerator.missing:
            lacking = ", ".join(accelerator.missing)
            self.written.say(written.accelerator.where, f"{accelerator.name} lacks {lacking} in the catalog")
        if accelerator is None or self.written.findings:
            return None
        if nic is not None:
            accelerator = replace(accelerator, nic_bandwidth=nic)
        precision = usual_precision(self.model, accelerator, {k: v for k, v in formats.items() if v is not None})
        engine = words["engine"].text if "engine" in words else usual_engine(accelerator, precision)
        worker = Worker(
            self.model,
            accelerator,
            precision,
            Parallelism(**{name: size for name, size in sizes.items() if size}),
            engine,
            batch or 0,
            tokens or 0,
            tier or TierKind.HBM,
        )
        return Member(worker, count or 1, usd or 0.0, words["offer"].text if "offer" in words else "")

    def boundary(self, pools: tuple[Pool, ...]) -> Boundary | None:
        options, where = self.written.options, self.written.where
        if "link" not in options:
            self.written.say(where, "nothing joins prefill and decode", "a link such as link=rdma-400g")
        link = self.attempt(options["link"], self.catalog.link) if "link" in options else None
        placement, ownership, overlap, codec, side, wire = (
            self.choice(options[name], kind) if name in options else None
            for name, kind in (
                ("placement", Placement), ("ownership", Ownership), ("overlap", Overlap), ("codec", Codec),
                ("convert", Side), ("wire", Dtype),
            )
        )  # fmt: skip
        local = self.whole(options.get("local"), 1) or 0
        self.agree(placement, local)
        if link is None or self.written.findings:
            return None
        made, used = (pool.members[0].worker.precision.kv for pool in pools)
        form = usual_form(made, used, wire)
        if codec is not None:
            form = replace(form, codec=codec)
        if side is not None:
            form = replace(form, converts_at=side)
        return Boundary(
            placement or usual_placement(link, local),
            link,
            form,
            ownership or Ownership.PUSH,
            overlap or Overlap.SERIAL,
            local,
        )

    def agree(self, placement: Placement | None, local: int) -> None:
        """`local` and a conditional placement belong together."""
        options = self.written.options
        if placement is Placement.CONDITIONAL and not local and "local" not in options:
            self.written.say(options["placement"].where, "conditional on what?", "local=TOKENS, such as local=512")
        if local and placement not in (None, Placement.CONDITIONAL):
            self.written.say(options["local"].where, f"local prompts in a {placement} design", "conditional")
        if placement is Placement.COLOCATED:
            self.written.say(options["placement"].where, "a colocated design has one pool", 'such as "4xH100:tp2"')

    def nothing_to_join(self) -> None:
        for name, word in self.written.options.items():
            if name in BOUNDARY_WORDS and word.text.casefold() != Placement.COLOCATED:
                self.written.say(
                    word.where, f"a colocated design has no handoff, so no {name}", "two pools, or no such word"
                )

    def choice(self, word: Word, kind: type[StrEnum]) -> Any:
        """The member of an enum that a word names."""
        text, values = word.text.casefold(), [str(value) for value in kind]
        if text in values:
            return kind(text)
        self.written.say(word.where, f"unknown {_NAMES[kind]} {word.text!r}", ", ".join(values), _near(text, values))
        return None

    def whole(self, word: Word | None, least: int) -> int | None:
        """A whole number, 4096 or 4k."""
        value = self.attempt(word, parse_count) if word is not None else None
        if word is None or value is None:
            return None
        if value != int(value) or value < least:
            self.written.say(word.where, f"{word.text} is not a whole number from {least}")
            return None
        return int(value)

    def number(self, word: Word | None, what: str) -> float | None:
        value = self.attempt(word, parse_count) if word is not None else None
        if word is not None and value is not None and not (math.isfinite(value) and value >= 0):
            self.written.say(word.where, f"{word.text} {what}", f"{what} from 0")
        return value


def _near(text: str, known: Sequence[str]) -> str:
    """The nearest names; the whole list is told anyway."""
    hint = did_you_mean(text, known)
    return hint if hint.endswith("?") else ""


_NAMES: dict[type[StrEnum], str] = {
    Dtype: "format",
    TierKind: "memory tier",
    Placement: "placement",
    Ownership: "ownership",
    Overlap: "overlap",
    Codec: "codec",
    Side: "side",
}
