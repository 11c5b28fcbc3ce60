"""Fit two factors of the shipped model on the first 150 requests of three vLLM runs; write tests/data/sim/vllm_fits.json.

The other 150 requests of each run are what `tests/published/test_sim_vllm.py` checks. Factors are those of `perf/calibrate.py`;
everything else stays as shipped without a calibration.

Run: .venv/bin/python benchmarks/fit_vllm_halves.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "published"))

import truth_vllm as truth  # noqa: E402

from diptych.perf.calibrate import NEUTRAL  # noqa: E402

FACTORS = {
    truth.PRO8B: ("memory", "compute_linear"),
    truth.DENSE: ("collective", "compute_linear"),
    truth.SPARSE: ("memory", "compute_linear"),
}


def fit(run: truth.Run, names: tuple[str, ...]) -> dict[str, float]:
    """Least squares of the relative errors of E2E and TPOT of the first half, by Nelder and Mead."""
    seen, half = truth.measured(run), slice(0, truth.HALF)

    def factors(logs: np.ndarray) -> dict[str, float]:
        return {name: float(NEUTRAL[name] * np.exp(log)) for name, log in zip(names, logs, strict=True)}

    def loss(logs: np.ndarray) -> float:
        found = truth.simulated(run, truth.calibrated(factors(logs)))
        return float(sum(np.mean((found[of][half] / seen[of][half] - 1) ** 2) for of in ("e2e", "tpot")))

    start = np.vstack([np.zeros(len(names)), -0.2 * np.eye(len(names))])
    options = {"maxfev": 80, "xatol": 1e-3, "fatol": 1e-7, "initial_simplex": start}
    best = minimize(loss, start[0], method="Nelder-Mead", options=options)
    return {name: round(value, 4) for name, value in factors(best.x).items()}


def main() -> None:
    fits = {run.name: fit(run, names) for run, names in FACTORS.items()}
    document = {"note": "fitted on requests 1 to 150 of each run by benchmarks/fit_vllm_halves.py", "runs": fits}
    (HERE.parent / "tests" / "data" / "sim" / "vllm_fits.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(fits, indent=1))


if __name__ == "__main__":
    main()
