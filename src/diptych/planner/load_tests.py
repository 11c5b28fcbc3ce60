"""How the load test behind a published row drove its server: what the test's own scripts say, never what was measured.

InferenceX publishes the script of every run (github.com/SemiAnalysisAI/InferenceX, benchmarks/*.sh, read 2026-11): 10 requests
per client, all clients at once, lengths uniform from 0.8 to 1 of the nominal ones, and the server's batching options below.
"""

from __future__ import annotations

import re

from diptych.design.axes import Worker
from diptych.perf.loop_play import Protocol
from diptych.planner.benchmark_rows import Kind, Row

SWEEP_SPREAD = 0.8


def is_sweep(row: Row) -> bool:
    """Whether a row of the silicon sample comes from InferenceX's sweeps, by the form of its name."""
    return re.search(r"cfg\d+$|^20\d\d_\d\d_\d\d_|_tp\d+_ep\d+_\d+$", row.reference) is not None


def protocol(row: Row, worker: Worker) -> Protocol:
    """The load test behind a row.

    GPUStack's lab sends its whole dataset at once with natural lengths. Elsewhere lengths are fixed; vLLM's own load test
    starts all clients at once, the others are taken to start apart.
    """
    if row.source.startswith("GPUStack"):
        return Protocol(1 if (row.concurrency or 0) >= 16 else 10, 0.0)
    if not is_sweep(row):
        return Protocol(10, 1.0, ramp=0.0 if worker.engine == "vllm" else 1.0)
    colocated = row.kind is Kind.CLOSED
    poll = receive_interval(row, worker) if colocated and worker.engine == "sglang" else 1.0
    hold = batch_wait(row, worker) if colocated and worker.engine == "trtllm" else 0.0
    return Protocol(10, SWEEP_SPREAD, poll=poll, hold=hold)


def receive_interval(row: Row, worker: Worker) -> float:
    """Steps between two looks for requests: --scheduler-recv-interval of the SGLang scripts, 1 where they set none.

    Blackwell scripts look every 10 steps, every 30 from 16 clients on. Those of GLM-5 and of Hopper leave it out; FP8 stays at
    10 for DeepSeek on 4 accelerators and for Qwen3.5 on B300; Qwen3.5 in FP4 on B200 goes to 30 above 4 clients.
    """
    name, accelerator, dtype = worker.model.name, worker.accelerator.name, row.dtype.casefold()
    if not accelerator.startswith(("B200", "B300")) or name.startswith("GLM"):
        return 1.0
    qwen, on_b300 = name.startswith("Qwen3.5"), accelerator.startswith("B300")
    if dtype == "fp8" and (on_b300 if qwen else worker.parallelism.tp == 4):
        return 10.0
    few = 5 if qwen and dtype == "fp4" and not on_b300 else 16
    return 10.0 if (row.concurrency or 0.0) < few else 30.0


def batch_wait(row: Row, worker: Worker) -> float:
    """Steps that a prompt waits for others beside decoding: batch_wait_timeout_iters of the TensorRT-LLM scripts.

    Set where prompts and answers are 1024 tokens: 20 for Llama-3.1-70B below TP8, 40 for DeepSeek in FP8 from 64 to 255
    clients. With attention data parallelism a prompt waits up to 60 steps (timeout_iters) until every rank has one.
    """
    name, clients = worker.model.name, row.concurrency or 0.0
    if worker.parallelism.dp > 1:
        return 60.0
    if (row.isl, row.osl) != (1024, 1024):
        return 0.0
    if name == "Llama-3.1-70B":
        return 20.0 if worker.parallelism.tp < 8 else 0.0
    narrow = (
        name.startswith("DeepSeek") and row.dtype.casefold() == "fp8" and worker.accelerator.name.startswith("B200")
    )
    return 40.0 if narrow and 64 <= clients < 256 else 0.0
