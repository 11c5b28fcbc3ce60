"""Workers known by a probe: their points come back, the lines between them rise, what was held out is not fitted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.perf.estimate import Basis
from diptych.perf.probed import LEAST_BAND, Decodes, DecodeStep, Probed, Prompts, PromptStep, Steps, affine

CATALOG = Catalog.load()
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
ONE = Worker(CATALOG.model("Llama-3.1-8B"), CATALOG.accelerator("RTX-4090"), BF16, Parallelism())
TWO = Worker(CATALOG.model("Llama-3.1-8B"), CATALOG.accelerator("RTX-4090"), BF16, Parallelism(tp=2))
SIZES, PAIR, TOKEN = (16, 64, 256, 1024), 3e-7, 2e-6


def prompt_seconds(tokens: float, past: float = 0.0) -> float:
    return 0.01 + 0.002 * tokens + PAIR * tokens * past


def step_seconds(batch: float, context: float) -> float:
    return 0.02 + 0.005 * batch + TOKEN * batch * context


PROMPTS = [
    *(PromptStep(size, 0, prompt_seconds(size)) for size in SIZES),
    *(PromptStep(tokens, past, prompt_seconds(tokens, past)) for tokens, past in ((32, 256), (64, 512))),
    PromptStep(100, 0, prompt_seconds(100), held=True),
]
DECODES = [
    *(DecodeStep(batch, context, step_seconds(batch, context)) for batch in (1, 4, 8) for context in (30, 300)),
    DecodeStep(6, 100, step_seconds(6, 100), held=True),
]
PERF = Probed({ONE: Steps(Prompts.fit(PROMPTS)), TWO: Steps(None, Decodes.fit(DECODES))})


def test_an_affine_worker_is_found_again() -> None:
    assert PERF.prefill(ONE, 500, 100).seconds == pytest.approx(prompt_seconds(500, 100))
    assert PERF.decode(TWO, np.array([2, 8, 12]), 50).seconds == pytest.approx(
        [step_seconds(b, 50) for b in (2, 8, 12)]
    )
    assert PERF.decode(TWO, 2, 50).basis is Basis.MEASURED
    assert PERF.prefill(ONE, 500).band == PERF.decode(TWO, 2, 50).band == LEAST_BAND


def test_a_step_with_both_takes_the_sum() -> None:
    both = PERF.mixed(ONE, 64, 0, 4, 100).seconds
    assert both == pytest.approx(prompt_seconds(64) + step_seconds(4, 100))
    assert PERF.mixed(ONE, 0, 0, 4, 100).seconds == pytest.approx(step_seconds(4, 100))


def test_prompts_together_have_fewer_pairs_than_one_as_long() -> None:
    one, four = (PERF.prefill(ONE, *given).seconds for given in ((512,), (128, 0, 4)))
    assert one - four == pytest.approx(PAIR * 128**2 * 6)


def test_a_worker_that_never_did_it_takes_as_long_as_one_that_did() -> None:
    assert PERF.prefill(TWO, 64).seconds == PERF.prefill(ONE, 64).seconds
    assert PERF.decode(ONE, 3, 9).seconds == PERF.decode(TWO, 3, 9).seconds


def test_beyond_what_was_measured_it_says_so() -> None:
    assert [bool(PERF.prefill(ONE, n).outside) for n in (1024, 1025)] == [False, True]
    assert [bool(PERF.decode(TWO, n, 50).outside) for n in (8, 9)] == [False, True]


def test_what_is_held_out_is_not_fitted_but_widens_the_band() -> None:
    far = [*PROMPTS, PromptStep(128, 0, 2 * prompt_seconds(128), held=True)]
    assert np.array_equal(Prompts.fit(far).seconds, Prompts.fit(PROMPTS).seconds)
    assert Prompts.fit(far).band == pytest.approx(0.5)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(1e-4, 10)), min_size=1, max_size=12))
def test_whatever_was_measured_more_tokens_never_take_less(points: list[tuple[int, float]]) -> None:
    fit = Prompts.fit([PromptStep(size, 0, seconds) for size, seconds in points])
    assert np.all(np.diff(fit.at(np.arange(1, 1500), 0)) >= -1e-12)
    assert min(s for _, s in points) - 1e-12 <= fit.at(1, 0) <= max(s for _, s in points) + 1e-12


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1e-5, 1)), min_size=1, max_size=9))
def test_a_line_through_points_never_falls_nor_begins_below_zero(points: list[tuple[float, float]]) -> None:
    constant, slope = affine(points)
    assert constant >= 0
    assert slope >= 0
    assert constant + slope * 1e4 > 0
