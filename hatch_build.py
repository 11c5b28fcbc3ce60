"""Builds wheels: pure Python, or with `DIPTYCH_COMPILED=1` the simulator's hot modules through mypyc beside their sources.

The same files and the same results, about twice as fast (skipping against stepping is tested on both; the laws watch a clock that
only pure Python can replace). It needs a C compiler, and mypy with the package's dependencies in the building environment:
`make compiled`, or there `pip install --no-build-isolation .`. A module whose binary does not fit the interpreter is imported
from its source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOT = (
    "serving/blocks", "serving/batching", "serving/effects", "serving/handoff", "serving/request", "serving/router",
    "simulator/clients", "simulator/clock", "simulator/cluster", "simulator/corruption", "simulator/crossing", "simulator/gaps",
    "simulator/gateway", "simulator/halves", "simulator/network", "simulator/pipeline", "simulator/recorder", "simulator/request",
    "simulator/tables", "simulator/tiering", "simulator/wire", "simulator/worker",
)  # fmt: skip
"""Compiled together: classes of one inherit from, or are called by, those of another."""


class CompiledHook(BuildHookInterface[Any]):
    """Adds what mypyc makes of the hot modules."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless nobody asked for it or the wheel is only a link to the sources."""
        if version != "standard" or os.environ.get("DIPTYCH_COMPILED", "0") in ("", "0"):
            return
        self.folder = tempfile.TemporaryDirectory(prefix="diptych-compiled-")
        source = Path(self.folder.name) / "src"
        for built in compile_hot(Path(self.root) / "src", source):
            build_data["force_include"][str(built)] = str(built.relative_to(source))
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Drop the copy that was compiled."""
        if hasattr(self, "folder"):
            self.folder.cleanup()


def compile_hot(source: Path, target: Path) -> list[Path]:
    """Copy a source tree and compile its hot modules there; the binaries. Raises `SystemExit` with what the compiler said."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    command = [sys.executable, "-m", "mypyc", *(f"diptych/{name}.py" for name in HOT)]
    done = subprocess.run(command, cwd=target, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603 ours
    if done.returncode:
        raise SystemExit(
            f"{done.stdout[-4000:]}\ndiptych: not compiled; without DIPTYCH_COMPILED it is built in pure Python"
        )
    shutil.rmtree(target / "build")
    return sorted(path for path in target.rglob("*") if path.suffix in (".so", ".pyd"))
