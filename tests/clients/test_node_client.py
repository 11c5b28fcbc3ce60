"""OpenAI's client for Node before a gateway of real processes: `node/client.test.mjs` asks, the toy model says what is right."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from diptych.runtime.sampling import GREEDY, Sampling
from fleets import MODEL, running, toy_fleet

HERE = Path(__file__).parent / "node"
KEPT = Path(__file__).parents[2] / ".cache" / "node-client"
UNREACHED = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "ENOTCACHED")
KEY, LIMIT, PROMPT = "a-key-of-this-test", 6, "Once upon a time"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a hinge?"}]


@pytest.fixture(scope="module")
def client():
    """A folder with the client in the locked version; made once."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    KEPT.mkdir(parents=True, exist_ok=True)
    made = KEPT / "installed.json"
    if not made.is_file() or made.read_bytes() != lock:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(HERE / name, KEPT / name)
        done = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=KEPT, capture_output=True, text=True)
        if done.returncode and any(code in done.stderr for code in UNREACHED):
            pytest.skip(f"npm reaches no registry: {done.stderr.splitlines()[0]}")
        assert done.returncode == 0, done.stderr
        made.write_bytes(lock)
    shutil.copyfile(HERE / "client.test.mjs", KEPT / "client.test.mjs")
    return KEPT


def test_the_lock_names_no_registry():
    assert "resolved" not in (HERE / "package-lock.json").read_text()


@pytest.mark.timeout(120)
def test_openai_for_node(client, tmp_path):
    """`stop` is a stretch of the answer that begins with whole characters, so that it can be written in JSON."""
    chat = list(b"system: Be brief.\nuser: What is a hinge?\nassistant: ")
    whole = said(list(PROMPT.encode()), 200)
    begin = next(n for n in range(20, 150) if "\ufffd" not in whole[n : n + 3] and whole.find(whole[n : n + 3]) == n)
    texts = {
        "completion": said(list(PROMPT.encode()), 12),
        "seeded": said(list(PROMPT.encode()), 12, Sampling(1.0, seed=7)),
        "chat": said(chat, 10),
        "stop": whole[begin : begin + 3],
        "stopped": whole[:begin],
    }

    async def go():
        fleet = toy_fleet(
            prefill=1, decode=1, step=0.005, blocks=2048, store=0, limits={"requests": LIMIT}, api_key=KEY
        )
        async with running(fleet, Path("/tmp")) as living:
            told = {"url": living.url, "key": KEY, "limit": LIMIT, "prompt": PROMPT, "messages": MESSAGES}
            expected = tmp_path / "expected.json"
            expected.write_text(json.dumps(told | {"texts": texts}))
            process = await asyncio.create_subprocess_exec(
                "node", "--test", "--test-reporter=spec", "client.test.mjs", cwd=client,
                env=os.environ | {"EXPECTED": str(expected)},
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await process.communicate()
            await living.settled()
            return process.returncode, output.decode()

    code, output = asyncio.run(go())
    assert code == 0, output
    assert "pass 13" in output, output


def said(prompt, count, sampling=GREEDY):
    return bytes(MODEL.expected(prompt, count, sampling)).decode("utf-8", "replace")
