"""What is to be deployed, and what of it the target can express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Model
from diptych.deploy.generate.target import Target
from diptych.design.axes import Role, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Placement, Representation
from diptych.design.design import Design, Member, Pool
from diptych.engines.deployment import UNKNOWN, Deployment, Expected
from diptych.engines.engine import Version
from diptych.engines.handling import DIPTYCH, STOCK, Refusal, handling_of, refusals
from diptych.engines.of_design import How, deployment_of, needs_checkpoint
from diptych.metrics.slo import SLO

NO_SLO = SLO()


@dataclass(frozen=True, slots=True)
class Answer:
    """One question of the operator's checklist, as the plan answered it."""

    question: str
    status: str
    answer: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """A design for a target. `checkpoints`, `images` and `spans` (nodes of one worker)
    replace what is derived; `headline` and `checklist` come from the plan.

    `command` is how this was asked for, so that whoever reads the result can ask again. `connector` is '' for the engine's own,
    or diptych.
    """

    design: Design
    model: Model
    target: Target
    version: Version | None = None
    name: str = "diptych"
    checkpoints: Mapping[Role, str] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    spans: Mapping[Role, int] = field(default_factory=dict)
    expected: Expected = UNKNOWN
    slo: SLO = NO_SLO
    headline: str = ""
    checklist: tuple[Answer, ...] = ()
    command: str = ""
    connector: str = STOCK

    @property
    def release(self) -> Version:
        """The engine's version: the one named, or the one that comes with the target."""
        return self.version or self.target.engine_version

    @property
    def link(self) -> Link | None:
        return self.design.boundary.link if self.design.boundary else None

    @property
    def how(self) -> How:
        return How(
            self.target.engine, self.release, self.target.launcher, self.checkpoints, spans=self.spans, expected=self.expected,
            connector=self.connector,
        )  # fmt: skip

    @property
    def deployment(self) -> Deployment:
        """The roles as the target will start them."""
        return deployment_of(self.design, self.how)


def inexpressible(request: Request) -> tuple[Refusal, ...]:
    """What the target cannot say of this design, each thing once."""
    return tuple(dict.fromkeys((*_target(request), *_handoff(request), *_checkpoints(request), *_shapes(request))))


def nearest(request: Request) -> Design:
    """The design with each choice that the target cannot express replaced by the nearest one that it can."""
    boundary = request.design.boundary
    if boundary is None:
        return request.design
    handling = handling_of(request.target.engine, request.connector)
    kv = min((worker.precision.kv for worker in _workers(request.design)), key=lambda dtype: dtype.bytes)
    is_conditional = boundary.placement is Placement.CONDITIONAL
    keeps = is_conditional and not _refuses_placement(request)
    plain = Boundary(
        boundary.placement if keeps or not is_conditional else Placement.DISAGGREGATED,
        boundary.link,
        Representation(Codec.RAW, kv),
        boundary.ownership if boundary.ownership in handling.ownerships else handling.ownerships[0],
        boundary.overlap if boundary.overlap in handling.overlaps else Overlap.SERIAL,
        boundary.local_below if keeps else 0,
    )
    pools = tuple(
        Pool(pool.role, tuple(_storing(member, kv, request) for member in pool.members))
        for pool in request.design.pools
    )
    return Design(pools, plain)


def _storing(member: Member, kv: Dtype, request: Request) -> Member:
    worker = member.worker
    tiers = handling_of(request.target.engine, request.connector).tiers
    tier = worker.residency if worker.residency in tiers else TierKind.HBM
    precision = replace(worker.precision, kv=kv)
    return replace(member, worker=replace(worker, precision=precision, residency=tier))


def _refuses_placement(request: Request) -> bool:
    return any(refusal.choice.startswith("prompts under") for refusal in _handoff(request))


def _target(request: Request) -> Iterator[Refusal]:
    """Our connector is told its host's address and the files of its certificates, which a script knows where it runs."""
    if request.connector != DIPTYCH:
        return
    if request.target is not Target.VLLM:
        sentence = f"what is written for {request.target} does not carry its addresses and certificates"
        yield Refusal(f"--connector {DIPTYCH}", sentence, f"--target {Target.VLLM}, or the engine's own connector")
    if not request.design.is_disaggregated:
        yield Refusal(f"--connector {DIPTYCH}", "nothing is handed over in a colocated fleet", "to leave it out")
    for config in request.deployment.roles:
        if config.nodes_per_worker > 1:
            choice = f"{config.role} workers over {config.nodes_per_worker} nodes"
            yield Refusal(choice, "the connector's ranks are asked on one host", "a worker that fits one server")


def _handoff(request: Request) -> Iterator[Refusal]:
    boundary = request.design.boundary
    if boundary is None:
        return
    for prefill in _of(request.design, Role.PREFILL):
        for decode in _of(request.design, Role.DECODE):
            yield from refusals(
                request.target.engine, request.target.launcher, prefill, decode, boundary, request.connector
            )


def _checkpoints(request: Request) -> Iterator[Refusal]:
    for pool in request.design.pools:
        for member in pool.members:
            if needs_checkpoint(member.worker) and not request.checkpoints.get(pool.role):
                weights = member.worker.precision.weights
                yield Refusal(
                    f"{weights} weights for {pool.role}",
                    f"no engine makes {weights} weights from {request.model.name}'s own checkpoint while it loads",
                    f"name a checkpoint that has them: --checkpoint {pool.role}=ORG/NAME",
                )


def _shapes(request: Request) -> Iterator[Refusal]:
    """What a manifest has one field for and the design has several values of."""
    target, deployment = request.target, request.deployment
    for pool in request.design.pools:
        if target in (Target.KSERVE, Target.LLM_D) and len(pool.members) > 1:
            kinds = ", ".join(member.worker.label for member in pool.members)
            nearest = f"one kind of {pool.role} worker, or one deployment for each"
            yield Refusal(f"a mixed {pool.role} pool ({kinds})", f"{target} has one {pool.role} template", nearest)
    if target in (Target.KSERVE, Target.LLM_D, Target.COMPOSE):
        for config in deployment.roles:
            if config.nodes_per_worker > 1:
                choice = f"{config.role} workers over {config.nodes_per_worker} nodes"
                sentence = f"what is written for {target} keeps a worker on one node"
                yield Refusal(choice, sentence, "a worker that fits one server, or --target vllm or dynamo-vllm")
    if target in (Target.KSERVE, Target.LLM_D) and len(set(request.checkpoints.values())) > 1:
        named = ", ".join(f"{role} {name}" for role, name in request.checkpoints.items())
        yield Refusal(
            f"a checkpoint for each role ({named})",
            f"{target} loads one model for all",
            "one checkpoint, or another target",
        )


def _of(design: Design, role: Role) -> tuple[Worker, ...]:
    pool = design.pool(role)
    return tuple(member.worker for member in pool.members) if pool else ()


def _workers(design: Design) -> tuple[Worker, ...]:
    return tuple(member.worker for pool in design.pools for member in pool.members)
