"""The tables of a comparison: ops, kernels, modules, lines, classes of time, and steps.

`measured` brings both runs into one form and `matching` pairs their keys; `deltas` then makes a row
per pair and decides what is noise (`are_noise`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.compare import measured
from gpuprof_widgets.analyses.compare.labels import run_names
from gpuprof_widgets.analyses.compare.line_matching import by_text
from gpuprof_widgets.analyses.compare.matching import (
    Pairs,
    by_function,
    by_name,
    with_same_cells,
    without_folders,
)
from gpuprof_widgets.analyses.compare.measured import Measured, measure_of
from gpuprof_widgets.analyses.owners import line_sources
from gpuprof_widgets.analyses.reasons import LACKS, why_empty
from gpuprof_widgets.analyses.regions import steps as steps_of
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE, SAMPLED

Numbers = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STEP, RUN = "step", "run"
MEASURE = "measure"
"""Key in a table's ``attrs``: the compared time, "device_self" or "cpu_self"."""

STEP_COLUMNS = (
    "step_a",
    "step_b",
    "change",
    "a_ns",
    "b_ns",
    "delta_ns",
    "gpu_busy_a_ns",
    "gpu_busy_b_ns",
)

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

    Both runs use the same names for the same cells (see `with_same_cells`); ``names`` tell
    the runs apart.
    """

    a: Record
    b: Record
    steps: tuple[int, int] | None
    names: tuple[str, str]
    earlier: Earlier = NO_OTHERS
    _kept: dict[tuple[Any, ...], pd.DataFrame] = field(default_factory=dict)

    def once(self, key: tuple[Any, ...], table: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Return a table computed once for all parts of a report; callers may change their copy."""
        if key not in self._kept:
            self._kept[key] = table()
        return self._kept[key].copy()

    @classmethod
    def of(cls, a: Record, b: Record, per: str | None, earlier: Earlier = NO_OTHERS) -> Runs:
        """Return the runs, per step if both have steps, unless ``per`` is "run" or "step"."""
        if per not in (STEP, RUN, None):
            raise OptionError(f"runs are compared per {STEP!r} or per {RUN!r}, not per {per!r}")
        counts = (len(steps_of(a)), len(steps_of(b)))
        if per == STEP and not all(counts):
            without = " and ".join(
                name for name, count in zip("ab", counts, strict=True) if not count
            )
            raise OptionError(
                f"there are no steps in {without}: record a loop with steps(), or a schedule of "
                "torch's profiler, or compare per 'run'"
            )
        steps = counts if all(counts) and per != RUN else None
        return cls(*with_same_cells(a, b), steps, run_names(a, b), earlier)


def ops(runs: Runs, measure: str | None) -> pd.DataFrame:
    """Compare ops by name and category (see `measured.ops`)."""
    chosen = measure_of(runs.a, runs.b, measure)
    return runs.once(("ops", chosen), lambda: _ops(runs, chosen))


def _ops(runs: Runs, chosen: str) -> pd.DataFrame:
    a, b = measured.ops(runs.a, chosen), measured.ops(runs.b, chosen)
    table = _with(deltas(a, b, by_name, runs.steps), chosen)
    return _or_lacking(table, "neither run has ops, runtime calls or annotations to compare")


def kernels(runs: Runs) -> pd.DataFrame:
    """Compare kernels by name and category (see `measured.kernels`)."""
    return runs.once(("kernels",), lambda: _kernels(runs))


def _kernels(runs: Runs) -> pd.DataFrame:
    a, b = measured.kernels(runs.a), measured.kernels(runs.b)
    table = _with(deltas(a, b, by_name, runs.steps), "device_self")
    return _or_lacking(table, "neither run has GPU work: there are no kernels to compare")


def modules(runs: Runs, measure: str | None) -> pd.DataFrame:
    """Compare modules by name and class (see `measured.modules`)."""
    chosen = measure_of(runs.a, runs.b, measure)
    return runs.once(("modules", chosen), lambda: _modules(runs, chosen))


def _modules(runs: Runs, chosen: str) -> pd.DataFrame:
    a, b = measured.modules(runs.a, chosen), measured.modules(runs.b, chosen)
    if len(a.keys) == len(b.keys) == 1:  # the one key stands for time in no module
        a, b = (measured.nothing(run) for run in (a, b))
    table = _with(deltas(a, b, by_name, runs.steps), chosen)
    return _or_lacking(table, "neither run has modules")


def lines(runs: Runs, measure: str | None) -> pd.DataFrame:
    """Compare cell lines by their text (see `line_matching.by_text`), else by number."""
    chosen = measure_of(runs.a, runs.b, measure)
    return runs.once(("lines", chosen), lambda: _lines(runs, chosen))


def _lines(runs: Runs, chosen: str) -> pd.DataFrame:
    a, b = measured.lines(runs.a, chosen), measured.lines(runs.b, chosen)
    sources = line_sources(runs.a), line_sources(runs.b)
    table = deltas(a, b, lambda keys_a, keys_b: by_text(keys_a, keys_b, *sources), runs.steps)
    return _or_lacking(
        _with(table, chosen), "neither run has cell lines: they were recorded without"
    )


def functions(runs: Runs) -> pd.DataFrame:
    """Compare Python functions (see `matching.by_function`) of the whole runs.

    Without columns of calls if a sampler recorded either run: it counts none.
    """
    return runs.once(("functions",), lambda: _functions(runs))


def _functions(runs: Runs) -> pd.DataFrame:
    a, b = measured.functions(runs.a), measured.functions(runs.b)
    if not len(a.keys) or not len(b.keys):
        a, b = measured.nothing(a), measured.nothing(b)
    differ = len(set(map(measured.python_recorder, (runs.a, runs.b)))) > 1
    pairing = partial(by_function, recorders_differ=differ)
    table = deltas(a, b, pairing, None)
    names = table["name"].astype(object)
    table = table.assign(name=names.map(without_folders))
    if any(run.metadata.get(SAMPLED) for run in (runs.a, runs.b)):
        table = _without_calls(table)
    return _or_lacking(
        table, "not both runs have Python functions: neither cProfile nor frames were recorded"
    )


def classes(runs: Runs) -> pd.DataFrame:
    """Compare the classes of `breakdown`."""
    return runs.once(("classes",), lambda: _classes(runs))


def _classes(runs: Runs) -> pd.DataFrame:
    per_step = runs.steps is not None
    a, b = (measured.classes(run, per_step=per_step) for run in (runs.a, runs.b))
    table = deltas(a, b, _by_class, runs.steps)
    table = _without_calls(table)
    return _or_lacking(table, "neither run has GPU work or CPU ops: there is nothing to break down")


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
    table = table.assign(delta_ns=table["b_ns"] - table["a_ns"])[list(STEP_COLUMNS)]
    table.attrs[PER] = RUN if runs.steps is None else STEP
    return table


def step_times(runs: Runs) -> tuple[Numbers, Numbers]:
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


def _by_class(a: pd.DataFrame, b: pd.DataFrame) -> Pairs:
    """Pair classes of time, which have the same names in both runs."""
    columns = ["class", "state"]
    pairs = by_name(a[columns], b[columns])
    return Pairs(pairs.names[columns], pairs.a, pairs.b)


def _without_calls(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=[name for name in table.columns if name.startswith("calls_")])


def _with(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    table.attrs[MEASURE] = measure
    return table


def _or_lacking(table: pd.DataFrame, why: str) -> pd.DataFrame:
    if not len(table) and not why_empty(table):
        table.attrs[LACKS] = why
    return table


def deltas(
    a: Measured, b: Measured, pairing: Pairing, steps: tuple[int, int] | None
) -> pd.DataFrame:
    """Return one row per paired or single key, those that moved the total most first.

    ``steps``: the number of steps of each run if both are compared per step; time outside of the
    steps does not count then. Columns: those of the keys, ``matched`` (see `matching`), ``change``,
    and `NUMBERS`: ``calls_`` and times (ns) of ``a``, ``b`` and their difference, per step or of
    the run; ``share`` (the difference as a share of all of a); the medians over the steps and
    their ``spread_ns`` (`spread`; NaN with fewer than two steps in either); ``total_a_ns`` and
    ``total_b_ns``: exact sums. The differences add up to the difference of the runs.

    ``change``: "added", "gone"; "same"; "noise" (`are_noise`); else "more" or "less".
    """
    pairs = pairing(a.keys, b.keys)
    size = len(pairs.names)
    counts = (0, 0) if steps is None else steps
    sides = [_Side(a, pairs.a, size, counts[0]), _Side(b, pairs.b, size, counts[1])]
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
        self.by_step: Numbers = np.zeros((size, max(steps, 1)))
        np.add.at(self.by_step, (row, run.step[counted] if steps else np.zeros(len(row), int)), ns)

    def per_step(self, sums: Ints) -> npt.NDArray[Any]:
        """Return the average per step, or the sums of the run if whole runs are compared."""
        return sums / self.steps if self.steps else sums


def spread(by_step: Numbers) -> Numbers:
    """Return how far the steps of one run lie apart, per row: the interquartile range.

    The middle half of the steps lies within it, whatever outliers there are (Tukey 1977; as in
    asv and criterion). Where that half is equal, as for an op that runs in every tenth step, the
    whole range is returned.
    """
    low, high = np.percentile(by_step, [25, 75], axis=1)
    middle: Numbers = high - low
    return np.where(middle > 0, middle, np.ptp(by_step, axis=1))


def are_noise(a: Numbers, b: Numbers) -> npt.NDArray[np.bool_]:
    """Return per row whether the steps of two runs (two or more each) differ by noise alone.

    They do where their medians are no further apart than the steps of one run (`spread`), unless
    every step of one run is beyond all steps of the other: with four or more steps each that
    happens by chance less than once in twenty times (the rank sum test of Mann and Whitney, 1947).
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
