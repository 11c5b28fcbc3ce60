"""A part that nobody has measured, laid over the catalog: it is planned with a wider band, not refused."""

import tempfile
from pathlib import Path

import diptych as dp

OVERLAY = """
accelerators:
  MyChip:
    vendor: Acme
    memory: 96GB
    memory_bandwidth: 2TB/s
    compute: {bf16: 400TFLOPS, fp8: 800TFLOPS}
    scaleup: {technology: mesh, bandwidth: 200GB/s, world: 8}
    tdp: 350W
    source: our own data sheet
offers:
  - {accelerator: MyChip, provider: lab, instance: box, gpus: 4, usd_per_hour: 4}
"""

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "ours.yaml"
    path.write_text(OVERLAY)
    catalog = dp.Catalog.load(path)

chip = catalog.accelerator("MyChip")
fp8 = dp.Precision(dp.Dtype.FP8, dp.Dtype.FP8, dp.Dtype.FP8)
worker = dp.Worker(catalog.model("Qwen3-32B"), chip, fp8, dp.Parallelism(tp=2))
timing = dp.default_perf().decode(worker, batch=32, context=4000)
print(f"{chip.name}: ridge point {chip.ridge_point:.0f} FLOP/byte")
print(f"decode step {float(timing.seconds) * 1e3:.1f} ms, floor {float(timing.floor) * 1e3:.1f} ms")
print(f"{timing.basis}, ±{timing.band:.0%}")
