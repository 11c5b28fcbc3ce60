"""`python -m diptych.runtime.launch.child PARENT MODULE ARGUMENT...`: how every process of a fleet begins.

It ends when the supervisor does, logs one way, and then is the module. Nothing secret is said on this command line.
A spare (`-` before the module) loads what the module needs and waits: a line on its input makes it the module, an end ends it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import logging
import os
import runpy
import signal
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said)


def follow(parent: int) -> bool:
    """End when process `parent` does; False when it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def log_as_told() -> None:
    """A handler before the module's own, so that its `basicConfig` finds one."""
    handler = logging.StreamHandler(sys.stderr)
    if os.environ.get("DIPTYCH_LOG") == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _called(module: str) -> bool:
    """Wait as a spare for the line that says it is needed."""
    found = importlib.util.find_spec(module)
    is_package = found is not None and found.submodule_search_locations is not None
    loaded = f"{module}.__main__" if is_package else module
    importlib.import_module(loaded)
    del sys.modules[loaded]  # it is run anew, what it needs is there
    return bool(sys.stdin.readline())


def main(arguments: list[str]) -> int:
    """Become the module."""
    parent, module, *rest = arguments
    if not follow(int(parent)):
        return 1
    log_as_told()
    if module == "-":
        module, *rest = rest
        if not _called(module):
            return 0
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
