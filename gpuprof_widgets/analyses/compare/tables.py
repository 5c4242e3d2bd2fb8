"""The tables of a comparison: ops, kernels, modules, lines, classes of time, and steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.compare import measured
from gpuprof_widgets.analyses.compare.deltas import (
    ADDED,
    GONE,
    LESS,
    MORE,
    NOISE,
    PER,
    SAME,
    are_noise,
    deltas,
    spread,
)
from gpuprof_widgets.analyses.compare.matching import (
    Pairs,
    by_function,
    by_name,
    by_text,
    without_folders,
)
from gpuprof_widgets.analyses.compare.measured import measure_of
from gpuprof_widgets.analyses.compare.same_cells import with_same_cells
from gpuprof_widgets.analyses.line_sources import line_sources
from gpuprof_widgets.analyses.steps import steps as steps_of
from gpuprof_widgets.analyses.table_with_reason import LACKS, what_is_lacking
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE, SAMPLED

Numbers = npt.NDArray[np.float64]

STEP, RUN = "step", "run"
MEASURE = "measure"
"""Key in a table's ``attrs``: "device_self" or "cpu_self", which time it compares."""

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


@dataclass(frozen=True, eq=False)
class Runs:
    """Two runs, and how many steps each has where they are compared per step (else None).

    Both name the same cells alike (see `same_cells`); ``names`` are the runs' own.
    """

    a: Record
    b: Record
    steps: tuple[int, int] | None
    names: tuple[str, str]
    _kept: dict[tuple[Any, ...], pd.DataFrame] = field(default_factory=dict)

    def once(self, key: tuple[Any, ...], table: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A table that several parts of a report ask for; each caller gets a copy to change."""
        if key not in self._kept:
            self._kept[key] = table()
        return self._kept[key].copy()

    @classmethod
    def of(cls, a: Record, b: Record, per: str | None) -> Runs:
        """Per step where both runs have steps, unless ``per`` says "run" or demands "step"."""
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
        return cls(*with_same_cells(a, b), steps, (_name(a), _name(b)))


def _name(run: Record) -> str:
    """A run's label, or the name of its file; "" where it has neither."""
    return str(
        run.metadata.get("label") or str(run.metadata.get("source") or "").rsplit("/", 1)[-1]
    )


def ops(runs: Runs, measure: str | None) -> pd.DataFrame:
    """By name and category (see `measured.ops`)."""
    chosen = measure_of(runs.a, runs.b, measure)
    return runs.once(("ops", chosen), lambda: _ops(runs, chosen))


def _ops(runs: Runs, chosen: str) -> pd.DataFrame:
    a, b = measured.ops(runs.a, chosen), measured.ops(runs.b, chosen)
    table = _with(deltas(a, b, by_name, runs.steps), chosen)
    return _or_lacking(table, "neither run has ops, runtime calls or annotations to compare")


def kernels(runs: Runs) -> pd.DataFrame:
    """By name and category (see `measured.kernels`)."""
    return runs.once(("kernels",), lambda: _kernels(runs))


def _kernels(runs: Runs) -> pd.DataFrame:
    a, b = measured.kernels(runs.a), measured.kernels(runs.b)
    table = _with(deltas(a, b, by_name, runs.steps), "device_self")
    return _or_lacking(table, "neither run has GPU work: there are no kernels to compare")


def modules(runs: Runs, measure: str | None) -> pd.DataFrame:
    """By name and class (see `measured.modules`)."""
    chosen = measure_of(runs.a, runs.b, measure)
    return runs.once(("modules", chosen), lambda: _modules(runs, chosen))


def _modules(runs: Runs, chosen: str) -> pd.DataFrame:
    a, b = measured.modules(runs.a, chosen), measured.modules(runs.b, chosen)
    if len(a.keys) == len(b.keys) == 1:  # nobody's
        a, b = (measured.nothing(run) for run in (a, b))
    table = _with(deltas(a, b, by_name, runs.steps), chosen)
    return _or_lacking(table, "neither run has modules: they were recorded without")


def lines(runs: Runs, measure: str | None) -> pd.DataFrame:
    """By the text of the lines (see `matching.by_text`)."""
    chosen = measure_of(runs.a, runs.b, measure)
    return runs.once(("lines", chosen), lambda: _lines(runs, chosen))


def _lines(runs: Runs, chosen: str) -> pd.DataFrame:
    a, b = measured.lines(runs.a, chosen), measured.lines(runs.b, chosen)
    sources = line_sources(runs.a), line_sources(runs.b)
    table = deltas(a, b, lambda one, other: by_text(one, other, *sources), runs.steps)
    return _or_lacking(
        _with(table, chosen), "neither run has cell lines: they were recorded without"
    )


def functions(runs: Runs) -> pd.DataFrame:
    """By Python function (see `matching.by_function`), of the whole runs.

    Without calls where a sampler recorded either: it counts none.
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
    """By class of `breakdown`."""
    return runs.once(("classes",), lambda: _classes(runs))


def _classes(runs: Runs) -> pd.DataFrame:
    per_step = runs.steps is not None
    a, b = (measured.classes(run, per_step=per_step) for run in (runs.a, runs.b))
    table = deltas(a, b, _by_class, runs.steps)
    table = _without_calls(table)
    return _or_lacking(table, "neither run has GPU work or CPU ops: there is nothing to break down")


def steps(runs: Runs) -> pd.DataFrame:
    """The steps of both in the order in which they ran; of runs without steps, the runs."""
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
    """How long (ns) each step of either run took; of runs without steps, the run."""
    a, b = (_steps_or_run(run, runs.steps is not None)["dur_ns"] for run in (runs.a, runs.b))
    return a.to_numpy(float), b.to_numpy(float)


def spread_of_steps(runs: Runs) -> float:
    """How far the steps of one run lie apart, ns; NaN with fewer than two in either."""
    if runs.steps is None or min(runs.steps) < 2:
        return float("nan")
    return float(max(spread(times[None, :])[0] for times in step_times(runs)))


def differ(runs: Runs) -> bool:
    """Whether the steps of the runs differ by more than noise, as far as that is known."""
    a, b = step_times(runs)
    if np.isnan(spread_of_steps(runs)):
        return bool(np.median(a) != np.median(b))
    return not are_noise(a[None, :], b[None, :])[0]


def _steps_or_run(run: Record, has_steps: bool) -> pd.DataFrame:
    if has_steps:
        return steps_of(run)
    busy = measured.busy_ns(run)
    return pd.DataFrame({"step": [NONE], "dur_ns": [run.trace.span_ns], "gpu_busy_ns": [busy]})


def _by_class(a: pd.DataFrame, b: pd.DataFrame) -> Pairs:
    """Classes are named by ``class``; its pairs have no other names."""
    columns = ["class", "state"]
    pairs = by_name(a[columns], b[columns])
    return Pairs(pairs.names[columns], pairs.a, pairs.b)


def _without_calls(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=[name for name in table.columns if name.startswith("calls_")])


def _with(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    table.attrs[MEASURE] = measure
    return table


def _or_lacking(table: pd.DataFrame, why: str) -> pd.DataFrame:
    if not len(table) and not what_is_lacking(table):
        table.attrs[LACKS] = why
    return table
