"""`diptych serve` as a process of its own: what it says, and questions to what it serves."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

PATIENCE = 40


class Command:
    """`diptych serve`, what it has said, and the gateway's address once it serves."""

    def __init__(self, process: asyncio.subprocess.Process, patience: float = PATIENCE) -> None:
        self.process, self.patience = process, patience
        self.text = ""
        self.code: int | None = None

    async def wait(self, word: str = "  canary ") -> bool:
        """Until it says a word; False when it ends before."""
        async with asyncio.timeout(self.patience):
            while word not in self.text:
                piece = await self.process.stdout.read(4096)
                if not piece:
                    self.code = await self.process.wait()
                    return False
                self.text += piece.decode()
        return True

    @property
    def url(self) -> str:
        return re.search(r"served at (\S+)/v1", self.text)[1]

    @property
    def token_file(self) -> str:
        return re.search(r"its token is in (\S+)\)", self.text)[1]

    async def told(self, path: str, headers: dict[str, str] | None = None):
        async with aiohttp.ClientSession() as session, session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def data(self) -> dict:
        """What the live page shows."""
        headers = {"authorization": f"Bearer {Path(self.token_file).read_text().strip()}"}
        status, text = await self.told("/ui/data", headers)
        assert status == 200, text
        return json.loads(text)

    async def ask(self, **more) -> tuple[int, dict]:
        body = {"model": "m", "prompt": "hello", "max_tokens": 4, **more}
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}/v1/completions", json=body) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def command(*words: str, patience: float = PATIENCE):
    """The command with these words; ended as Ctrl-C would."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "diptych", "serve", "--port", "0", *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    found = Command(process, patience)
    try:
        yield found
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(patience):
                found.text += (await process.stdout.read()).decode()
                found.code = await process.wait()


async def look(verb: str, serving: Command, *more: str) -> tuple[int, str]:
    """`diptych top` or `diptych status` at what serves."""
    once = ("--once",) if verb == "top" else ()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "diptych", verb, "--url", serving.url, "--token-file", serving.token_file, *once, *more,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={"COLUMNS": "200", "PATH": "/usr/bin"},
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE):
        text, _ = await process.communicate()
    return process.returncode, text.decode()
