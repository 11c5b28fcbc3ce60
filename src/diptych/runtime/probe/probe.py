"""A whole probe of a fleet that runs and is idle: every measurement, fitted and written down as a calibration."""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from diptych.design.axes import Role
from diptych.design.boundary import Ownership
from diptych.perf.calibration import (
    Calibration,
    Machine,
    SeenDecode,
    SeenHandoff,
    SeenPrompt,
    SeenRole,
    Shape,
)
from diptych.perf.probed import Decodes, DecodeStep, Prompts, PromptStep, affine
from diptych.runtime.launch.fleet import Fleet, Pool
from diptych.runtime.launch.machine import Machine as Here
from diptych.runtime.peer.address import Address
from diptych.runtime.probe import gateway, measure
from diptych.runtime.probe.bench import Bench, Reached
from diptych.runtime.probe.plan import Plan
from diptych.runtime.worker.config import Torch

Say = Callable[[str], None]


async def probe(fleet: Fleet, folder: Path, say: Say) -> Calibration:
    """Measure a fleet whose run directory is `folder`. Nobody else may ask it anything meanwhile.

    Raises:
        ProbeFailed: a worker or the gateway did not do what it was asked.
    """
    bench = Bench(fleet.gateway.ownership)
    try:
        for pool in fleet.pools:
            for name in pool.names:
                await bench.reach(name, pool.role, Address.of(f"unix:{folder / name}.control"))
        return await _measured(fleet, bench, say)
    finally:
        bench.close()


async def _measured(fleet: Fleet, bench: Bench, say: Say) -> Calibration:
    plans = {worker.name: _plan(fleet, worker) for worker in bench.workers}
    say("warming up")
    await measure.warm(bench, min(plans.values(), key=lambda plan: plan.longest))
    handed: list[measure.Handed] = []
    roles = [await _role(fleet, pool, bench, plans, handed, say) for pool in fleet.pools]
    say("measuring the gateway")
    state, ready = bench.state, bench.ready
    layers = state.layers[0]
    return Calibration(
        kind="calibration",
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"diptych": metadata.version("diptych"), "python": platform.python_version(), **_torch(fleet)},
        machine=_machine(),
        model=Shape(
            fleet.gateway.model, state.num_layers, layers.kv_heads, layers.head_dim, ready.vocabulary, ready.max_context
        ),
        ownership=Ownership(fleet.gateway.ownership),
        block_tokens=ready.block_tokens,
        budget=fleet.batch_of(fleet.pools[0]).budget,
        sequences=fleet.batch_of(fleet.pools[0]).sequences,
        roles=tuple(roles),
        handoffs=_seen_handoffs(handed),
        gateway_seconds=await gateway.added(bench, fleet.gateway),
    )


def _plan(fleet: Fleet, worker: Reached) -> Plan:
    ready = worker.ready
    assert ready is not None
    return Plan(ready.max_context, ready.blocks * ready.block_tokens, fleet.batch_of(fleet.pools[0]).sequences)


async def _role(
    fleet: Fleet, pool: Pool, bench: Bench, plans: dict[str, Plan], handed: list[measure.Handed], say: Say
) -> SeenRole:
    """The first worker of a pool stands for all. Prompts that a pair computes are handed over, as they will be."""
    worker, others = bench.of(pool.role)[0], [each for each in bench.workers if each is not bench.of(pool.role)[0]]
    plan = plans[worker.name]
    prompts: list[PromptStep] = []
    decodes: list[DecodeStep] = []
    if pool.role != "decode":
        target = next(iter(bench.of("decode")), None) if pool.role == "prefill" else None
        say(f"measuring prompts on {worker.name}" + (f", handed to {target.name}" if target is not None else ""))
        narrow = min(plan, plans[target.name] if target is not None else plan, key=lambda each: each.longest)
        prompts, moved = await measure.prompts(bench, worker, target, narrow)
        prompts += await measure.pasts(bench, worker, plan)
        handed += moved
    if pool.role != "prefill":
        say(f"measuring decode steps on {worker.name}")
        decodes = await measure.decodes(bench, worker, plan)
    if others:
        say(f"measuring {worker.name} beside {', '.join(each.name for each in others)}")
    engine = pool.engine
    return SeenRole(
        role=Role(pool.role),
        count=pool.count,
        device=engine.device if isinstance(engine, Torch) else "cpu",
        weights=engine.weights if isinstance(engine, Torch) else "int8",
        kv=str(bench.state.format.element.dtype) if not isinstance(engine, Torch) else engine.kv,
        threads=pool.threads,
        blocks=worker.ready.blocks if worker.ready else 1,
        prompts=_seen_prompts(prompts),
        decodes=_seen_decodes(decodes),
        slowed=round(await measure.slowed(bench, worker, others, plan), 4),
    )


def _seen_prompts(steps: list[PromptStep]) -> tuple[SeenPrompt, ...]:
    if not steps:
        return ()
    fit = Prompts.fit(steps)
    return tuple(
        SeenPrompt(each.tokens, each.past, each.seconds, not each.held, float(fit.at(each.tokens, each.past)))
        for each in steps
    )


def _seen_decodes(steps: list[DecodeStep]) -> tuple[SeenDecode, ...]:
    if not steps:
        return ()
    fit = Decodes.fit(steps)
    return tuple(
        SeenDecode(each.batch, each.context, each.seconds, not each.held, float(fit.at(each.batch, each.context)))
        for each in steps
    )


def _seen_handoffs(handed: list[measure.Handed]) -> tuple[SeenHandoff, ...]:
    if not handed:
        return ()
    alpha, token = affine([(each.tokens, each.seconds) for each in handed if not each.held])
    return tuple(SeenHandoff(each.tokens, each.seconds, not each.held, alpha + token * each.tokens) for each in handed)


def _machine() -> Machine:
    here = Here.here()
    return Machine(_cpu(), here.cores, here.memory)


def _cpu() -> str:
    """The processor's name where the system tells one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()[:256]
    named = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(named, platform.processor())[:256]


def _torch(fleet: Fleet) -> dict[str, str]:
    return {"torch": metadata.version("torch")} if any(isinstance(pool.engine, Torch) for pool in fleet.pools) else {}
