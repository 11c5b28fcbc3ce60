"""Plan LLM inference whose prefill and decode run on different accelerators.

```python
import diptych as dp

workload = dp.load_workload("azure2023_conv.csv.gz", rate=20)
plan = dp.plan("Llama-3.1-70B", workload, "ttft_p90<2s, tpot_p90<50ms", prices="aws")
print(plan.headline)
```
"""

import typing as _typing
from importlib import import_module as _import

if _typing.TYPE_CHECKING:
    from diptych.catalog.accelerator import Accelerator
    from diptych.catalog.catalog import Catalog
    from diptych.catalog.dtype import Dtype
    from diptych.catalog.model import Model
    from diptych.design.axes import Parallelism, Precision, Worker
    from diptych.errors import DiptychError, InvalidInput, NoFeasibleDesign
    from diptych.metrics.slo import SLO
    from diptych.perf.roofline import default_perf
    from diptych.planner.pins import Pins
    from diptych.planner.plan import Plan
    from diptych.planner.planning import plan
    from diptych.workload import load_workload
    from diptych.workload.workload import Workload

_ROOMS = {
    "SLO": "diptych.metrics.slo",
    "Accelerator": "diptych.catalog.accelerator",
    "Catalog": "diptych.catalog.catalog",
    "DiptychError": "diptych.errors",
    "Dtype": "diptych.catalog.dtype",
    "InvalidInput": "diptych.errors",
    "Model": "diptych.catalog.model",
    "NoFeasibleDesign": "diptych.errors",
    "Parallelism": "diptych.design.axes",
    "Pins": "diptych.planner.ask",
    "Plan": "diptych.planner.plan",
    "Precision": "diptych.design.axes",
    "Worker": "diptych.design.axes",
    "Workload": "diptych.workload.workload",
    "default_perf": "diptych.perf.roofline",
    "load_workload": "diptych.workload",
    "plan": "diptych.planner.planning",
}
"""Where each public name lives; loaded when first asked for, so that a quick command does not wait for the whole house."""

__all__ = [
    "SLO",
    "Accelerator",
    "Catalog",
    "DiptychError",
    "Dtype",
    "InvalidInput",
    "Model",
    "NoFeasibleDesign",
    "Parallelism",
    "Pins",
    "Plan",
    "Precision",
    "Worker",
    "Workload",
    "default_perf",
    "load_workload",
    "plan",
]


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module 'diptych' has no name {name!r}")
    value: object = getattr(_import(_ROOMS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
