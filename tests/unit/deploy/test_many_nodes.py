"""Commands of one worker over several nodes are one worker."""

from __future__ import annotations

import pytest

from diptych.deploy.commands.read import read_pair, read_script
from diptych.design.axes import Role

SGLANG = "python -m sglang.launch_server --model-path m --disaggregation-mode {role} --tp-size 16 --nnodes 2 --node-rank {rank}"


def commands(role: str, ranks: tuple[int, ...]) -> list[str]:
    return [SGLANG.format(role=role, rank=rank) for rank in ranks]


@pytest.mark.parametrize(("ranks", "workers"), [((0, 1), 1), ((1, 0), 1), ((0, 1, 0, 1), 2), ((1,), 1)])
def test_a_worker_is_what_its_first_node_says(ranks: tuple[int, ...], workers: int) -> None:
    prefill, decode = commands("prefill", ranks), commands("decode", (0, 1))
    script = read_script("\n".join([*prefill, *decode]))
    assert len(script.of(Role.PREFILL)) == workers
    assert len(script.of(Role.DECODE)) == 1
    pair = read_pair(prefill, decode)
    assert len(list(pair.pairs())) == workers


def test_workers_without_ranks_are_workers_each() -> None:
    command = (
        'vllm serve m --kv-transfer-config \'{"kv_connector":"NixlConnector","kv_role":"kv_producer"}\' --port 80%d'
    )
    assert len(read_script("\n".join(command % port for port in (1, 2))).roles) == 2
