"""A program's process: started, asked whether it serves, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from diptych.runtime.launch.program import Program

POLL = 0.05
LONGEST_LOG = 16 << 20
TAIL_LINES, TAIL_BYTES = 12, 8192


class Running:
    """One process. Its log goes on where that of its predecessor ended."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process, log: Path) -> None:
        self.program, self.process, self.log = program, process, log
        self.ended = asyncio.get_running_loop().create_task(process.wait())

    @classmethod
    async def start(cls, program: Program, logs: Path, spare: bool = False) -> Running:
        """Start it, in a session of its own: a terminal's Ctrl-C reaches the supervisor alone. A spare waits to be called."""
        if not spare:
            program.clear()
        log = logs / f"{program.name}.log"
        with suppress(OSError):
            if log.stat().st_size > LONGEST_LOG:
                log.replace(log.with_suffix(".old.log"))
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "diptych.runtime.launch.child", str(os.getpid()), *(("-",) if spare else ())),
                *(program.module, *program.arguments),
                stdin=asyncio.subprocess.PIPE if spare else asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=program.environment(),
                start_new_session=True,
            )
        return cls(program, process, log)

    def call(self) -> bool:
        """Make a spare the process; False when it has ended meanwhile."""
        stdin = self.process.stdin
        if self.ended.done() or stdin is None or stdin.is_closing():
            return False
        self.program.clear()
        stdin.write(b"\n")
        return True

    @property
    def code(self) -> int | None:
        """How it ended, None while it runs; negative for a signal."""
        return self.process.returncode

    async def serving(self) -> bool:
        """Wait until it serves; False when it has ended instead."""
        while not self.ended.done():
            if await asyncio.to_thread(self.program.serves):
                return not self.ended.done()
            await asyncio.wait((self.ended,), timeout=POLL)
        return False

    async def stop(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL when it has not ended after so long."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        await asyncio.wait((self.ended,), timeout=seconds)
        self.signal(signal.SIGKILL)
        await self.ended
        self.program.clear()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to a process that has not ended."""
        if not self.ended.done():
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def tail(self) -> list[str]:
        """The last lines of its log."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return []


def how(code: int | None) -> str:
    """An exit in words.

    >>> how(-9), how(2)
    ('killed by SIGKILL', 'ended with status 2')
    """
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
