"""The live page over other engines' workers, in a real browser: the same page, drawn from the same kind of snapshot."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from test_gateway_browser import CHROMIUM, visit

from fake_engines import Worker, running
from serve_command import command

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)"),
]


def test_queues_workers_handoffs_and_cost_are_drawn(tmp_path: Path) -> None:
    async def go():
        async with running(Worker("prefill"), Worker("decode")) as (first, second):
            words = (
                "--engine",
                "vllm",
                "--prefill-url",
                first,
                "--decode-url",
                second,
                "--prices",
                "prefill=4, decode=2",
            )
            async with command(*words) as serving:
                assert await serving.wait(), serving.text
                for _ in range(5):
                    assert (await serving.ask())[0] == 200
                await asyncio.sleep(2)
                token = Path(serving.token_file).read_text().strip()
                dom, console, asked = await asyncio.to_thread(visit, f"{serving.url}/ui#token={token}", tmp_path)
        assert console == []
        assert 'data-ready="yes"' in dom
        for word in (
            first.removeprefix("http://"),
            "remote prefill",
            "vllm-nixl",
            "5 finished",
            "KiB",
            "$4.00",
            "25 %",
        ):
            assert word in dom, word
        assert all(url.startswith(serving.url) for url in asked)
        assert len(re.findall(r"<svg id=\"chart-.*?<path", dom, flags=re.DOTALL)) == 4

    asyncio.run(go())
