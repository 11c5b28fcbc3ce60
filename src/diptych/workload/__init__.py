"""What is asked: lengths and arrivals, from presets or from traces."""

from diptych.workload.compress import compress
from diptych.workload.lengths import Lengths
from diptych.workload.load import load_workload
from diptych.workload.workload import Arrivals, Workload

__all__ = ["Arrivals", "Lengths", "Workload", "compress", "load_workload"]
