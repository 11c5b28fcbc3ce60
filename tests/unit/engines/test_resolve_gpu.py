"""The accelerators that labels of nodes name, and what engines see of them."""

from __future__ import annotations

import pytest
from rule_pairs import CATALOG

from diptych.engines.resolve_gpu import Platform, labelled_accelerator, platform


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM-80GB"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "H100-SXM-80GB"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "H100-SXM-80GB"),
        ("nvidia-h100-mega-80gb", "H100-SXM-80GB"),
        ("NVIDIA-H100-PCIe", "H100-PCIe-80GB"),
        ("NVIDIA-H100-NVL", "H100-NVL-94GB"),
        ("NVIDIA-H20", "H20-96GB"),
        ("NVIDIA-H20-3e", "H20-96GB"),
        ("NVIDIA-H200", "H200-SXM-141GB"),
        ("NVIDIA-A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA-A100-80GB-PCIe", "A100-PCIe-80GB"),
        ("nvidia-tesla-t4", "T4"),
        ("Tesla-V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("NVIDIA-L40S", "L40S"),
        ("NVIDIA-GeForce-RTX-4090", "RTX-4090"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTX-PRO-6000-SE"),
        ("NVIDIA-B200", "B200-SXM"),
        ("NVIDIA-B300-SXM6-AC", "B300-SXM"),
        ("NVIDIA-GB200", "GB200"),
        ("AMD MI300X", "MI300X"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("AMD_Instinct_MI325_OAM", "MI325X"),
        ("AMD-Instinct-MI355X", "MI355X"),
        ("HL-325L", "Gaudi3"),
        ("Ascend910B3", "Ascend-910B3"),
    ],
)
def test_labels_of_nodes_name_accelerators(label, name):
    found = labelled_accelerator(label, CATALOG.find_accelerator)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("label", ["", "NVIDIA", "H", "NVIDIA-H999", "gpu", "cpu"])
def test_other_labels_name_nothing(label):
    assert labelled_accelerator(label, CATALOG.find_accelerator) is None


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("H100", Platform("cuda", "9.0")),
        ("H20", Platform("cuda", "9.0")),
        ("L40S", Platform("cuda", "8.9")),
        ("A10", Platform("cuda", "8.6")),
        ("A100", Platform("cuda", "8.0")),
        ("GB300", Platform("cuda", "10.3")),
        ("MI300X", Platform("rocm", "gfx942")),
        ("MI355X", Platform("rocm", "gfx950")),
        ("Gaudi3", Platform("hpu")),
        ("Groq-LPU-v1", None),
    ],
)
def test_platforms_by_the_longest_prefix(name, seen):
    assert platform(CATALOG.accelerator(name)) == seen


def test_what_a_platform_implies():
    amd, old, new = Platform("rocm", "gfx942"), Platform("cuda", "7.5"), Platform("cuda", "10.3")
    assert (amd.stores_fnuz, amd.buffer_device, amd.capability) == (True, "cuda", (0, 0))
    assert (old.has_bf16, new.has_bf16, new.capability) == (False, True, (10, 3))
    assert not Platform("rocm", "gfx950").stores_fnuz


def test_every_family_that_engines_serve_has_a_platform():
    from diptych.design.capability import CUSTOM, family

    unserved = {"unserved", "metax", "qaic", "apple", CUSTOM}
    missing = [
        each.name for each in CATALOG.accelerators.values() if family(each) not in unserved and not platform(each)
    ]
    assert missing == []
