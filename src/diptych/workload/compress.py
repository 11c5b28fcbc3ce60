"""A distribution of lengths in fewer points, with the same means and nearly the same tails."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from diptych.workload.lengths import Lengths

_FLOAT = NDArray[np.float64]


def compress(lengths: Lengths, points: int) -> Lengths:
    """At most `points` weighted points standing for `lengths`.

    Cells are split where that removes most of the variance (each length in units of its mean), and every cell becomes its
    weighted mean: weighted means of `isl`, `osl` and `cached` are kept to rounding, no length leaves its range, and second
    moments, which queues depend on, lose only what is left inside the cells. The request with the largest context keeps a
    point of its own, so that memory checks see it. Deterministic. Raises `ValueError` below one point.
    """
    if points < 1:
        raise ValueError(f"{points} points cannot stand for a distribution")
    merged = merge(lengths)
    if len(merged) <= points:
        return merged
    values = np.column_stack([merged.isl, merged.osl, merged.cached])
    scaled = values / np.maximum(merged.weight @ values, 1e-12)
    cells = _split(scaled, merged.weight, points, int(np.argmax(merged.isl + merged.osl)))
    weight = np.array([merged.weight[cell].sum() for cell in cells])
    means = np.array([merged.weight[cell] @ values[cell] for cell in cells]) / weight[:, None]
    lows, highs = (np.array([edge(values[cell], axis=0) for cell in cells]) for edge in (np.min, np.max))
    isl, osl, cached = np.clip(means, lows, highs).astype(np.float64).T  # a mean may round past the values it averages
    order = np.lexsort((cached, osl, isl))
    return Lengths(isl[order], osl[order], np.minimum(cached, isl)[order], weight[order])


def merge(lengths: Lengths) -> Lengths:
    """Equal points put together, in order of ISL, OSL and cached tokens."""
    order = np.lexsort(
        (lengths.weight, lengths.cached, lengths.osl, lengths.isl)
    )  # weights too: sums round alike in any order
    order = order[lengths.weight[order] > 0]
    isl, osl, cached, weight = (side[order] for side in (lengths.isl, lengths.osl, lengths.cached, lengths.weight))
    new = (np.diff(isl, prepend=-1) != 0) | (np.diff(osl, prepend=-1) != 0) | (np.diff(cached, prepend=-1) != 0)
    starts = np.flatnonzero(new)
    return Lengths(isl[starts], osl[starts], cached[starts], np.add.reduceat(weight, starts))


def _split(scaled: _FLOAT, weight: _FLOAT, points: int, largest: int) -> list[NDArray[np.intp]]:
    everything = np.arange(len(scaled))
    cells = [everything] if points == 1 else [everything[everything != largest], np.array([largest])]
    queue: list[tuple[float, int]] = []
    cuts: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
    for number in range(len(cells)):
        _consider(number, cells, scaled, weight, queue, cuts)
    while len(cells) < points and queue:
        _, number = heapq.heappop(queue)
        cells[number], other = cuts.pop(number)
        cells.append(other)
        for changed in (number, len(cells) - 1):
            _consider(changed, cells, scaled, weight, queue, cuts)
    return cells


def _consider(number: int, cells: list[NDArray[np.intp]], scaled: _FLOAT, weight: _FLOAT, queue: list[tuple[float, int]],
              cuts: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]]) -> None:  # fmt: skip
    """Queue a cell by the variance its best cut removes; ties go to the older cell."""
    cell = cells[number]
    if len(cell) < 2:
        return
    best, sides = max((_best_cut(cell, scaled[cell, axis], weight[cell]) for axis in range(scaled.shape[1])),
                      key=lambda cut: cut[0])  # fmt: skip
    if sides is not None:
        cuts[number] = sides
        heapq.heappush(queue, (-best, number))


def _best_cut(cell: NDArray[np.intp], values: _FLOAT, weight: _FLOAT
              ) -> tuple[float, tuple[NDArray[np.intp], NDArray[np.intp]] | None]:  # fmt: skip
    """The cut along one length that removes most variance: w₁w₂/(w₁+w₂)·(m₁−m₂)² over all places between unequal values."""
    order = np.argsort(values, kind="stable")
    ordered, mass = values[order], np.cumsum(weight[order])
    moment = np.cumsum(weight[order] * ordered)
    places = np.flatnonzero(ordered[1:] > ordered[:-1])
    if not len(places):
        return -1.0, None
    left, right = mass[places], mass[-1] - mass[places]
    right = np.maximum(right, 1e-300)
    gap = moment[places] / left - (moment[-1] - moment[places]) / right
    gains = left * right / mass[-1] * gap**2
    place = int(np.argmax(gains))
    cut = places[place] + 1
    return float(gains[place]), (np.sort(cell[order[:cut]]), np.sort(cell[order[cut:]]))
