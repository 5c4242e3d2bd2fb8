"""The steps that the profiler's schedule marked."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.device_busy import busy_intervals, devices
from gpuprof_widgets.analyses.lacking import says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

STEP = re.compile(r"ProfilerStep#(\d+)")
NO_STEPS = "the trace has no steps: the profiler ran without a schedule"


@says_if_empty("the trace has no steps: nothing is marked as ProfilerStep#")
@remembered
def steps(record: Record) -> pd.DataFrame:
    """One row per step, in order of time.

    Columns: ``step`` (its number), ``row``, ``start_ns``, ``end_ns``, ``dur_ns``, ``gpu_busy_ns``
    (any GPU busy between start and end). A step is annotated on the CPU and again on each stream:
    the CPU's counts; the streams' stand in only where the CPU has none.
    """
    trace = record.trace
    names = trace.slices["name"].cat.categories
    number = {n: int(match[1]) for n in names if (match := STEP.fullmatch(str(n)))}
    marked = trace.index.named(frozenset(number)) & (trace.slices["count"].to_numpy() > 0)
    on_cpu = marked & trace.index.on_tracks("cpu")
    rows = np.flatnonzero(on_cpu if on_cpu.any() else marked)
    start = trace.slices["ts"].to_numpy()[rows]
    end = start + trace.slices["dur"].to_numpy()[rows]
    step = np.array([number[n] for n in trace.slices["name"].to_numpy(object)[rows]], np.int64)
    table = pd.DataFrame({"step": step, "row": rows, "start_ns": start, "end_ns": end})
    once = {"row": "first", "start_ns": "min", "end_ns": "max"}
    table = table.groupby("step", as_index=False).agg(once).sort_values("start_ns")
    busy = [busy_intervals(trace, device) for device in devices(trace)]
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    any_busy = intervals.union(
        np.concatenate([b[0] for b in busy] or [start[:0]]),
        np.concatenate([b[1] for b in busy] or [start[:0]]),
    )
    table = table.assign(dur_ns=end - start, gpu_busy_ns=intervals.overlap((start, end), any_busy))
    return table.reset_index(drop=True)


def time_ranges(
    record: Record, by: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numbers, starts and ends of the steps (by "step"), else of the whole, with number -1."""
    trace = record.trace
    whole = pd.DataFrame({"step": [NONE], "start_ns": [trace.start_ns], "end_ns": [trace.end_ns]})
    table = steps(record) if by == "step" else whole
    number, start, end = (table[key].to_numpy(np.int64) for key in ("step", "start_ns", "end_ns"))
    return number, start, end


def rank_of(trace: Trace) -> int:
    """Which rank of a job recorded the trace; -1 where that is unknown."""
    return int(trace.tracks["rank"].to_numpy().max()) if len(trace.tracks) else NONE


def names_with_steps_merged(trace: Trace) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Per slice the code of its name, and the names: all steps are one ``ProfilerStep*``."""
    names = trace.slices["name"].cat
    merged = [re.sub(r"^ProfilerStep#.*", "ProfilerStep*", str(n)) for n in names.categories]
    number = {name: index for index, name in enumerate(dict.fromkeys(merged))}
    code = np.array([number[name] for name in merged], np.intp)
    return code[names.codes.to_numpy()], list(number)
