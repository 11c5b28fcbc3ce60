"""Replay a Mooncake-format trace with NVIDIA Dynamo's mocker (PyPI `ai-dynamo-runtime`); one JSON line with CPU seconds.

Run by `sim_peer.py` inside the peer's own environment: PYTHON peer_replay.py TRACE {colocated|disaggregated}
"""

from __future__ import annotations

import json
import resource
import sys
from importlib.metadata import version

from dynamo._core import run_mocker_trace_replay


def engine(role: str) -> dict[str, object]:
    """Engine settings like ours: 16-token blocks, 8192 tokens a step, prefix cache on."""
    return {
        "engine": {
            "block_size": 16, "num_gpu_blocks": 30000, "max_num_batched_tokens": 8192, "max_num_seqs": 1024,
            "worker_type": role,
        }
    }  # fmt: skip


def main(trace: str, shape: str) -> None:
    options = {"trace_block_size": 512, "router_mode": "kv_router"}
    if shape == "colocated":
        options |= {"extra_engine_args": engine("aggregated"), "num_workers": 1}
    else:
        options |= {
            "prefill_engine_args": engine("prefill"), "decode_engine_args": engine("decode"),
            "num_prefill_workers": 1, "num_decode_workers": 1,
        }  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = run_mocker_trace_replay([trace], **options)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summary = {key: value for key, value in found.summary.items() if isinstance(value, (int, float))}
    print(json.dumps({"version": version("ai-dynamo-runtime"), "cpu_s": cpu, "mb": after.ru_maxrss / 1024, **summary}))


if __name__ == "__main__":
    main(*sys.argv[1:])
