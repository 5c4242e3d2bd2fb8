"""Times of one run in one form, `Measured`, for ops, kernels, modules, lines and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses import operators as rows
from gpuprof_widgets.analyses.attribution import LEVELS, owned, self_times
from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.gpu_work import busy_intervals, devices
from gpuprof_widgets.analyses.lines import cell_lines, slice_self_times
from gpuprof_widgets.analyses.owners import line_of
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.reasons import IN_NO_MODULE, recorder_of
from gpuprof_widgets.analyses.regions import names_with_steps_merged, steps
from gpuprof_widgets.analyses.waits import python_lanes
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.pstats import BUILT_IN
from gpuprof_widgets.trace.schema import NONE, SAMPLING

Ints = npt.NDArray[np.int64]

NO_OP = "(launched by no recorded op)"
MEASURES = ("device_self", "cpu_self")
CPROFILE, SAMPLER = "cProfile", "gpuprof's sampler"

_SELF = {"device_self": "GPU self time", "cpu_self": "CPU self time"}
QUANTITIES = {
    "op": _SELF,
    "kernel": {"device_self": "GPU time"},
    "line": {"device_self": "GPU self time", "cpu_self": "wall self time"},
    "module": {key: f"{words} of both passes" for key, words in _SELF.items()},
    "function": {"": "self time"},
}
"""Names of the times of a table, by measure. That of lines includes waits for the GPU."""


@dataclass(frozen=True)
class Measured:
    """Entries of one run: the key of each, how often and how long it ran, and in which step.

    ``keys``: one row per op, kernel, ..., with the columns that name it. Each entry has a ``key``
    (its row there), ``calls``, ``ns`` and ``step`` (the step's position in the run, -1 outside).
    """

    keys: pd.DataFrame
    key: Ints
    calls: Ints
    ns: Ints
    step: Ints


def measure_of(a: Record, b: Record, measure: str | None) -> str:
    """Return ``measure`` if given; else GPU time if both runs have any, else CPU time."""
    if measure is None:
        both = all(len(record.trace.index.gpu) for record in (a, b))
        return MEASURES[0] if both else MEASURES[1]
    if measure not in MEASURES:
        raise OptionError(f"runs are compared by one of {', '.join(MEASURES)}, not by {measure!r}")
    return measure


def step_of(record: Record) -> Ints:
    """Return the position of each slice's step in the run, -1 outside of steps.

    A slice is in the step in which it began; GPU work in the step in which it was launched, even if
    it ran later.
    """
    slices = record.trace.slices
    table = steps(record)
    start, end = table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
    ts = slices["ts"].to_numpy().copy()
    gpu = record.trace.index.gpu
    launcher = record.trace.index.launcher[gpu]
    ts[gpu] = np.where(launcher >= 0, ts[launcher], ts[gpu])
    at = np.searchsorted(start, ts, side="right") - 1
    inside = (at >= 0) & (ts < np.append(end, 0)[at]) if len(start) else np.zeros(len(ts), bool)
    return np.where(inside, at, NONE).astype(np.int64)


def ops(record: Record, measure: str) -> Measured:
    """Return self times of ops, annotations and runtime calls; GPU time also if no op launched it.

    Calls count in the step of the op, GPU time in the step of its launch, as in `kernels`.
    """
    trace, step = record.trace, step_of(record)
    op_table = rows.op_rows(trace)
    host = op_table.row[op_table.host]
    keys, key = _named(trace, host)
    calls = (trace.slices["count"].to_numpy()[op_table.row] * ~op_table.repeat).astype(np.int64)
    if measure == MEASURES[1]:
        return Measured(keys, key, calls, rows.cpu_self(trace, op_table), step[host])
    gpu = trace.index.gpu
    op = np.append(op_table.index, NONE)[trace.slices["op"].to_numpy()[gpu]]
    unowned = pd.DataFrame({"name": [NO_OP], "category": ["kernel"]}).iloc[: int((op < 0).any())]
    count, dur = (trace.slices[column].to_numpy()[gpu] for column in ("count", "dur"))
    return Measured(
        pd.concat([keys, unowned], ignore_index=True),
        np.concatenate([key, np.append(key, len(keys))[op]]),
        np.concatenate([calls, np.where(op >= 0, 0, count)]),
        np.concatenate([np.zeros(len(key), np.int64), dur]),
        np.concatenate([step[host], step[gpu]]),
    )


def kernels(record: Record) -> Measured:
    """Return times of kernels, copies and memsets, in the step in which they were launched."""
    trace = record.trace
    gpu = trace.index.gpu
    keys, key = _named(trace, gpu)
    calls, dur = (trace.slices[column].to_numpy()[gpu] for column in ("count", "dur"))
    return Measured(keys, key, calls.astype(np.int64), dur, step_of(record)[gpu])


def modules(record: Record, measure: str) -> Measured:
    """Return self times of each module, in its forward and its backward pass."""
    trace, step = record.trace, step_of(record)
    owners = owned(trace, "module")
    place = np.full(len(trace) + 1, NONE, np.int64)
    place[owners.row] = owners.key
    keys = owners.names.assign(name=[*owners.names["name"][:-1], IN_NO_MODULE])
    no_module = len(keys) - 1
    if measure == MEASURES[0]:
        row, ns = trace.index.gpu, trace.slices["dur"].to_numpy()[trace.index.gpu]
    else:
        owning = LEVELS["module"](trace)
        row, ns = owning.rows.astype(np.int64), self_times(trace, owning)
    module = owners.owner[row]
    key = np.where(module >= 0, place[module], no_module)
    return Measured(
        keys,
        np.concatenate([key, owners.key]),
        np.concatenate([np.zeros(len(row), np.int64), owners.calls]),
        np.concatenate([ns, np.zeros(len(owners.row), np.int64)]),
        np.concatenate([step[row], step[owners.row]]),
    )


def lines(record: Record, measure: str) -> Measured:
    """Return each cell line's self time, or the GPU time that it launched."""
    trace, step = record.trace, step_of(record)
    known = cell_lines(trace)
    line = known.of_slice[known.row]
    begun = np.where(known.resumed, 0, trace.slices["count"].to_numpy()[known.row])
    keys = known.lines[["cell", "line", "code"]]
    if measure == MEASURES[1]:
        self_ns = slice_self_times(trace, known.row)
        return Measured(keys, line, begun.astype(np.int64), self_ns, step[known.row])
    gpu = trace.index.gpu
    where = np.append(known.of_slice, NONE)[line_of(trace)[gpu]]
    gpu, where = gpu[where >= 0], where[where >= 0]
    return Measured(
        keys,
        np.concatenate([line, where]),
        np.concatenate([begun, np.zeros(len(gpu), np.int64)]).astype(np.int64),
        np.concatenate([np.zeros(len(line), np.int64), trace.slices["dur"].to_numpy()[gpu]]),
        np.concatenate([step[known.row], step[gpu]]),
    )


def functions(record: Record) -> Measured:
    """Return self times of the Python functions (see `python_time`) of the whole run."""
    table = python_time(record)
    places = zip(table["file"], table["line"], table["name"], strict=True)
    names = [n if file == BUILT_IN else f"{file}({line}): {n}" for file, line, n in places]
    return Measured(
        pd.DataFrame({"name": pd.Series(names, dtype=object), "category": "cprofile"}),
        np.arange(len(table), dtype=np.int64),
        table["calls"].to_numpy(np.int64),
        table["self_ns"].to_numpy(np.int64),
        np.full(len(table), NONE, np.int64),
    )


def python_recorder(record: Record) -> str:
    """Return which tool recorded the Python functions; "" if unknown."""
    if not len(python_lanes(record)):
        return CPROFILE
    return SAMPLER if record.metadata.get(SAMPLING) else recorder_of(record)


def classes(record: Record, *, per_step: bool) -> Measured:
    """Return times of the classes of `breakdown`, of all devices together."""
    table = breakdown(record, by="step" if per_step else "device")
    places = {number: place for place, number in enumerate(steps(record)["step"])}
    keys = table[["state", "class"]].drop_duplicates(ignore_index=True)
    number = {pair: key for key, pair in enumerate(keys.itertuples(index=False, name=None))}
    pairs = zip(table["state"], table["class"], strict=True)
    return Measured(
        keys.astype(object),
        np.array([number[pair] for pair in pairs], np.int64),
        np.zeros(len(table), np.int64),
        table["time_ns"].to_numpy(np.int64),
        np.array([places.get(step, NONE) for step in table["step"]], np.int64),
    )


def nothing(run: Measured) -> Measured:
    """Return the run without any entries."""
    none = np.zeros(0, np.int64)
    return Measured(run.keys.iloc[:0], none, none, none, none)


def busy_ns(record: Record) -> int:
    """Return the time in ns in which any GPU was busy."""
    busy = [busy_intervals(record.trace, device) for device in devices(record.trace)]
    starts, ends = zip(*busy, strict=True) if busy else ((), ())
    none = np.zeros(0, np.int64)
    union = intervals.union(np.concatenate([none, *starts]), np.concatenate([none, *ends]))
    return int(intervals.length(union))


def _named(trace: Trace, row: Sequence[int] | npt.NDArray[np.intp]) -> tuple[pd.DataFrame, Ints]:
    """Return name and category of each kind of slice, and each of these slices' position there."""
    code, names = names_with_steps_merged(trace)
    category = trace.slices["category"].cat
    texts = [str(text) for text in category.categories]
    pair = code[row].astype(np.int64) * len(texts) + category.codes.to_numpy()[row]
    kinds, key = np.unique(pair, return_inverse=True)
    keys = pd.DataFrame(
        {
            "name": pd.Series([names[kind // len(texts)] for kind in kinds], dtype=object),
            "category": pd.Series([texts[kind % len(texts)] for kind in kinds], dtype=object),
        }
    )
    return keys, key.reshape(-1).astype(np.int64)
