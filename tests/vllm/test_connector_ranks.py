"""Prefill and decode of another number of tensor-parallel ranks: two processes of vLLM, one of them with two ranks.

SmolLM2's nine heads cannot be shared by two ranks (vLLM refuses to start), so that a small random model with even heads is used.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from asking import TEXT, at_rest, pushed, server, through, told
from even_heads import make
from pairs import running

PYTHON = os.environ.get("DIPTYCH_VLLM_PYTHON", ".venv-vllm/bin/python")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"no {PYTHON}: `make test-vllm` makes it"),
]


@pytest.mark.parametrize(("first", "second", "block"), [(2, 1, 128), (1, 2, 128), (1, 2, 64)])
def test_heads_are_shared_anew(first, second, block, tmp_path) -> None:
    model = str(make(tmp_path / "model"))
    prefill = server("prefill", "float32", 128, "--tensor-parallel-size", str(first))
    decode = server("decode", "float32", block, "--tensor-parallel-size", str(second), policy="fail")
    with running(PYTHON, model, tmp_path, prefill, decode):
        for number in range(6):
            prompt = " ".join(TEXT[number : number + 20 + 9 * number])
            alone = (200, decode.ask(prompt, 6))
            assert through(prefill, decode, prompt) == alone
            assert pushed(prefill, decode, prompt) == alone
        assert told(decode)["received"] == 12
        assert at_rest(prefill)
        assert at_rest(decode)
