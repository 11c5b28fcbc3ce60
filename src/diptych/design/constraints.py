"""What may not be combined, and why: one named rule each, its docstring the sentence a person reads.

A rule returns None when the design keeps it, else the detail that makes the sentence concrete. The groups say what a rule may
look at, so that a search can apply it before the product of the axes is formed:

    PRECISION_RULES   accelerator × precision                      SHAPE_RULES   model × accelerator × parallelism
    FIT_RULES         one whole worker                             PATH_RULES    two offers × link × placement
    KV_RULES          two KV formats × representation              HANDOFF_RULES two workers × the whole boundary

`violations` applies all of them to one design; `planner.enumerate` applies the same functions group by group and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from diptych.catalog.offer import Offer
from diptych.design.axes import Role, Worker
from diptych.design.design import Design
from diptych.design.kv_rules import (
    converter_is_where_formats_meet,
    converting_something,
    nobody_compresses_kv,
    pull_needs_unreplicated_source,
    pull_starts_after_prefill,
    push_needs_unreplicated_target,
    quantised_is_narrower,
    raw_needs_no_converter,
    raw_needs_one_format,
    same_model_and_tokenizer,
    stock_engine_serves_the_pair,
    stock_engines_do_not_convert,
    stock_pairs_share_an_engine,
    tp_sizes_divide,
    wire_format_is_known,
    wire_keeps_eight_bits,
)
from diptych.design.path_rules import (
    another_server_excludes_scaleup,
    clouds_have_their_own_rdma,
    hosts_carry_their_traffic,
    one_server_holds_one_accelerator,
    one_server_uses_its_own_link,
    one_stack_is_chosen_by_name,
    pools_share_a_network,
    rdma_needs_rdma_nics,
    scaleup_must_exist,
    vendors_meet_in_host_memory,
)
from diptych.design.ruling import Pair, PairRule, Setting, Violation, WorkerRule
from diptych.design.worker_rules import (
    activations_are_multiplied,
    engine_executes_precision,
    engine_serves_accelerator,
    expert_parallelism_needs_experts,
    expert_ranks_are_the_workers,
    live_kv_is_in_hbm,
    longest_request_fits,
    no_larger_than_needed,
    quality_is_kept,
    server_holds_the_group,
    sixteen_bits_are_one_choice,
    stages_hold_layers,
    stock_engine_starts_the_worker,
    tp_divides_heads,
    tp_stays_in_scaleup,
    weights_fit,
    weights_not_wider,
)

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
ENGINE_WORKER_RULES: tuple[WorkerRule, ...] = (stock_engine_starts_the_worker,)
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
ENGINE_RULES: tuple[PairRule, ...] = (stock_engine_serves_the_pair,)
WORKER_RULES = PRECISION_RULES + SHAPE_RULES + FIT_RULES + ENGINE_WORKER_RULES
BOUNDARY_RULES = PATH_RULES + KV_RULES + HANDOFF_RULES + ENGINE_RULES


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
