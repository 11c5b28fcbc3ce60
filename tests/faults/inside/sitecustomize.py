"""Faults within the processes of a fleet. Python loads this by its name at start; it does what files in DIPTYCH_FAULTS say.

| file     | says                                                                       |
|----------|----------------------------------------------------------------------------|
| `shift`  | seconds by which the wall clock is wrong                                    |
| `writev` | the number of the error that writing a block to disk ends with              |
| `torn`   | of how many bytes of a block the disk takes and says that it took all       |
| `oom`    | tokens, one a line: a prompt that holds all of them finds no memory         |
"""

import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["DIPTYCH_FAULTS"])


def told(name):
    try:
        return (FOLDER / name).read_text(encoding="utf-8").split()
    except OSError:
        return []


def struck():
    """So that a test can tell that its fault was met."""
    (FOLDER / "struck").touch()


def shifted(clock, unit):
    return lambda: clock() + unit * (int(told("shift")[0]) if told("shift") else 0)


def writev(handle, parts, real=os.writev):
    if number := told("writev"):
        struck()
        real(handle, [bytes(parts[0])[:10]])
        raise OSError(int(number[0]), os.strerror(int(number[0])))
    if size := told("torn"):
        struck()
        real(handle, [b"".join(map(bytes, parts))[: int(size[0])]])
        return sum(len(bytes(part)) for part in parts)
    return real(handle, parts)


def poor(engine):
    """The engine's class, whose prompts with the tokens of `oom` find no memory."""

    class Poor(engine):
        def prefill(self, chunks, on_layer=None):
            poison = set(map(int, told("oom")))
            if poison and any(poison <= set(chunk.tokens) for chunk in chunks):
                struck()
                raise MemoryError
            return super().prefill(chunks, on_layer)

    return Poor


time.time, time.time_ns = shifted(time.time, 1), shifted(time.time_ns, 10**9)
os.writev = writev
if "diptych.runtime.worker" in sys.orig_argv:
    from diptych.runtime.worker import config

    config.ToyEngine = poor(config.ToyEngine)
