"""Plan Llama-3.1-70B for a real hour of chat, with AWS prices, and ask what would change the answer."""

import diptych as dp

workload = dp.load_workload("azure2023_conv.csv.gz", rate=20)
plan = dp.plan("Llama-3.1-70B", workload, "ttft_p90<2s, tpot_p90<50ms", prices="aws")

print(plan.verdict.answer)
for option in (plan.best, plan.disaggregated, plan.colocated):
    print(f"{option.usd_per_hour:7.2f} USD/h  TTFT p90 {option.ttft.p90:.2f} s  {option.label}")
print(f"{plan.space.cartesian:.1e} designs, {plan.space.effective:.1e} of them possible, {plan.space.sized} sized")
for flip in plan.sensitivity[:3]:
    print(flip.sentence)
