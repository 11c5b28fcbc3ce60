"""What earlier releases of vLLM refused and the one that was read no longer does (VN31)."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.engines.engine import Version, Versions
from diptych.engines.resolve import Joint
from diptych.engines.rule import Clash, Severity
from diptych.engines.rules.vllm_pair import is_nixl, vllm_rule


def _gathered_ranks(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    if is_nixl(joint) and prefill.tp > decode.tp:
        yield Clash(
            f"TP {prefill.tp}",
            f"TP {decode.tp}",
            f"upgrade both roles to vLLM 0.12 or later, or set --tensor-parallel-size {prefill.tp} on decode",
            (prefill.place("tp"), decode.place("tp")),
        )


RULES = (
    vllm_rule(
        "VN31",
        Severity.REQUEST,
        "Before 0.12, decode has at least as many ranks as prefill.",
        _gathered_ranks,
        "https://github.com/vllm-project/vllm/issues/43523 and https://github.com/vllm-project/vllm/pull/27274, of which a "
        "maintainer says that releases before it lack this; its first release was not checked",
        "Decode TP cannot be smaller than prefill TP",
        Versions(end=Version((0, 12, 0))),
    ),
)
