"""How a cluster names a node with an accelerator, and what it calls the accelerator and the NIC when a pod asks for them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from diptych.catalog.interconnect import Link, LinkKind

OWN_LABEL = "diptych/accelerator"
"""The label of nodes whose accelerator has no well-known one: the operator sets it."""


@dataclass(frozen=True, slots=True)
class Node:
    """The label that selects nodes, and the resource that a pod asks for."""

    label: str
    value: str
    resource: str

    @property
    def selector(self) -> dict[str, str]:
        return {self.label: self.value}

    @property
    def is_well_known(self) -> bool:
        """Whether a device plugin sets the label; otherwise the operator must."""
        return self.label != OWN_LABEL


def node(accelerator: str) -> Node:
    """The node of an accelerator of the catalog."""
    return _nodes().get(accelerator) or Node(OWN_LABEL, accelerator, "nvidia.com/gpu")


def network_resource(link: Link | None) -> str:
    """What a pod asks for to reach the fabric; empty where it needs nothing."""
    if link is None:
        return ""
    if link.name == "efa":
        return "vpc.amazonaws.com/efa"
    return {LinkKind.INFINIBAND: "rdma/ib", LinkKind.ROCE: "rdma/roce_gdr"}.get(link.kind, "")


@cache
def _nodes() -> dict[str, Node]:
    text = (files("diptych.deploy") / "data" / "nodes.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["accelerator"]: Node(row["label"], row["value"], row["resource"]) for row in rows}
