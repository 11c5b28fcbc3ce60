"""Workers known by a kernel table or by DistServe's coefficients: their points, their lines, what is beyond them."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.perf.affine import AffineSteps
from diptych.perf.estimate import Basis
from diptych.perf.kernel_table import Grid, KernelTable, Line

CATALOG = Catalog.load()
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
WORKER = Worker(CATALOG.model("Llama-3.1-8B"), CATALOG.accelerator("RTX-4090"), BF16, Parallelism())
TABLE = KernelTable(
    Line(np.array([1.0, 11.0, 21.0]), np.array([1.0, 2.0, 5.0])),
    Line(np.array([1.0, 5.0]), np.array([0.1, 0.5])),
    Line(np.array([0.0, 100.0]), np.array([0.0, 1.0])),
    Grid(np.array([1.0, 3.0]), np.array([10.0, 20.0]), np.array([[1.0, 2.0], [3.0, 4.0]])),
    Grid(np.array([1.0, 3.0]), np.array([10.0, 20.0]), np.array([[2.0, 4.0], [6.0, 8.0]])),
    host=0.25,
)
STEPS = AffineSteps((1.0, 0.1, 0.01), (2.0, 0.001, 0.1), (0.5, 0.001, 0.2), 10)


def test_a_step_is_the_sum_of_its_kernels() -> None:
    assert TABLE.prefill(WORKER, 11).seconds == pytest.approx(0.25 + 2.0 + 0.1 + 11 * 5.5 / 100)
    assert TABLE.decode(WORKER, 2, 15).seconds == pytest.approx(0.25 + 1.1 + 0.2 + 2.5)
    assert TABLE.mixed(WORKER, 9, 0, 2, 15).seconds == pytest.approx(0.25 + 2.0 + 0.3 + 9 * 4.5 / 100 + 5.0)


def test_beyond_the_last_point_the_line_goes_on_and_says_so() -> None:
    far = TABLE.prefill(WORKER, np.array([21.0, 31.0]))
    assert far.seconds - TABLE.host == pytest.approx([5.0 + 0.1 + 21 * 10.5 / 100, 8.0 + 0.1 + 31 * 15.5 / 100])
    assert list(far.outside) == [False, True]
    assert bool(TABLE.decode(WORKER, 4, 15).outside)
    assert not bool(TABLE.decode(WORKER, 3, 20).outside)
    assert TABLE.decode(WORKER, 1, 1).seconds == TABLE.decode(WORKER, 1, 10).seconds


def test_coefficients_give_distserves_form() -> None:
    assert STEPS.prefill(WORKER, 10).seconds == pytest.approx(1.0 + 1.0 + 1.0)
    assert STEPS.prefill(WORKER, 10, 5, 2).seconds == pytest.approx(1.0 + 2 * (1.0 + 0.01 * 10 * 20))
    assert STEPS.decode(WORKER, 4, 100).seconds == pytest.approx(2.0 + 0.4 + 0.4)
    assert STEPS.decode(WORKER, 20, 100).seconds == pytest.approx(0.5 + 2.0 + 4.0)
    assert STEPS.decode(WORKER, 20, 100).basis is Basis.FITTED


def test_steps_do_not_get_shorter_where_two_lines_meet() -> None:
    batch = np.arange(1, 40)
    assert np.all(np.diff(STEPS.decode(WORKER, batch, 50.0).seconds) >= 0)
    assert np.all(STEPS.mixed(WORKER, 10, 0, batch, 50.0).seconds >= STEPS.decode(WORKER, batch, 50.0).seconds)
