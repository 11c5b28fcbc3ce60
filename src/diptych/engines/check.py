"""Check a deployment: every rule over every pair that may meet, and beside them what is stored, compared by its meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from diptych.boundary.contract import Contract, Verdict, contract
from diptych.boundary.descriptor import KVState, Layout
from diptych.boundary.element import ScaleSource
from diptych.engines.deployment import Deployment
from diptych.engines.engine import READ, Engine
from diptych.engines.resolve import Joint, kv_state
from diptych.engines.resolve_gpu import labelled_accelerator
from diptych.engines.resolve_stored import Stored, same_bytes
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Broken, Clash, Remark, Rule, Severity
from diptych.engines.rules import all_doubts, all_remarks, all_rules
from diptych.engines.rules.pair import MEANING
from diptych.engines.rules.vllm_pair import is_diptych

if TYPE_CHECKING:
    from diptych.catalog.accelerator import Accelerator
    from diptych.catalog.catalog import Catalog
    from diptych.catalog.model import Model


@dataclass(frozen=True, slots=True)
class Pair:
    """One prefill and one decode, what each stores, what the boundary could do with it, and what is wrong or only looks so.

    `contract` is None while something that it compares is not known. `names` are the pairs that are equal to this one.
    """

    joint: Joint
    contract: Contract | None
    broken: tuple[Broken, ...]
    remarks: tuple[Remark, ...]
    names: tuple[tuple[str, str], ...] = ()

    @property
    def stored(self) -> tuple[Stored, Stored]:
        return self.joint.prefill_stored, self.joint.decode_stored

    @property
    def meaning(self) -> str:
        """What is true of the stored bytes, whatever the engine compares.

        'compatible' (as they are, or rearranged), 'needs conversion', 'incompatible', or 'unknown'.
        """
        if self.contract is None:
            return {True: "compatible", False: "needs conversion", None: "unknown"}[same_bytes(*self.stored)]
        if not self.contract.is_usable:
            return "incompatible"
        converts = self.contract.verdict in (Verdict.CONVERT, Verdict.BOTH)
        return "needs conversion" if converts else "compatible"

    @property
    def is_refused(self) -> bool:
        """Whether the engine itself stops the pair, at start-up or at each request."""
        return any(each.severity in (Severity.STARTUP, Severity.REQUEST) for each in self.broken)


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a deployment. `broken` is worst first, `unknown` what was not known and hence not checked."""

    deployment: Deployment
    pairs: tuple[Pair, ...]
    broken: tuple[Broken, ...] = field(default=())
    remarks: tuple[Remark, ...] = field(default=())
    unknown: tuple[str, ...] = field(default=())

    @property
    def is_clean(self) -> bool:
        return not self.broken


def check(deployment: Deployment, catalog: Catalog) -> Report:
    """Every rule over every pair; equal pairs are checked once, equal findings told once."""
    pairs = tuple(_checked(group, deployment, catalog) for group in _groups(deployment))
    broken = dict.fromkeys(each for pair in pairs for each in pair.broken)
    order = list(Severity)
    outside = [f"{each.where}: {each.problem}" for each in deployment.unknown]
    return Report(
        deployment,
        pairs,
        tuple(sorted(broken, key=lambda each: order.index(each.severity))),
        tuple(dict.fromkeys(each for pair in pairs for each in pair.remarks)),
        tuple(dict.fromkeys((*outside, *(said for pair in pairs for said in _doubts(pair.joint))))),
    )


def _groups(deployment: Deployment) -> list[list[tuple[RoleConfig, RoleConfig]]]:
    """The pairs, equal ones together: alike but for name, number, address and where they were written."""
    keys: list[tuple[RoleConfig, RoleConfig]] = []
    groups: list[list[tuple[RoleConfig, RoleConfig]]] = []
    for prefill, decode in deployment.pairs():
        key = (_settings(prefill), _settings(decode))
        if key in keys:
            groups[keys.index(key)].append((prefill, decode))
        else:
            keys.append(key)
            groups.append([(prefill, decode)])
    return groups


def _settings(role: RoleConfig) -> RoleConfig:
    return replace(role, name="", replicas=1, host="", port=None, places={}, written={})


def _checked(group: list[tuple[RoleConfig, RoleConfig]], deployment: Deployment, catalog: Catalog) -> Pair:
    joint = join(*group[0], deployment, catalog)
    found = tuple(_broken(joint))
    agreed = _contract(joint)
    found += tuple(_unexplained(joint, agreed, found))
    names = tuple((prefill.name or str(prefill.role), decode.name or str(decode.role)) for prefill, decode in group)
    return Pair(joint, agreed, found, tuple(_remarks(joint, found)), names)


def join(prefill: RoleConfig, decode: RoleConfig, deployment: Deployment, catalog: Catalog) -> Joint:
    """Two roles with what the catalog knows of them. A model that one role alone names in a known way stands for both."""
    ours, theirs = (_model(role, deployment, catalog) for role in (prefill, decode))
    prefill_gpu, decode_gpu = _gpu(prefill, catalog), _gpu(decode, catalog)
    return Joint(prefill, decode, deployment, ours or theirs, prefill_gpu, decode_gpu, theirs)


def _model(role: RoleConfig, deployment: Deployment, catalog: Catalog) -> Model | None:
    return deployment.models.get(role.model) or next(
        (found for name in (role.model, role.served_name) if name and (found := catalog.find_model(name))), None
    )


def _gpu(role: RoleConfig, catalog: Catalog) -> Accelerator | None:
    return labelled_accelerator(role.gpu, catalog.find_accelerator) if role.gpu else None


def applies(rule: Rule, joint: Joint) -> bool:
    """Whether a rule is of this pair's engine and of the release of either side."""
    engines = {joint.prefill.engine, joint.decode.engine}
    if rule.engine is None:
        return True
    if engines != {rule.engine}:
        return False
    return joint.prefill.release in rule.versions or joint.decode.release in rule.versions


def _broken(joint: Joint) -> Iterator[Broken]:
    for rule in all_rules():
        if applies(rule, joint):
            for clash in rule.check(joint):
                yield Broken(rule, clash, clash.severity or rule.severity)


def _contract(joint: Joint) -> Contract | None:
    """The contract of what each side stores; an identity is compared only as far as the catalog names it."""
    produced = kv_state(joint.prefill, joint.model, joint.prefill_gpu)
    consumed = kv_state(joint.decode, joint.decode_model or joint.model, joint.decode_gpu)
    if produced is None or consumed is None:
        return None
    if is_diptych(joint):  # it learns each side's order of elements by writing and looking
        produced, consumed = _plain(produced, Layout.LBHNC), _plain(consumed, Layout.LBHNC)
    if not produced.storage.packing:  # vLLM on a CPU packs what it receives unpacked (platforms/cpu.py `pack_kv_cache`)
        consumed = _plain(consumed)
    return contract(_with_digest(produced, joint.prefill), _with_digest(consumed, joint.decode))


def _plain(state: KVState, layout: Layout | None = None) -> KVState:
    return replace(state, storage=replace(state.storage, packing="", layout=layout or state.storage.layout))


def _with_digest(state: KVState, role: RoleConfig) -> KVState:
    """A checkpoint's scales by its repository and revision, which stand for their values; a folder says nothing of them."""
    scaling = state.format.scaling
    if scaling.source is not ScaleSource.CHECKPOINT or role.model.startswith(("/", ".", "~")):
        return state
    named = replace(scaling, digest=f"{role.model}@{role.revision}")
    return replace(state, format=replace(state.format, scaling=named))


def _unexplained(joint: Joint, agreed: Contract | None, found: tuple[Broken, ...]) -> Iterator[Broken]:
    """What means another thing on the other side though no rule of the engine stops it or tells of it."""
    converts = agreed is not None and agreed.verdict in (Verdict.CONVERT, Verdict.BOTH)
    if agreed is None or (agreed.is_usable and (not converts or is_diptych(joint))):
        return
    if any(role.engine is Engine.VLLM and role.connector is None for role in (joint.prefill, joint.decode)):
        return  # nothing crosses: OR2 tells
    places = tuple(role.place("kv_cache_dtype") for role in (joint.prefill, joint.decode))
    told = (Severity.SILENT, Severity.REQUEST, Severity.STARTUP)
    if any(
        each.severity in told or set(places) & set(each.clash.places) for each in found if not each.clash.is_spurious
    ):
        return
    why = "; ".join(map(str, agreed.reasons or [step for step in agreed.plan if step.op.converts]))
    change = "store one format on both roles: the engine does not convert"
    severity = MEANING.severity
    if is_diptych(joint):
        change, severity = "choose what can be converted: the connector refuses each request", Severity.REQUEST
    clash = Clash(joint.prefill_stored.says, joint.decode_stored.says, change, places, why, severity)
    yield Broken(MEANING, clash, severity)


def _doubts(joint: Joint) -> Iterator[str]:
    """What was not known of either side, and what could not be decided of the two."""
    for role in (joint.prefill, joint.decode):
        if role.release > READ[role.engine]:
            yield f"what {role.engine} {role.release} does otherwise than {READ[role.engine]}, whose source was read"
    yield from joint.prefill_stored.unknown
    yield from joint.decode_stored.unknown
    for doubt in all_doubts():
        yield from doubt(joint)


def _remarks(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    for each in found:
        if each.clash.is_spurious:
            sentence = f"{each.rule.id} refuses what is compatible: {each.clash.detail}"
            yield Remark(each.clash.prefill, each.clash.decode, sentence, each.clash.change, each.clash.places)
    for remark in all_remarks():
        yield from remark(joint, found)
