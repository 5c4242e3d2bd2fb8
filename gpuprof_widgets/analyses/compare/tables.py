"""The tables of a comparison: ops, kernels, modules, functions, classes of time, and steps.

`measured` brings both runs into one form and pairs their keys; `deltas` then makes a row per pair
and decides what is noise (`are_noise`). `lines` adds the table of lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.compare import measured
from gpuprof_widgets.analyses.compare.measured import (
    Measured,
    Pairs,
    by_function,
    by_name,
    measure_of,
    run_names,
    with_same_cell,
    without_folders,
)
from gpuprof_widgets.analyses.reasons import IN_NO_MODULE, LACKS, says_if_empty
from gpuprof_widgets.analyses.regions import steps as steps_of
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.arrays import Floats, Ints, Mask
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE, SAMPLED

STEP, RUN = "step", "run"
MEASURE = "measure"
"""Key in a table's ``attrs``: the compared time, "device_self" or "cpu_self"."""

ADDED, GONE, MORE, LESS, NOISE, SAME = "added", "gone", "more", "less", "noise", "same"

ENOUGH_STEPS = 4
"""Steps of each run from which on the order of their times alone is significant."""

PER = "per"
"""Key in a table's ``attrs``: whether its numbers are per "step" or per "run"."""

Pairing = Callable[[pd.DataFrame, pd.DataFrame], Pairs]


@dataclass(frozen=True)
class Earlier:
    """What is known of other runs of the same cell: how long those of a's code took, ns.

    ``times_ns``: medians of their steps, or whole runs, without the first run and a itself;
    ``a_is_first``: a was the first run of the cell in its process.
    """

    times_ns: tuple[int, ...] = ()
    a_is_first: bool = False


NO_OTHERS = Earlier()


@dataclass(frozen=True, eq=False)
class Runs:
    """Two runs, and the number of steps of each, or None if whole runs are compared.

    Both runs use the same names for the same cells (see `with_same_cell`); ``names`` tell the
    runs apart.
    """

    a: Record
    b: Record
    steps: tuple[int, int] | None
    names: tuple[str, str]
    earlier: Earlier = NO_OTHERS

    @classmethod
    def of(cls, a: Record, b: Record, per: str | None, earlier: Earlier = NO_OTHERS) -> Runs:
        """Return the runs, per step if both have steps, unless ``per`` is "run" or "step"."""
        if per not in (STEP, RUN, None):
            raise OptionError(f"runs are compared per {STEP!r} or per {RUN!r}, not per {per!r}")
        counts = (len(steps_of(a)), len(steps_of(b)))
        if per == STEP and not all(counts):
            without = " and ".join(
                run for run, count in zip("ab", counts, strict=True) if not count
            )
            raise OptionError(
                f"there are no steps in {without}: record a loop with steps(), or a schedule of "
                "torch's profiler, or compare per 'run'"
            )
        steps = counts if all(counts) and per != RUN else None
        return cls(*with_same_cell(a, b), steps, run_names(a, b), earlier)


@remembered
@says_if_empty("neither run has ops, runtime calls or annotations to compare")
def ops(runs: Runs, measure: str | None) -> pd.DataFrame:
    """Compare ops by name and category (see `measured.ops`)."""
    return by_measure(runs, measure, measured.ops, by_name)


@remembered
@says_if_empty("neither run has GPU work: there are no kernels to compare")
def kernels(runs: Runs) -> pd.DataFrame:
    """Compare kernels by name and category (see `measured.kernels`)."""
    return by_measure(runs, "device_self", lambda run, _: measured.kernels(run), by_name)


@remembered
@says_if_empty("neither run has modules: they were recorded without")
def modules(runs: Runs, measure: str | None) -> pd.DataFrame:
    """Compare modules by name and class (see `measured.modules`)."""
    return by_measure(runs, measure, measured.modules, by_name)


def by_measure(
    runs: Runs, measure: str | None, entries: Callable[[Record, str], Measured], pairing: Pairing
) -> pd.DataFrame:
    """Compare the entries of both runs by a measure; None: the GPU's if both have GPU time."""
    chosen = measure_of(runs.a, runs.b, measure)
    a, b = entries(runs.a, chosen), entries(runs.b, chosen)
    if all(run.keys.iloc[:, 0].tolist() == [IN_NO_MODULE] for run in (a, b)):
        a, b = measured.nothing(a), measured.nothing(b)
    table = deltas(a, b, pairing, runs.steps)
    table.attrs[MEASURE] = chosen
    return table


@remembered
@says_if_empty("not both runs have Python functions: neither cProfile nor frames were recorded")
def functions(runs: Runs) -> pd.DataFrame:
    """Compare Python functions (see `measured.by_function`) of the whole runs.

    Without columns of calls if a sampler recorded either run: it counts none. Each recorder slows
    functions down in its own way, so what two of them recorded is not compared.
    """
    a, b = measured.functions(runs.a), measured.functions(runs.b)
    of_a, of_b = (measured.python_recorder(run) or "another program" for run in (runs.a, runs.b))
    are_recorded = len(a.keys) > 0 and len(b.keys) > 0
    if not are_recorded or of_a != of_b:
        a, b = measured.nothing(a), measured.nothing(b)
    table = deltas(a, b, by_function, None)
    table = table.assign(name=table["name"].astype(object).map(without_folders))
    if any(run.metadata.get(SAMPLED) for run in (runs.a, runs.b)):
        table = _without_calls(table)
    if are_recorded and of_a != of_b:
        table.attrs[LACKS] = (
            f"{of_a} recorded A's Python functions, {of_b} B's: each slows them down in its own "
            "way, so they cannot be compared"
        )
    return table


@remembered
@says_if_empty("neither run has GPU work or CPU ops: there is nothing to break down")
def classes(runs: Runs) -> pd.DataFrame:
    """Compare the classes of `breakdown`."""
    a, b = (measured.classes(run, per_step=runs.steps is not None) for run in (runs.a, runs.b))
    table = _without_calls(deltas(a, b, by_name, runs.steps))
    return table.drop(columns=["matched", "name_a", "name_b"])


def steps(runs: Runs) -> pd.DataFrame:
    """Compare the steps in the order in which they ran; without steps, the whole runs."""
    tables = [_steps_or_run(run, runs.steps is not None) for run in (runs.a, runs.b)]
    size = max(map(len, tables))
    a, b = (table.reindex(range(size)) for table in tables)
    delta = (b["dur_ns"] - a["dur_ns"]).to_numpy(float)
    change = np.where(delta > 0, MORE, LESS).astype(object)
    change[np.abs(delta) <= spread_of_steps(runs)] = NOISE
    change[delta == 0] = SAME
    change[a["dur_ns"].isna()] = ADDED
    change[b["dur_ns"].isna()] = GONE
    columns = {
        "step_a": a["step"].fillna(NONE).astype(np.int64),
        "step_b": b["step"].fillna(NONE).astype(np.int64),
        "change": change,
        "a_ns": a["dur_ns"].fillna(0).astype(np.int64),
        "b_ns": b["dur_ns"].fillna(0).astype(np.int64),
        "gpu_busy_a_ns": a["gpu_busy_ns"].fillna(0).astype(np.int64),
        "gpu_busy_b_ns": b["gpu_busy_ns"].fillna(0).astype(np.int64),
    }
    table = pd.DataFrame(columns)
    table.insert(5, "delta_ns", table["b_ns"] - table["a_ns"])
    table.attrs[PER] = RUN if runs.steps is None else STEP
    return table


def step_times(runs: Runs) -> tuple[Floats, Floats]:
    """Return how long (ns) each step of either run took; without steps, the run."""
    a, b = (_steps_or_run(run, runs.steps is not None)["dur_ns"] for run in (runs.a, runs.b))
    return a.to_numpy(float), b.to_numpy(float)


def spread_of_steps(runs: Runs) -> float:
    """Return how far the steps of one run lie apart, ns; NaN with fewer than two in either."""
    if runs.steps is None or min(runs.steps) < 2:
        return float("nan")
    return float(max(spread(times[None, :])[0] for times in step_times(runs)))


def _steps_or_run(run: Record, has_steps: bool) -> pd.DataFrame:
    if has_steps:
        return steps_of(run)
    busy = measured.busy_ns(run)
    return pd.DataFrame({"step": [NONE], "dur_ns": [run.trace.span_ns], "gpu_busy_ns": [busy]})


def _without_calls(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=[name for name in table.columns if name.startswith("calls_")])


def deltas(
    a: Measured, b: Measured, pairing: Pairing, steps: tuple[int, int] | None
) -> pd.DataFrame:
    """Return one row per paired or single key, those that moved the total most first.

    ``steps``: the number of steps of each run if both are compared per step; time outside of the
    steps does not count then. Columns: those of the pairs' names, ``change``; ``calls_`` and times
    (ns) of ``a``, ``b`` and their difference, per step or of the run; ``share`` (the difference as
    a share of all of a); the medians over the steps and their ``spread_ns`` (`spread`; NaN with
    fewer than two steps in either); ``total_a_ns`` and ``total_b_ns``: exact sums. The differences
    add up to the difference of the runs.

    ``change``: "added", "gone"; "same"; "noise" (`are_noise`); else "more" or "less".
    """
    pairs = pairing(a.keys, b.keys)
    size = len(pairs.names)
    counts = (0, 0) if steps is None else steps
    sides = [_Side(a, pairs.a, size, counts[0]), _Side(b, pairs.b, size, counts[1])]
    calls = [side.per_step(side.calls) for side in sides]
    mean = [side.per_step(side.total) for side in sides]
    delta = mean[1] - mean[0]
    apart, median = np.full(size, np.nan), [np.full(size, np.nan)] * 2
    change = np.where(delta > 0, MORE, LESS).astype(object)
    if steps is not None and min(steps) >= 2:
        by_step = [side.by_step for side in sides]
        apart = np.maximum(*map(spread, by_step))
        median = [np.median(each, axis=1) for each in by_step]
        change[are_noise(*by_step)] = NOISE
    change[delta == 0] = SAME
    change[~sides[0].present] = ADDED
    change[~sides[1].present] = GONE
    columns = {
        "change": change,
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
    # An op that a window keeps only for its links has neither calls nor time in any run.
    table = table[np.logical_or(*(side.present for side in sides))]
    order = np.lexsort((-table["b_ns"].to_numpy(float), -np.abs(table["delta_ns"].to_numpy(float))))
    table = table.iloc[order].reset_index(drop=True)
    table.attrs[PER] = RUN if steps is None else STEP
    return table


class _Side:
    """The sums of one run per row of the table; of entries in steps only, if it has ``steps``."""

    def __init__(self, run: Measured, rows: Ints, size: int, steps: int) -> None:
        counted = run.step >= 0 if steps else np.ones(len(run.key), bool)
        row, ns = rows[run.key[counted]], run.ns[counted]
        self.steps = steps
        self.calls, self.total = np.zeros(size, np.int64), np.zeros(size, np.int64)
        np.add.at(self.calls, row, run.calls[counted])
        np.add.at(self.total, row, ns)
        self.present = (self.calls > 0) | (self.total > 0)
        self.by_step: Floats = np.zeros((size, max(steps, 1)))
        np.add.at(self.by_step, (row, run.step[counted] if steps else np.zeros(len(row), int)), ns)

    def per_step(self, sums: Ints) -> npt.NDArray[Any]:
        """Return the average per step, or the sums of the run if whole runs are compared."""
        return sums / self.steps if self.steps else sums


def spread(by_step: Floats) -> Floats:
    """Return how far the steps of one run lie apart, per row: the interquartile range.

    The middle half of the steps lies within it, whatever outliers there are (Tukey 1977; as in
    asv and criterion). Where that half is equal, as for an op that runs in every tenth step, the
    whole range is returned.
    """
    low, high = np.percentile(by_step, [25, 75], axis=1)
    middle: Floats = high - low
    return np.where(middle > 0, middle, np.ptp(by_step, axis=1))


def are_noise(a: Floats, b: Floats) -> Mask:
    """Return per row whether the steps of two runs (two or more each) differ by noise alone.

    They do where their medians are no further apart than the steps of one run (`spread`), unless
    every step of one run is beyond all steps of the other: with four or more steps each that
    happens by chance less than once in twenty times (the rank sum test of Mann and Whitney, 1947).
    """
    within = np.abs(np.median(b, axis=1) - np.median(a, axis=1)) <= np.maximum(spread(a), spread(b))
    apart = (a.max(axis=1) < b.min(axis=1)) | (b.max(axis=1) < a.min(axis=1))
    enough = min(a.shape[1], b.shape[1]) >= ENOUGH_STEPS
    noise: Mask = within & ~(apart & enough)
    return noise
