"""The table of differences: what each thing took in either run, and whether that is noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.compare.matching import Pairs
from gpuprof_widgets.analyses.compare.measured import Measured

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

ADDED, GONE, MORE, LESS, NOISE, SAME = "added", "gone", "more", "less", "noise", "same"
CHANGES = (ADDED, GONE, MORE, LESS, NOISE, SAME)

NUMBERS = (
    "calls_a",
    "calls_b",
    "calls_delta",
    "a_ns",
    "b_ns",
    "delta_ns",
    "share",
    "median_a_ns",
    "median_b_ns",
    "spread_ns",
    "total_a_ns",
    "total_b_ns",
)
ENOUGH_STEPS = 4
"""Of each run, for the order of their times alone to say something."""

PER = "per"
"""Key in a table's ``attrs``: "step" or "run", what its numbers are per."""

Pairing = Callable[[pd.DataFrame, pd.DataFrame], Pairs]


def deltas(
    a: Measured, b: Measured, pairing: Pairing, steps: tuple[int, int] | None
) -> pd.DataFrame:
    """One row per thing of either run, by how much it moved the total, the most first.

    ``steps``: how many each run has, where both are compared per step; what lies outside of the
    steps is left out then. Columns: those that name it, ``matched`` (see `matching`), ``change``,
    and `NUMBERS`: ``calls_`` and times (ns) of ``a``, ``b`` and their difference, per step or of
    the run; ``share`` (the difference as a share of all of a); the medians over the steps and
    their ``spread_ns`` (`spread`; NaN with fewer than two steps in either); ``total_a_ns`` and
    ``total_b_ns``: exact sums. The differences add up to the difference of the runs.

    ``change``: "added", "gone"; "same"; "noise" (`are_noise`); else "more" or "less".
    """
    pairs = pairing(a.keys, b.keys)
    size = len(pairs.names)
    sides = [_Side(side, rows, size, count) for side, rows, count in _sides(a, b, pairs, steps)]
    calls = [side.per_step(side.calls) for side in sides]
    mean = [side.per_step(side.total) for side in sides]
    known = steps is not None and min(steps) >= 2
    apart = (
        np.maximum(*(spread(side.by_step) for side in sides)) if known else np.full(size, np.nan)
    )
    median = [np.median(side.by_step, axis=1) if known else apart for side in sides]
    delta = mean[1] - mean[0]
    columns = {
        "change": _changes(sides, delta, known),
        "calls_a": calls[0],
        "calls_b": calls[1],
        "calls_delta": calls[1] - calls[0],
        "a_ns": mean[0],
        "b_ns": mean[1],
        "delta_ns": delta,
        "share": delta / max(float(np.sum(mean[0])), 1.0),
        "median_a_ns": median[0],
        "median_b_ns": median[1],
        "spread_ns": apart,
        "total_a_ns": sides[0].total,
        "total_b_ns": sides[1].total,
    }
    table = pairs.names.assign(**columns)
    # What neither run did (an op that a window keeps for its links) is no thing of either.
    table = table[np.logical_or(*(side.present for side in sides))]
    order = np.lexsort((-table["b_ns"].to_numpy(float), -np.abs(table["delta_ns"].to_numpy(float))))
    table = table.iloc[order].reset_index(drop=True)
    table.attrs[PER] = "run" if steps is None else "step"
    return table


def _sides(
    a: Measured, b: Measured, pairs: Pairs, steps: tuple[int, int] | None
) -> Sequence[tuple[Measured, Ints, int]]:
    counts = (0, 0) if steps is None else steps
    return ((a, pairs.a, counts[0]), (b, pairs.b, counts[1]))


class _Side:
    """Sums of one run per row of the table; of those of its entries that lie in steps, if asked."""

    def __init__(self, run: Measured, rows: Ints, size: int, steps: int) -> None:
        counted = run.step >= 0 if steps else np.ones(len(run.key), bool)
        row, ns = rows[run.key[counted]], run.ns[counted]
        self.steps = steps
        self.calls, self.total = np.zeros(size, np.int64), np.zeros(size, np.int64)
        np.add.at(self.calls, row, run.calls[counted])
        np.add.at(self.total, row, ns)
        self.present = (self.calls > 0) | (self.total > 0)
        self.by_step: Numbers = np.zeros((size, max(steps, 1)))
        np.add.at(self.by_step, (row, run.step[counted] if steps else np.zeros(len(row), int)), ns)

    def per_step(self, sums: Ints) -> npt.NDArray[Any]:
        """The sums of one step on average; of the run where nothing is compared per step."""
        return sums / self.steps if self.steps else sums


def spread(by_step: Numbers) -> Numbers:
    """How far the steps of one run lie apart, per row: the interquartile range.

    The middle half of the steps lies within it, whatever outliers there are (Tukey 1977; as in
    asv and criterion). Where that half is equal, as with what runs in every tenth step, it is the
    whole range.
    """
    low, high = np.percentile(by_step, [25, 75], axis=1)
    middle: Numbers = high - low
    return np.where(middle > 0, middle, np.ptp(by_step, axis=1))


def are_noise(a: Numbers, b: Numbers) -> npt.NDArray[np.bool_]:
    """Per row whether the steps of two runs (at least two of each) differ by no more than noise.

    That is so where their medians are no further apart than the steps of one run (`spread`), unless
    each of the one is beyond all of the other: of four steps and more that happens by chance less
    often than once in twenty times (the rank sum test of Mann and Whitney, 1947).
    """
    within = np.abs(np.median(b, axis=1) - np.median(a, axis=1)) <= np.maximum(spread(a), spread(b))
    apart = (a.max(axis=1) < b.min(axis=1)) | (b.max(axis=1) < a.min(axis=1))
    enough = min(a.shape[1], b.shape[1]) >= ENOUGH_STEPS
    noise: npt.NDArray[np.bool_] = within & ~(apart & enough)
    return noise


def _changes(sides: list[_Side], delta: Numbers, known: bool) -> npt.NDArray[np.object_]:
    change = np.where(delta > 0, MORE, LESS).astype(object)
    if known:
        change[are_noise(*(side.by_step for side in sides))] = NOISE
    change[delta == 0] = SAME
    change[~sides[0].present] = ADDED
    change[~sides[1].present] = GONE
    return change
