"""Designs as a line of text, read and written.

    3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, push

```
design   pool [-> pool] {, option}        one pool is colocated, two are prefill -> decode
pool     member {+ member}                several members make a mixed pool
member   [COUNT x] ACCELERATOR {: word}   3xH100:tp2:w=fp8
option   word | boundary word             a word here holds for every worker that has none of its own
word     tp2 pp2 ep8 dp8 | fp8 (weights, and activations where it is multiplied) | w=fp8 a=bf16 kv=fp8 | engine=vllm
         batch=64 | tokens=8192 | tier=hbm | nic=12.5GB/s | usd=12.30 (a worker's hour) | offer=NAME
boundary link=NAME | push pull | serial layerwise | disaggregated same-node conditional | local=512 | wire=fp8
         codec=raw,cast,quantised | convert=prefill,transfer,decode
```

A name with a sign of this language in it is put in double quotes, a quotation mark in it doubled.
`parse_design(format_design(d)) == d`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Model
from diptych.design.axes import Role, Worker
from diptych.design.boundary import Boundary, Overlap, Ownership, Placement
from diptych.design.design import Design, Member
from diptych.design.written import (
    BOUNDARY_WORDS,
    WORKER_WORDS,
    Word,
    Words,
    Written,
    WrittenMember,
    resolve,
    usual_engine,
    usual_form,
    usual_placement,
)
from diptych.units import GB, parse_bandwidth

EXAMPLE = '"3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, push"'
_ROLES = {1: (Role.COLOCATED,), 2: (Role.PREFILL, Role.DECODE)}
_BARE = {
    **{str(value): "ownership" for value in Ownership},
    **{str(value): "overlap" for value in Overlap},
    **{str(value): "placement" for value in Placement},
}
_SHAPE = re.compile(r"^(tp|pp|ep|dp)(\d+)$", re.IGNORECASE)
_COUNTED = re.compile(r"^(\d+)\s*[x×]\s*(?=\S)", re.IGNORECASE)
_SIGNS = re.compile(r'[,:+"=]|->|→|^\s|\s$|^\d+\s*[x×]|^$')


def parse_design(text: str, catalog: Catalog, model: Model, where: str = "--design") -> Design:
    """The design that `text` describes, of `model`.

    Raises:
        InvalidDesign: every mistake in the text at once, each with its column.
    """
    return resolve(read_text(text, where), catalog, model)


def read_text(text: str, where: str = "--design") -> Written:
    """The words of a text, none looked up yet."""
    reader = _Text(text, where)
    reader.read()
    return reader.written


class _Text:
    """Cuts a text into words, each with its column."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.written = Written(where)

    def read(self) -> None:
        written = self.written
        if self.text.count('"') % 2:
            written.say(self.at(self.text.rindex('"')), "a quotation mark without its partner")
            return
        fleet, *options = self.split(0, len(self.text), r",")
        pools = list(self.split(*fleet, r"->|→"))
        if len(pools) > 2:
            written.say(self.at(pools[2][0]), "a third pool", "one colocated pool, or prefill -> decode")
        for role, span in zip(_ROLES[min(len(pools), 2)], pools, strict=False):
            written.pools.append((role, [self.member(*part) for part in self.split(*span, r"\+")]))
        for span in options:
            self.word(*span, written.options, (*WORKER_WORDS, *BOUNDARY_WORDS))

    def member(self, start: int, end: int) -> WrittenMember:
        head, *parts = self.split(start, end, r":")
        text = self.text[head[0] : head[1]]
        counted = _COUNTED.match(text)
        name = Word(
            _unquoted(text[counted.end() :] if counted else text), self.at(head[0] + (counted.end() if counted else 0))
        )
        if not name.text:
            self.written.say(self.at(head[0]), "no accelerator here", f"a design such as {EXAMPLE}")
        member = WrittenMember(Word(counted[1] if counted else "1", self.at(head[0])), name)
        for part in parts:
            self.word(*part, member.words, WORKER_WORDS)
        return member

    def word(self, start: int, end: int, words: Words, known: tuple[str, ...]) -> None:
        text, where = self.text[start:end], self.at(start)
        name, sign, value = (part.strip() for part in text.partition("="))
        shape = _SHAPE.match(text)
        if not text:
            self.written.say(where, "nothing between two signs", ", ".join(known))
        elif sign:
            self.written.put(words, name.casefold(), Word(_unquoted(value), where), known)
        elif shape:
            self.written.put(words, shape[1].casefold(), Word(shape[2], where), known)
        elif text.casefold() in tuple(Dtype):
            self.written.put(words, "w", Word(text, where), known)
        else:
            self.written.put(words, _BARE.get(text.casefold(), text), Word(text, where), known)

    def split(self, start: int, end: int, signs: str) -> Iterator[tuple[int, int]]:
        """The spans between `signs` outside quotation marks, without the blanks around them."""
        cut = start
        for match in re.finditer(rf'"(?:[^"]|"")*"|({signs})', self.text[start:end]):
            if match[1]:
                yield self.trimmed(cut, start + match.start())
                cut = start + match.end()
        yield self.trimmed(cut, end)

    def trimmed(self, start: int, end: int) -> tuple[int, int]:
        part = self.text[start:end]
        start += len(part) - len(part.lstrip())
        return start, start + len(part.strip())

    def at(self, index: int) -> str:
        return f"{self.where}:{index + 1}"


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1].replace('""', '"') if len(text) > 1 and text[0] == text[-1] == '"' else text


def format_design(design: Design, catalog: Catalog) -> str:
    """The line that `parse_design` reads back into `design`, whose accelerators and links are the catalog's."""
    members = [(member, _words(member, catalog)) for pool in design.pools for member in pool.members]
    shared = _shared([words for _, words in members])
    lines = iter(members)
    pools = [" + ".join(_member(*next(lines), shared) for _ in pool.members) for pool in design.pools]
    options = [*_spelled(shared), *(_boundary(design.boundary, design) if design.boundary else ())]
    return ", ".join([" -> ".join(pools), *options])


def _words(member: Member, catalog: Catalog) -> dict[str, str]:
    """Everything about a member's workers that an accelerator's name does not say."""
    worker = member.worker
    words = {name: str(size) for name, size in _sizes(worker) if size > 1}
    precision = worker.precision
    words |= {"w": str(precision.weights), "a": str(precision.activations), "kv": str(precision.kv)}
    if worker.engine != usual_engine(worker.accelerator, precision):
        words["engine"] = _quoted(worker.engine)
    if worker.max_batch:
        words["batch"] = str(worker.max_batch)
    if worker.max_batched_tokens:
        words["tokens"] = str(worker.max_batched_tokens)
    if worker.residency is not TierKind.HBM:
        words["tier"] = str(worker.residency)
    if worker.accelerator.nic_bandwidth != catalog.accelerator(worker.accelerator.name).nic_bandwidth:
        words["nic"] = _bandwidth(worker.accelerator.nic_bandwidth)
    if member.usd_per_hour:
        words["usd"] = repr(member.usd_per_hour)
    if member.offer:
        words["offer"] = _quoted(member.offer)
    return words


def _sizes(worker: Worker) -> tuple[tuple[str, int], ...]:
    shape = worker.parallelism
    return (("tp", shape.tp), ("pp", shape.pp), ("ep", shape.ep), ("dp", shape.dp))


def _shared(members: list[dict[str, str]]) -> dict[str, str]:
    """Words that all members say alike; sizes and prices stay with their workers."""
    first, *others = members
    able = ("w", "a", "kv", "engine", "batch", "tokens", "tier")
    return {name: first[name] for name in able if name in first and all(o.get(name) == first[name] for o in others)}


def _member(member: Member, words: dict[str, str], shared: dict[str, str]) -> str:
    own = {name: value for name, value in words.items() if name not in shared}
    return ":".join([f"{member.count}x{_quoted(member.worker.accelerator.name)}", *_spelled(own)])


def _spelled(words: dict[str, str]) -> Iterator[str]:
    for name, value in words.items():
        yield f"{name}{value}" if name in ("tp", "pp", "ep", "dp") else f"{name}={value}"


def _boundary(boundary: Boundary, design: Design) -> Iterator[str]:
    yield f"link={_quoted(boundary.link.name)}"
    yield str(boundary.ownership)
    if boundary.overlap is not Overlap.SERIAL:
        yield str(boundary.overlap)
    if boundary.placement is not usual_placement(boundary.link, boundary.local_below):
        yield str(boundary.placement)
    if boundary.local_below:
        yield f"local={boundary.local_below}"
    made, used = (pool.members[0].worker.precision.kv for pool in design.pools)
    form = boundary.representation
    if form == usual_form(made, used):
        return
    yield f"wire={form.wire}"
    usual = usual_form(made, used, form.wire)
    if form.codec is not usual.codec:
        yield f"codec={form.codec}"
    if form.converts_at is not usual.converts_at and form.converts_at is not None:
        yield f"convert={form.converts_at}"


def _bandwidth(value: float) -> str:
    """`12.5GB/s` where that says it exactly, bytes otherwise."""
    short = f"{value / GB:g}GB/s"
    return short if parse_bandwidth(short) == value else f"{value!r}B/s"


def _quoted(name: str) -> str:
    quotes = name.replace('"', '""')
    return f'"{quotes}"' if _SIGNS.search(name) else name
