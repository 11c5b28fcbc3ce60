"""The same model on five accelerators: which one belongs to prefill, which to decode?

A part's side is a matter of comparative advantage: prompts it prefills while it decodes one token for a full batch.
"""

import diptych as dp

catalog, perf = dp.Catalog.load(), dp.default_perf()
model = catalog.model("Llama-3.1-8B")
fp8 = dp.Precision(dp.Dtype.FP8, dp.Dtype.FP8, dp.Dtype.FP8)
w8a16 = dp.Precision(dp.Dtype.FP8, dp.Dtype.BF16, dp.Dtype.BF16)  # A100 multiplies no FP8, but can store weights in it

for name, precision in (("L40S", fp8), ("A100-80", w8a16), ("H100", fp8), ("H20", fp8), ("B200", fp8)):
    worker = dp.Worker(model, catalog.accelerator(name), precision, dp.Parallelism())
    prefill, decode = perf.prefill(worker, 2048), perf.decode(worker, batch=64, context=2048)
    print(
        f"{name:8s} prefill {float(prefill.seconds) * 1e3:6.1f} ms  decode {float(decode.seconds) * 1e3:5.1f} ms  "
        f"ratio {float(prefill.seconds / decode.seconds):4.1f}  {decode.basis} ±{decode.band:.0%}"
    )
