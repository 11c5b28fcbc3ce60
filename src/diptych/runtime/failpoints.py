"""Named places where a test may stop a process or kill it. They cost one comparison unless a directory of them is named.

With DIPTYCH_FAILPOINTS=DIR in the environment, a process that reaches the point `decode.commit` looks for DIR/decode.commit.arm.
If it is there, the process takes it away (one process, once), writes its pid into DIR/decode.commit.hit, and does what the first
word of the file says: `kill` (SIGKILL to itself), `stop` (SIGSTOP to itself) or `wait` (until DIR/decode.commit.go is there).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_FOLDER = os.environ.get("DIPTYCH_FAILPOINTS", "")
_POLL = 0.005


def hit(name: str) -> None:
    """The process is at the point `name`."""
    if _FOLDER:
        _reach(Path(_FOLDER), name)


def _reach(folder: Path, name: str) -> None:
    armed, taken = folder / f"{name}.arm", folder / f"{name}.taken"
    try:
        armed.rename(taken)  # atomic: one process takes it
        deed = taken.read_text(encoding="utf-8").split()[:1]
    except OSError:
        return
    (folder / f"{name}.hit").write_text(str(os.getpid()), encoding="utf-8")
    if deed == ["kill"]:
        os.kill(os.getpid(), signal.SIGKILL)
    elif deed == ["stop"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        while not (folder / f"{name}.go").exists():
            time.sleep(_POLL)
