"""Rules on the path between two workers: which link joins which offers, and where it ends."""

from __future__ import annotations

from diptych.catalog.interconnect import LinkKind
from diptych.design.boundary import Placement
from diptych.design.ruling import Pair, Setting
from diptych.units import GB

RDMA_FLOOR = 100e9 / 8
"""Bytes/s of a whole instance's NIC from which clouds sell RDMA (EFA, InfiniBand, RoCE); offers do not say it outright."""
ONE_STACK = ("ib-400g", "ib-400g-mooncake", "ib-200g", "roce-200g", "roce-100g", "tcp-100g-ucx")
"""Links of the catalog that were measured on one software stack, kept for comparison and for users who run it."""
HOSTED = ("Google", "Apple")
_TECHNOLOGIES = {"xgmi": "infinity fabric"}


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
