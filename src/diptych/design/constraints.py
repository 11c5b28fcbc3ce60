"""What may not be combined, and why: one named rule each, its docstring the sentence a person reads.

A rule returns None when the design keeps it, else the detail that makes the sentence concrete. The groups say what a rule may
look at, so that a search can apply it before the product of the axes is formed:

    PRECISION_RULES   accelerator × precision                      SHAPE_RULES   model × accelerator × parallelism
    FIT_RULES         one whole worker                             PATH_RULES    two offers × link × placement
    KV_RULES          two KV formats × representation              HANDOFF_RULES two workers × the whole boundary

`violations` applies all of them to one design; `planner.enumerate` applies the same functions group by group and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import LinkKind
from diptych.catalog.memory import MemoryTier, TierKind
from diptych.catalog.model import Attention
from diptych.catalog.offer import Offer
from diptych.design.axes import Role, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Side
from diptych.design.capability import UNSERVED, capabilities, engines, family, named_engine
from diptych.design.design import Design
from diptych.units import GB, format_bytes, format_seconds

RDMA_FLOOR = 100e9 / 8
"""Bytes/s of a whole instance's NIC from which clouds sell RDMA (EFA, InfiniBand, RoCE); offers do not say it outright."""

LARGEST_SERVER = 16
"""Accelerators of the largest common server; a larger scale-up world spans servers."""
ONE_STACK = ("ib-400g", "ib-400g-mooncake", "ib-200g", "roce-200g", "roce-100g", "tcp-100g-ucx")
"""Links of the catalog that were measured on one software stack, kept for comparison and for users who run it."""
HOSTED = ("Google", "Apple")
_TECHNOLOGIES = {"xgmi": "infinity fabric"}


class Quality(StrEnum):
    """The narrowest weights a plan may choose on its own."""

    NATIVE = "native"  # as published, or wider
    EIGHT_BIT = "8bit"  # FP8 and INT8 too
    ANY = "any"  # 4 bit as well


@dataclass(frozen=True, slots=True)
class Setting:
    """What designs are judged against.

    `memory` gives a worker's (weights, left for KV) in bytes, negative when short: `perf`'s arithmetic, passed in. `tiers` are
    the slower places KV may live in.
    """

    max_context: float
    memory: Callable[[Worker], tuple[float, float]] = field(compare=False)
    quality: Quality = Quality.EIGHT_BIT
    stock_only: bool = False
    link_is_given: bool = False
    tiers: Mapping[TierKind, MemoryTier] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two workers and the boundary between them, with the offers they are rented from (None when owned)."""

    prefill: Worker
    decode: Worker
    boundary: Boundary
    prefill_offer: Offer | None = None
    decode_offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a design breaks."""

    rule: str
    sentence: str
    detail: str

    def __str__(self) -> str:
        return f"{self.sentence} ({self.detail})"


WorkerRule = Callable[[Worker, Setting], str | None]
PairRule = Callable[[Pair, Setting], str | None]


def engine_serves_accelerator(worker: Worker, setting: Setting) -> str | None:
    """Some engine must run on the accelerator at all."""
    if family(worker.accelerator) == UNSERVED:
        return f"no open engine serves {worker.accelerator.name}"
    return None


def activations_are_multiplied(worker: Worker, setting: Setting) -> str | None:
    """The silicon must multiply the activations' format; where it does not, a format is weight-only."""
    if worker.accelerator.peak_flops.get(worker.precision.activations):
        return None
    return f"{worker.accelerator.name} does not multiply {worker.precision.activations}"


def sixteen_bits_are_one_choice(worker: Worker, setting: Setting) -> str | None:
    """bf16 and fp16 cost the same; an accelerator's bf16 stands for both where it has it."""
    formats = (worker.precision.weights, worker.precision.activations, worker.precision.kv)
    spare = Dtype.FP16 if worker.accelerator.peak_flops.get(Dtype.BF16) else Dtype.BF16
    if family(worker.accelerator) in ("apple", "qaic"):
        spare = Dtype.BF16
    return f"{spare} on {worker.accelerator.name}" if spare in formats else None


def weights_not_wider(worker: Worker, setting: Setting) -> str | None:
    """Weights wider than the activations are converted to them at load, which is another design."""
    weights, activations = worker.precision.weights, worker.precision.activations
    return f"{weights} weights under {activations}" if weights.bytes > activations.bytes else None


def engine_executes_precision(worker: Worker, setting: Setting) -> str | None:
    """Precision is an executable capability: kernels, runtime and tooling must run this combination on the accelerator."""
    if engines(worker.accelerator, worker.precision):
        return None
    return f"no engine runs {worker.precision} on {worker.accelerator.name}"


def pinned_engine_executes_precision(worker: Worker, setting: Setting) -> str | None:
    """An engine that was asked for must itself run this combination on the accelerator."""
    if named_engine(worker.engine, engines(worker.accelerator, worker.precision)):
        return None
    return f"{worker.engine} does not run {worker.precision} on {worker.accelerator.name}"


def quality_is_kept(worker: Worker, setting: Setting) -> str | None:
    """Weights narrower than the quality floor change the answers, so they need the user's word."""
    weights, native = worker.precision.weights, worker.model.native
    as_published = weights is native or weights.bytes > native.bytes or weights.bytes == native.bytes > 1
    if setting.quality is Quality.ANY or as_published:
        return None
    if setting.quality is Quality.EIGHT_BIT and weights.bytes >= 1:
        return None
    return f"{weights} weights of a model published in {native}"


def tp_stays_in_scaleup(worker: Worker, setting: Setting) -> str | None:
    """Tensor parallelism beyond the scale-up world crosses the NIC at every layer."""
    world, tp = max(worker.accelerator.scaleup.world, 1), worker.parallelism.tp
    return f"tp{tp} over a scale-up world of {world}" if tp > world else None


def tp_divides_heads(worker: Worker, setting: Setting) -> str | None:
    """Every rank must hold a whole number of attention heads, and of KV heads or of copies of one."""
    tp = worker.parallelism.tp
    for _, attention in worker.model.attention_groups():
        if attention.heads % tp or not _splits(attention, tp):
            return f"tp{tp} over {attention.heads} heads and {attention.kv_heads} KV heads"
    return None


def stages_hold_layers(worker: Worker, setting: Setting) -> str | None:
    """Every pipeline stage must hold at least one layer."""
    pp, layers = worker.parallelism.pp, worker.model.num_layers
    return f"pp{pp} over {layers} layers" if pp > layers else None


def expert_parallelism_needs_experts(worker: Worker, setting: Setting) -> str | None:
    """Expert parallelism, and attention data parallelism beside it, are for models with experts."""
    shape = worker.parallelism
    if (shape.ep > 1 or shape.dp > 1) and not worker.model.is_moe:
        return f"{shape} for a dense model"
    return None


def expert_ranks_are_the_workers(worker: Worker, setting: Setting) -> str | None:
    """Experts span all ranks of a stage or none: EP is 1 or TP × DP, and DP without EP would be separate workers."""
    shape = worker.parallelism
    ranks = shape.tp * shape.dp
    if shape.ep not in (1, ranks) or (shape.dp > 1 and shape.ep == 1):
        return f"ep{shape.ep} on {ranks} ranks"
    return None


def live_kv_is_in_hbm(worker: Worker, setting: Setting) -> str | None:
    """Engines decode from HBM; slower tiers keep only KV that nobody is reading."""
    if worker.residency is TierKind.HBM:
        return None
    tier = setting.tiers.get(worker.residency)
    if tier is None or not tier.read_bandwidth:
        return f"live KV in {worker.residency}"
    size = float(worker.model.kv_bytes(setting.max_context, worker.precision.kv)) / worker.accelerators
    far, near = size / tier.read_bandwidth, size / worker.accelerator.memory_bandwidth
    return (
        f"live KV in {worker.residency}: every token of a sequence of {setting.max_context:.0f} tokens would read "
        f"{format_bytes(size)} on each {worker.accelerator.name} in {format_seconds(far)}, {format_seconds(near)} from HBM"
    )


def weights_fit(worker: Worker, setting: Setting) -> str | None:
    """Weights must fit beside the engine's own memory."""
    weights, left = setting.memory(worker)
    if left > 0:
        return None
    ranks = worker.accelerators
    return (
        f"{worker.model.name} in {worker.precision.weights} needs {format_bytes(weights)} on {ranks} × "
        f"{worker.accelerator.name}; short by {format_bytes(max(-left, 1.0))}"
    )


def no_larger_than_needed(worker: Worker, setting: Setting) -> str | None:
    """A worker of more than eight times the memory its weights need spreads a small model over many failures for no latency."""
    weights, _ = setting.memory(worker)
    least = max(weights / (worker.parallelism.dp * worker.accelerator.memory_bytes), 1.0)
    if worker.accelerators <= max(8 * least, LARGEST_SERVER / 2):
        return None
    return f"{worker.accelerators} × {worker.accelerator.name} for {format_bytes(weights)} of weights"


def longest_request_fits(worker: Worker, setting: Setting) -> str | None:
    """The KV of the longest request must fit in what the weights leave."""
    _, left = setting.memory(worker)
    need = float(worker.model.kv_bytes(setting.max_context, worker.precision.kv))
    room = left / worker.parallelism.dp  # attention DP keeps a request on one rank
    if need <= room:
        return None
    return (
        f"{setting.max_context:.0f} tokens need {format_bytes(need)}, {worker.label} has {format_bytes(max(room, 0.0))}; "
        f"short by {format_bytes(need - room)}"
    )


def another_server_excludes_scaleup(pair: Pair, setting: Setting) -> str | None:
    """A different server excludes NVLink, xGMI and PCIe: they end at the server's wall."""
    link, placement = pair.boundary.link, pair.boundary.placement
    return f"{link.name} between servers" if link.same_server and placement is not Placement.SAME_NODE else None


def one_server_uses_its_own_link(pair: Pair, setting: Setting) -> str | None:
    """Pools on one server hand over inside it: the network is the slower way out and back in."""
    link, placement = pair.boundary.link, pair.boundary.placement
    return f"{link.name} inside a server" if placement is Placement.SAME_NODE and not link.same_server else None


def one_server_holds_one_accelerator(pair: Pair, setting: Setting) -> str | None:
    """A server is sold with one kind of accelerator, so pools of different kinds cannot share one."""
    if pair.boundary.placement is not Placement.SAME_NODE:
        return None
    mine, theirs = pair.prefill.accelerator.name, pair.decode.accelerator.name
    return f"{mine} and {theirs}" if mine != theirs else None


def scaleup_must_exist(pair: Pair, setting: Setting) -> str | None:
    """A scale-up handoff needs accelerators that have that very link."""
    link, scaleup = pair.boundary.link, pair.prefill.accelerator.scaleup
    if link.kind is not LinkKind.SCALEUP or _TECHNOLOGIES.get(link.name, link.name) in scaleup.technology.casefold():
        return None
    return f"{link.name} on {pair.prefill.accelerator.name} ({scaleup.technology or 'no scale-up link'})"


def pools_share_a_network(pair: Pair, setting: Setting) -> str | None:
    """Both pools must be rented where one network joins them: one provider, one region."""
    mine, theirs = pair.prefill_offer, pair.decode_offer
    if setting.link_is_given or mine is None or theirs is None:
        return None
    here, there = (mine.provider, mine.region), (theirs.provider, theirs.region)
    return f"{' '.join(here).strip()} and {' '.join(there).strip()}" if here != there else None


def rdma_needs_rdma_nics(pair: Pair, setting: Setting) -> str | None:
    """RDMA needs NICs that speak it on both sides; clouds sell it from 100 Gbit/s per instance."""
    if setting.link_is_given or pair.boundary.link.kind not in (LinkKind.INFINIBAND, LinkKind.ROCE):
        return None
    for offer in (pair.prefill_offer, pair.decode_offer):
        if offer is not None and 0 < offer.nic_bandwidth * offer.gpus < RDMA_FLOOR * 0.999:
            return f"{offer.instance} has {offer.nic_bandwidth * offer.gpus / GB:.3g} GB/s"
    return None


def hosts_carry_their_traffic(pair: Pair, setting: Setting) -> str | None:
    """TPUs and Apple's parts reach the network through their hosts, without RDMA into their memory."""
    kind = pair.boundary.link.kind
    if kind not in (LinkKind.INFINIBAND, LinkKind.ROCE) or setting.link_is_given:
        return None
    named = [side.accelerator.name for side in (pair.prefill, pair.decode) if side.accelerator.vendor in HOSTED]
    return f"{named[0]} over {pair.boundary.link.name}" if named else None


def clouds_have_their_own_rdma(pair: Pair, setting: Setting) -> str | None:
    """AWS joins instances with EFA and no other cloud has it."""
    if setting.link_is_given or pair.prefill_offer is None:
        return None
    link, provider = pair.boundary.link, pair.prefill_offer.provider
    rdma = link.kind in (LinkKind.INFINIBAND, LinkKind.ROCE)
    return f"{link.name} at {provider}" if rdma and link.name.startswith("efa") != (provider == "AWS") else None


def one_stack_is_chosen_by_name(pair: Pair, setting: Setting) -> str | None:
    """A link measured on one software stack is taken only when it is named; the general ones stand for what is there."""
    link = pair.boundary.link.name
    return link if link in ONE_STACK and not setting.link_is_given else None


def vendors_meet_in_host_memory(pair: Pair, setting: Setting) -> str | None:
    """Accelerators of different vendors share no device-to-device transport: KV is staged through host memory or sockets."""
    vendors = {pair.prefill.accelerator.vendor, pair.decode.accelerator.vendor}
    direct = pair.boundary.link.kind not in (LinkKind.HOST_STAGED, LinkKind.TCP)
    return f"{' and '.join(sorted(vendors))} over {pair.boundary.link.name}" if len(vendors) > 1 and direct else None


def raw_needs_one_format(pair: Pair, setting: Setting) -> str | None:
    """Raw KV needs the same format on both sides: engines move bytes and would read them with another meaning."""
    form = pair.boundary.representation
    produced, consumed = pair.prefill.precision.kv, pair.decode.precision.kv
    if form.codec is Codec.RAW and not produced is form.wire is consumed:
        return f"{produced} → {form.wire} on the wire → {consumed}" + _fnuz_note(produced, consumed)
    return None


def raw_needs_no_converter(pair: Pair, setting: Setting) -> str | None:
    """A raw handoff converts nowhere, any other converts somewhere."""
    form = pair.boundary.representation
    return f"{form}" if (form.codec is Codec.RAW) != (form.converts_at is None) else None


def converting_something(pair: Pair, setting: Setting) -> str | None:
    """A conversion that changes nothing only costs."""
    form = pair.boundary.representation
    produced, consumed = pair.prefill.precision.kv, pair.decode.precision.kv
    same = produced is consumed is form.wire and form.codec is not Codec.RAW
    return f"{produced} stays {produced}" if same else None


def quantised_is_narrower(pair: Pair, setting: Setting) -> str | None:
    """Quantising makes the wire narrower than what prefill produced; a cast keeps or widens it."""
    form, produced = pair.boundary.representation, pair.prefill.precision.kv
    if form.codec is Codec.QUANTISED and form.wire.bytes >= produced.bytes:
        return f"{produced} → {form.wire}"
    if form.codec is Codec.CAST and form.wire.bytes < produced.bytes:
        return f"{produced} → {form.wire} is narrower"
    return None


def converter_is_where_formats_meet(pair: Pair, setting: Setting) -> str | None:
    """Converting at prefill puts the wire's format on the wire; converting at decode leaves prefill's there."""
    form, produced, consumed = (
        pair.boundary.representation,
        pair.prefill.precision.kv,
        pair.decode.precision.kv,
    )
    if form.converts_at is Side.DECODE and form.wire is not produced:
        return f"{form.wire} on the wire from {produced}"
    if form.converts_at in (Side.PREFILL, Side.TRANSFER) and form.wire is produced:
        return f"{produced} leaves as it is"
    if form.converts_at is Side.TRANSFER and form.wire is not consumed:
        return f"{form.wire} must be converted again to {consumed}"
    return None


def nobody_compresses_kv(pair: Pair, setting: Setting) -> str | None:
    """No connector compresses KV on the wire: CacheGen, KIVI and nvCOMP codecs are for storage."""
    return "compressed" if pair.boundary.representation.codec is Codec.COMPRESSED else None


def wire_keeps_eight_bits(pair: Pair, setting: Setting) -> str | None:
    """KV narrower than 8 bits on the wire changes the answers more than any engine vouches for."""
    wire = pair.boundary.representation.wire
    return f"{wire} on the wire" if wire.bytes < 1 else None


def wire_format_is_known(pair: Pair, setting: Setting) -> str | None:
    """The wire carries a format that one of the sides executes, or FP8: a third format serves nobody."""
    wire = pair.boundary.representation.wire
    known = (pair.prefill.precision.kv, pair.decode.precision.kv, Dtype.FP8)
    return f"{wire} between {known[0]} and {known[1]}" if wire not in known else None


def stock_engines_do_not_convert(pair: Pair, setting: Setting) -> str | None:
    """No stock engine converts KV: a representation other than raw needs diptych's connector."""
    raw = pair.boundary.representation.codec is Codec.RAW
    return f"{pair.boundary.representation}" if setting.stock_only and not raw else None


def same_model_and_tokenizer(pair: Pair, setting: Setting) -> str | None:
    """The pair must share model and tokenizer: KV of another model is noise."""
    mine, theirs = pair.prefill.model, pair.decode.model
    if mine.name != theirs.name or mine.tokenizer != theirs.tokenizer:
        return f"{mine.name} and {theirs.name}"
    return None


def tp_sizes_divide(pair: Pair, setting: Setting) -> str | None:
    """Heads are re-sharded by whole ranks: one side's TP must divide the other's."""
    mine, theirs = pair.prefill.parallelism.tp, pair.decode.parallelism.tp
    return f"tp{mine} and tp{theirs}" if max(mine, theirs) % min(mine, theirs) else None


def pull_needs_unreplicated_source(pair: Pair, setting: Setting) -> str | None:
    """A pull cannot gather from a wider prefill whose KV heads are replicated (TP above the KV heads)."""
    wide, tp = pair.prefill.parallelism.tp, pair.decode.parallelism.tp
    pulls = pair.boundary.ownership is Ownership.PULL
    if pulls and wide > tp and wide > _kv_heads(pair.prefill):
        return f"prefill tp{wide}, decode tp{tp}, {_kv_heads(pair.prefill)} KV heads"
    return None


def push_needs_unreplicated_target(pair: Pair, setting: Setting) -> str | None:
    """A push cannot scatter to a wider decode whose KV heads are replicated (TP above the KV heads)."""
    tp, wide = pair.prefill.parallelism.tp, pair.decode.parallelism.tp
    pushes = pair.boundary.ownership is Ownership.PUSH
    if pushes and wide > tp and wide > _kv_heads(pair.decode):
        return f"prefill tp{tp}, decode tp{wide}, {_kv_heads(pair.decode)} KV heads"
    return None


def pull_starts_after_prefill(pair: Pair, setting: Setting) -> str | None:
    """A pull starts when prefill has returned its blocks, so it cannot overlap layer by layer."""
    boundary = pair.boundary
    overlaps = boundary.overlap is Overlap.LAYERWISE and boundary.ownership is Ownership.PULL
    return "layer-wise pull" if overlaps else None


def stock_pairs_share_an_engine(pair: Pair, setting: Setting) -> str | None:
    """Stock connectors join an engine with itself; two engines meet only in diptych's connector."""
    if not setting.stock_only or shared_engines(pair.prefill.accelerator, pair.decode.accelerator):
        return None
    return f"{pair.prefill.accelerator.name} and {pair.decode.accelerator.name} have no engine in common"


def server_holds_the_group(worker: Worker, offer: Offer) -> str | None:
    """The rented server must hold the whole tensor- or expert-parallel group, as far as the scale-up link joins it."""
    shape, world = worker.parallelism, max(worker.accelerator.scaleup.world, 1)
    if world > LARGEST_SERVER or min(shape.tp * shape.dp, world) <= offer.gpus:
        return (
            None  # a domain larger than a server spans servers; what exceeds the domain crosses the NIC and is charged
        )
    return f"{shape} on {offer.instance} with {offer.gpus}"


PRECISION_RULES: tuple[WorkerRule, ...] = (
    engine_serves_accelerator,
    sixteen_bits_are_one_choice,
    activations_are_multiplied,
    weights_not_wider,
    engine_executes_precision,
    quality_is_kept,
)
SHAPE_RULES: tuple[WorkerRule, ...] = (
    tp_stays_in_scaleup,
    tp_divides_heads,
    stages_hold_layers,
    expert_parallelism_needs_experts,
    expert_ranks_are_the_workers,
)
FIT_RULES: tuple[WorkerRule, ...] = (no_larger_than_needed, weights_fit, longest_request_fits)
OFFER_RULES: tuple[Callable[[Worker, Offer], str | None], ...] = (server_holds_the_group,)
RESIDENCY_RULES: tuple[WorkerRule, ...] = (live_kv_is_in_hbm,)
PATH_RULES: tuple[PairRule, ...] = (
    another_server_excludes_scaleup,
    one_server_uses_its_own_link,
    one_server_holds_one_accelerator,
    scaleup_must_exist,
    pools_share_a_network,
    rdma_needs_rdma_nics,
    hosts_carry_their_traffic,
    clouds_have_their_own_rdma,
    one_stack_is_chosen_by_name,
    vendors_meet_in_host_memory,
    stock_pairs_share_an_engine,
)
KV_RULES: tuple[PairRule, ...] = (
    nobody_compresses_kv,
    wire_keeps_eight_bits,
    wire_format_is_known,
    raw_needs_no_converter,
    raw_needs_one_format,
    converting_something,
    quantised_is_narrower,
    converter_is_where_formats_meet,
    stock_engines_do_not_convert,
)
HANDOFF_RULES: tuple[PairRule, ...] = (
    same_model_and_tokenizer,
    tp_sizes_divide,
    pull_starts_after_prefill,
    pull_needs_unreplicated_source,
    push_needs_unreplicated_target,
)
WORKER_RULES = PRECISION_RULES + SHAPE_RULES + FIT_RULES
BOUNDARY_RULES = PATH_RULES + KV_RULES + HANDOFF_RULES


def sentence(rule: Callable[..., str | None]) -> str:
    """The one sentence of a rule."""
    return (rule.__doc__ or rule.__name__).strip().rstrip(".")


def first_broken(rules: tuple[WorkerRule, ...], worker: Worker, setting: Setting) -> Violation | None:
    """The first of `rules` that a worker breaks."""
    return next(worker_violations(worker, setting, rules), None)


def worker_violations(
    worker: Worker, setting: Setting, rules: tuple[WorkerRule, ...] = WORKER_RULES
) -> Iterator[Violation]:
    """Every one of `rules` that a worker breaks."""
    for rule in rules:
        detail = rule(worker, setting)
        if detail is not None:
            yield Violation(rule.__name__, sentence(rule), detail)


def pair_violations(pair: Pair, setting: Setting, rules: tuple[PairRule, ...] = BOUNDARY_RULES) -> Iterator[Violation]:
    """Every one of `rules` that a pair breaks."""
    for rule in rules:
        detail = rule(pair, setting)
        if detail is not None:
            yield Violation(rule.__name__, sentence(rule), detail)


def violations(design: Design, setting: Setting) -> tuple[Violation, ...]:
    """Every rule that a whole design breaks: each worker on its own, then each pair that hands over."""
    found: list[Violation] = []
    for pool in design.pools:
        rules = WORKER_RULES if pool.role is Role.PREFILL else WORKER_RULES + RESIDENCY_RULES
        for member in pool.members:
            found.extend(worker_violations(member.worker, setting, rules))
    prefill, decode = design.pool(Role.PREFILL), design.pool(Role.DECODE)
    if design.boundary is not None and prefill and decode:
        for source in prefill.members:
            for target in decode.members:
                found.extend(pair_violations(Pair(source.worker, target.worker, design.boundary), setting))
    return tuple(dict.fromkeys(found))


def shared_engines(*accelerators: Accelerator) -> tuple[str, ...]:
    """Engines that serve all of them; plugins of vLLM count as vLLM."""
    sides = [
        {engine.partition("-")[0] for row in capabilities(accelerator) for engine in row.engines}
        for accelerator in accelerators
    ]
    return tuple(sorted(set.intersection(*sides)))


def _kv_heads(worker: Worker) -> int:
    return worker.model.kv_heads


def _splits(attention: Attention, tp: int) -> bool:
    if attention.is_mla:
        return True
    return attention.kv_heads % tp == 0 or tp % attention.kv_heads == 0


def _fnuz_note(produced: Dtype, consumed: Dtype) -> str:
    formats = {produced, consumed}
    return "; the same bits mean twice the value in e4m3fn" if formats == {Dtype.FP8, Dtype.FP8_FNUZ} else ""
