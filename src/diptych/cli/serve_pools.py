"""The model that is served, and the pools of `diptych serve`: as they are written, and as they fit this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from diptych.cli.plan_inputs import Reader
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.runtime.engines.torch.shape import Shape, read_shape
from diptych.runtime.launch.fleet import Pool
from diptych.runtime.launch.machine import Machine
from diptych.runtime.model_files import NAME as DEMO_NAME
from diptych.runtime.model_files import demo_model
from diptych.runtime.worker.config import Torch, Toy

ROLES = ("prefill", "decode", "colocated")
WEIGHTS = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0}
"""Bytes of a weight."""
KV = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of an element; int8 has a scale of four bytes per token and head besides."""
TOY_KV = ("int8", "int8-token", "fp32", "bf16", "fp16", "e4m3fn")
BLOCK_TOKENS = 16
MOST_WORKERS = 64
DEFAULT_POOLS = {"prefill": "1 x cpu:bf16", "decode": "1 x cpu:int8"}
TOY_POOLS = {"prefill": "1 x cpu", "decode": "1 x cpu"}
_POOL = re.compile(r"(?:(\d{1,4})\s*[x×]\s*)?(cpu|cuda(?::\d{1,2})?)(?::([A-Za-z0-9_-]+))?", re.ASCII)
EXAMPLE = '"2 x cpu:int8, kv=int8"'


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is served: its name, and its checkpoint unless it is the toy. A demo that is not fetched has no shape."""

    name: str
    place: Path | None = None
    shape: Shape | None = None

    @property
    def is_toy(self) -> bool:
        return self.name == "toy" and self.place is None


@dataclass(frozen=True, slots=True)
class PoolText:
    """A pool as it was written, not yet sized for a machine. `kv` and numbers are '' and 0 where nothing was said."""

    role: str
    count: int
    device: str
    weights: str = ""
    kv: str = ""
    threads: int = 0
    blocks: int = 0
    usd: float | None = None


def subject_of(named: str, say: Callable[[str], None]) -> Subject:
    if named == "toy":
        return Subject("toy")
    if named == "demo":
        place = demo_model(say=say)
        return Subject(DEMO_NAME, place, read_shape(place))
    place = Path(named).expanduser().absolute()
    if place.suffix == ".gguf" and place.is_file():
        return Subject(place.stem[:128], place)
    if not place.is_dir():
        expected = "a folder with config.json and *.safetensors, a .gguf file, demo or toy"
        raise InvalidInput(Finding("--model", f"there is no folder {named[:200]}", expected))
    return Subject(place.name[:128] or "model", place, read_shape(place))


def read_pools(reader: Reader, designed: Mapping[str, str], subject: Subject) -> list[PoolText]:
    given = {role: text for role in ROLES if (text := reader.given.get(role)) is not None}
    wanted = {**designed, **given} or (TOY_POOLS if subject.is_toy else DEFAULT_POOLS)
    found = [
        each
        for role, text in wanted.items()
        if (each := reader.attempt(f"--{role}", parse_pool, role, text, subject.is_toy)) is not None
    ]
    if set(wanted) <= {"prefill"}:
        reader.findings.append(Finding("--decode", "is missing: nothing would answer", EXAMPLE))
    if set(wanted) == {"decode"}:
        reader.findings.append(Finding("--prefill", "is missing", f"{EXAMPLE}, or --colocated instead of --decode"))
    if sum(each.count for each in found) > MOST_WORKERS:
        reader.findings.append(Finding("--decode", "too many workers", f"at most {MOST_WORKERS} on one machine"))
    return found


def parse_pool(role: str, text: str, toy: bool) -> PoolText:
    """`2 x cpu:int8, kv=int8, threads=1, blocks=512, usd=0.4`. Raises InvalidInput with every mistake in it."""
    where = f"--{role}"
    head, *rest = (part.strip() for part in text.split(","))
    found = _POOL.fullmatch(head)
    if found is None:
        raise InvalidInput(Finding(where, f"{head[:80]!r} is no pool", f"COUNT x DEVICE:WEIGHTS, such as {EXAMPLE}"))
    findings: list[Finding] = []
    count, device, weights = int(found[1] or 1), found[2], found[3] or ""
    if not 1 <= count <= MOST_WORKERS:
        findings.append(Finding(where, f"{count} workers", f"1 to {MOST_WORKERS}"))
    findings += _weights(where, weights, device, toy)
    pool = PoolText(role, count, device, weights)
    for part in rest:
        pool = _with(pool, part, where, toy, findings)
    if findings:
        raise InvalidInput(findings)
    return pool


def _weights(where: str, weights: str, device: str, toy: bool) -> list[Finding]:
    if toy:
        wrong = [(weights, "weights"), (device if device != "cpu" else "", "device")]
        return [Finding(where, f"the toy has no {what} {said}", '"1 x cpu, kv=int8"') for said, what in wrong if said]
    if weights and weights not in WEIGHTS:
        return [
            Finding(where, f"weights {weights[:40]!r}", ", ".join(WEIGHTS), did_you_mean(weights[:40], list(WEIGHTS)))
        ]
    return []


def _with(pool: PoolText, part: str, where: str, toy: bool, findings: list[Finding]) -> PoolText:
    """The pool with one more `name=value`; what is wrong with it is noted."""
    name, _, value = (each.strip() for each in part.partition("="))
    known = list(TOY_KV if toy else KV)
    if name == "kv" and value in known:
        return replace(pool, kv=value)
    if name == "kv":
        findings.append(Finding(where, f"kv={value[:40]}", ", ".join(known), did_you_mean(value[:40], known)))
        return pool
    if name in ("threads", "blocks") and value.isascii() and value.isdecimal() and 1 <= int(value) <= 1 << 24:
        return replace(pool, threads=int(value)) if name == "threads" else replace(pool, blocks=int(value))
    if name == "usd":
        try:
            usd = float(value)
            if 0 <= usd < 1e6:
                return replace(pool, usd=usd)
        except ValueError:
            pass
    names = ("kv", "threads", "blocks", "usd")
    expected = "kv=FORMAT, threads=N, blocks=N or usd=PRICE_OF_AN_HOUR"
    hint = "" if name in names else did_you_mean(name[:40], names)
    findings.append(Finding(where, f"{part[:60]!r}", expected, hint))
    return pool


def sized(text: PoolText, subject: Subject, machine: Machine, workers: int) -> Pool:
    """The pool for this machine: threads and blocks where nothing was said."""
    threads = text.threads or machine.threads(workers)
    if subject.is_toy:
        engine: Toy | Torch = Toy(blocks=text.blocks or 4096, kv=text.kv or "int8")
        return Pool(text.role, text.count, engine, threads, text.usd)
    weights = text.weights or "fp32"
    kv = text.kv or ("fp32" if weights == "fp32" else "bf16")
    blocks = text.blocks or machine.blocks(_block_bytes(subject.shape, kv), workers)
    engine = Torch(
        path=str(subject.place), weights=weights, kv=kv, blocks=blocks, block_tokens=BLOCK_TOKENS,
        device=text.device, name=subject.name, threads=threads,
    )  # fmt: skip
    return Pool(text.role, text.count, engine, threads, text.usd)


def _block_bytes(shape: Shape | None, kv: str) -> int:
    """Bytes of one block over all layers; a size of 7B models where the shape isn't known."""
    if shape is None:
        return 2 << 20
    element = KV[kv] + (4 / shape.head_dim if kv == "int8" else 0)
    return int(2 * shape.layers * shape.kv_heads * shape.head_dim * BLOCK_TOKENS * element)
