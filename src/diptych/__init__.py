"""Plan LLM inference whose prefill and decode run on different accelerators.

```python
import diptych as dp

workload = dp.load_workload("azure2023_conv.csv.gz", rate=20)
plan = dp.plan("Llama-3.1-70B", workload, "ttft_p90<2s, tpot_p90<50ms", prices="aws")
print(plan.headline)
```
"""

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Model
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.errors import DiptychError, InvalidInput, NoFeasibleDesign
from diptych.metrics.slo import SLO
from diptych.perf.roofline import default_perf
from diptych.planner.ask import Pins
from diptych.planner.plan import Plan
from diptych.planner.planning import plan
from diptych.workload import load_workload
from diptych.workload.workload import Workload

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
