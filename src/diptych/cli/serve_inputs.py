"""From the words of `diptych serve` to a fleet: every mistake found before a process starts."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from diptych.cli.plan_inputs import Reader
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.metrics.slo import SLO
from diptych.runtime.engines.torch.shape import Shape, read_shape
from diptych.runtime.gateway.settings import Endpoint, Objectives, OnLoss, Settings
from diptych.runtime.launch.fleet import Fleet, Pool
from diptych.runtime.launch.machine import Machine
from diptych.runtime.model_files import NAME as DEMO_NAME
from diptych.runtime.model_files import demo_model
from diptych.runtime.peer.address import Address
from diptych.runtime.worker.config import TierConfig, Torch, Toy
from diptych.units import parse_bytes, parse_seconds

ROLES = ("prefill", "decode", "colocated")
WEIGHTS = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0}
"""Bytes of a weight."""
KV = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of an element; int8 has a scale of four bytes per token and head besides."""
TOY_KV = ("int8", "int8-token", "fp32", "bf16", "fp16", "e4m3fn")
BLOCK_TOKENS = 16
MOST_WORKERS = 64
LEAST_TOKEN = 16
MOST_TOKENS = 1 << 22
DEFAULT_POOLS = {"prefill": "1 x cpu:bf16", "decode": "1 x cpu:int8"}
TOY_POOLS = {"prefill": "1 x cpu", "decode": "1 x cpu"}
_POOL = re.compile(r"(?:(\d{1,4})\s*[x×]\s*)?(cpu|cuda(?::\d{1,2})?)(?::([A-Za-z0-9_-]+))?", re.ASCII)
EXAMPLE = '"2 x cpu:int8, kv=int8"'
LOSSES = {"fail": OnLoss.FAIL, "other": OnLoss.OTHER, "recompute": OnLoss.RECOMPUTE, "colocate": OnLoss.COLOCATE}


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


@dataclass(frozen=True, slots=True)
class Setup:
    """A fleet without mistakes, and what a person should know of it."""

    fleet: Fleet
    logs: Path | None
    notes: tuple[str, ...] = ()


def read_setup(
    given: Mapping[str, Any], say: Callable[[str], None], pools: Mapping[str, str], notes: Sequence[str] = ()
) -> Setup:
    """Check every word; `pools` are those of the design that is served, which flags override.

    Raises:
        InvalidInput: all findings at once.
    """
    reader = Reader(given, say, None)
    subject = reader.attempt("--model", _subject, reader.given.get("model") or "demo", say) or Subject("unknown")
    texts = _pools(reader, pools, subject)
    ownership = reader.value("ownership", _one_of("push", "pull")) or "push"
    tiers, store = reader.value("residency", parse_residency) or ((), 0)
    settings = _settings(reader, subject, ownership)
    logs = Path(given["logs"]).expanduser().absolute() if given.get("logs") else None
    if logs is not None and logs.exists() and not logs.is_dir():
        reader.findings.append(Finding("--logs", f"{logs} is no folder", "a folder, made if it is not there"))
    if reader.findings:
        raise InvalidInput(dict.fromkeys(reader.findings))
    assert settings is not None
    machine = Machine.here()
    workers = sum(each.count for each in texts)
    fleet = Fleet(
        tuple(sized(each, subject, machine, workers) for each in texts), settings, tiers, store,
        environment={"DIPTYCH_LOG": "json"} if given.get("log_json") else {},
    )  # fmt: skip
    return Setup(fleet, logs, (*notes, *_crowded(machine, workers)))


def _crowded(machine: Machine, workers: int) -> list[str]:
    few = f"{machine.cores} core{'s' if machine.cores > 1 else ''}"
    return [f"{workers} workers share {few}: they slow each other down"] if workers > machine.cores else []


# --- the model ------------------------------------------------------------------------------------------------------------


def _subject(named: str, say: Callable[[str], None]) -> Subject:
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


# --- pools ----------------------------------------------------------------------------------------------------------------


def _pools(reader: Reader, designed: Mapping[str, str], subject: Subject) -> list[PoolText]:
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


# --- residency and policy -------------------------------------------------------------------------------------------------


def parse_residency(text: str) -> tuple[tuple[TierConfig, ...], int]:
    """Tiers, nearest first, and the bytes of a store of the fleet's own: `dram:2GiB, nvme:/var/kv:20GiB, kvstore:1GiB`.

    `remote:unix:/run/kv.sock` is a `diptych kvstore` that runs already. Raises InvalidInput with every mistake.
    """
    findings: list[Finding] = []
    tiers: list[TierConfig] = []
    store = 0
    for part in (each.strip() for each in text.split(",")):
        kind, _, rest = part.partition(":")
        try:
            if kind == "dram":
                tiers.append(TierConfig("dram", _size(rest)))
            elif kind == "nvme":
                folder, _, size = rest.rpartition(":")
                tiers.append(TierConfig("nvme", _size(size), _folder(folder)))
            elif kind == "remote":
                tiers.append(TierConfig("remote", 1 << 50, str(Address.of(rest))))
            elif kind == "kvstore":
                store = _size(rest)
            else:
                raise ValueError(f"{part[:60]!r} is no tier")
        except InvalidInput as error:
            findings += [Finding("--residency", f"{part[:60]!r}: {f.problem}", f.expected) for f in error.findings]
        except ValueError as error:
            expected = "dram:SIZE, nvme:/FOLDER:SIZE, remote:ADDRESS or kvstore:SIZE"
            findings.append(Finding("--residency", str(error), expected))
    if store and any(tier.kind == "remote" for tier in tiers):
        findings.append(Finding("--residency", "both remote and kvstore", "one store"))
    if findings:
        raise InvalidInput(findings)
    return tuple(tiers), store


def _size(text: str) -> int:
    size = int(parse_bytes(text))
    if size < 1 << 20:
        raise ValueError(f"{text} is less than a MiB")
    return size


def _folder(text: str) -> str:
    path = Path(text).expanduser()
    if not text or not path.is_absolute():
        raise ValueError(f"the folder {text[:80]!r} is no absolute path")
    return str(path)


def parse_policy(text: str) -> dict[str, OnLoss]:
    """What becomes of a request whose worker is lost: `prefill=other, decode=recompute`. Raises InvalidInput."""
    found: dict[str, OnLoss] = {}
    findings = []
    for part in (each.strip() for each in text.split(",")):
        role, _, said = (each.strip() for each in part.partition("="))
        if role in ("prefill", "decode") and said in LOSSES and role not in found:
            found[role] = LOSSES[said]
        else:
            findings.append(Finding("--policy", f"{part[:60]!r}", f"prefill=… or decode=…, one of {', '.join(LOSSES)}"))
    if findings:
        raise InvalidInput(findings)
    return found


def objectives(text: str) -> Objectives:
    """The limits that admission keeps: the tightest on TTFT and on TPOT."""
    slo = SLO.parse(text)
    limits = {name: min((each.limit for each in slo.of(name)), default=None) for name in ("ttft", "tpot")}
    return Objectives(limits["ttft"], limits["tpot"])


# --- the gateway ----------------------------------------------------------------------------------------------------------


def _settings(reader: Reader, subject: Subject, ownership: str) -> Settings | None:
    """The gateway of our own workers; None after noting what is wrong."""
    policy = reader.value("policy", parse_policy) or {}
    slo = reader.value("slo", objectives) or Objectives()
    lease = reader.value("lease", _lease) or 30.0
    short = int(reader.given.get("short_prompt") or 0)
    if not 0 <= short <= MOST_TOKENS:
        reader.findings.append(Finding("--short-prompt", f"is {short}", "a number of tokens, 0 for none"))
    settings = listening(reader, subject, _tokenizer(reader, subject))
    if settings is None:
        return None
    return msgspec.structs.replace(
        settings, ownership=ownership, short_prompt=short, lease_seconds=lease, objectives=slo,
        prefill_loss=policy.get("prefill", OnLoss.COLOCATE), decode_loss=policy.get("decode", OnLoss.COLOCATE),
    )  # fmt: skip


def listening(reader: Reader, subject: Subject, tokenizer: str) -> Settings | None:
    """Where to listen and with what secrets; None after noting what is wrong."""
    given = reader.given
    token = reader.value("token_file", read_token) or ""
    files = {name: _file(reader, name) for name in ("tls_cert", "tls_key")}
    host, port = given.get("host") or "127.0.0.1", given.get("port")
    if port is None or not 0 <= port <= 65535:
        reader.findings.append(Finding("--port", f"is {port}", "0 to 65535; 0 for any that is free"))
        port = 0
    settings = Settings(
        model=subject.name, tokenizer=tokenizer, workers=(Endpoint("none", "decode", "unix:/none"),), host=host,
        port=port, tls_certificate=files["tls_cert"], tls_key=files["tls_key"], api_key=token,
    )  # fmt: skip
    reader.findings += _unsafe(settings, bool(given.get("token_file")))
    return None if reader.findings else _with_port(reader, settings)


def _unsafe(settings: Settings, has_token: bool) -> list[Finding]:
    found = []
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        found.append(Finding("--tls-cert", "one of --tls-cert and --tls-key is missing", "both, or none"))
    if settings.is_local:
        return found
    where = f"{settings.host} can be reached from other machines"
    if not has_token:
        found.append(Finding("--token-file", f"is missing, and {where}", "a file with the key that clients must send"))
    if not (settings.tls_certificate or settings.tls_key):
        found.append(Finding("--tls-cert", f"is missing, and {where}", "a certificate, and --tls-key"))
    return found


def _with_port(reader: Reader, settings: Settings) -> Settings:
    """The settings with a port that is free now, so that a gateway that is restarted is found again."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(family) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trying.bind((settings.host, settings.port))
            port = int(trying.getsockname()[1])
    except OSError as error:
        where = f"cannot listen at {settings.host}:{settings.port}: {error.strerror or error}"
        reader.findings.append(Finding("--port", where, "another port, or 0 for any that is free"))
        return settings
    return msgspec.structs.replace(settings, port=port)


def _tokenizer(reader: Reader, subject: Subject) -> str:
    if subject.place is None:
        return "toy"
    folder = subject.place if subject.place.is_dir() else subject.place.parent
    if not (folder / "tokenizer.json").is_file():
        reader.findings.append(Finding("--model", f"there is no tokenizer.json in {folder}", "the checkpoint's own"))
    return str(folder)


def read_token(name: str) -> str:
    """The key in a file that only its owner can read. It is never shown. Raises InvalidInput."""
    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8").strip()
        is_open = path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise InvalidInput(Finding("--token-file", f"{name} cannot be read: {why}")) from None
    if is_open:
        raise InvalidInput(Finding("--token-file", f"{name} can be read by others", f"chmod 600 {name}"))
    if not LEAST_TOKEN <= len(text) <= 256 or not text.isascii() or any(letter.isspace() for letter in text):
        raise InvalidInput(
            Finding("--token-file", f"no usable key in {name}", f"{LEAST_TOKEN} to 256 characters without spaces")
        )
    return text


def _file(reader: Reader, name: str) -> str:
    text = reader.given.get(name)
    if text is None:
        return ""
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        reader.findings.append(Finding("--" + name.replace("_", "-"), f"there is no file {text}", "a PEM file"))
    return str(path)


def _lease(text: str) -> float:
    seconds = parse_seconds(text)
    if not 0.5 <= seconds <= 3600:
        raise ValueError(f"{text} is no lease; 0.5 s to 1 h")
    return seconds


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"is {text[:40]!r}; expected {' or '.join(known)}")
        return text

    return read
