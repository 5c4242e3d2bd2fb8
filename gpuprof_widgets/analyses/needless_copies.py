"""Copies that need not be: data that goes there and back, constants sent anew in every step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.grouped import different, group_rows
from gpuprof_widgets.analyses.kernels import counted_gpu_rows
from gpuprof_widgets.analyses.steps import steps
from gpuprof_widgets.analyses.waits import is_dataloader
from gpuprof_widgets.trace.intervals import covered_until, union
from gpuprof_widgets.trace.model import Record, Trace

THERE_AND_BACK, EVERY_STEP = "there and back", "every step"

SMALLEST = 4096
"""Bytes from which on two copies of one size are hardly a coincidence (a page)."""
STEPS = 3
"""Steps in which a constant has to be sent until it passes for one."""

PLACE = ("device", "bytes", "source", "op_name", "module", "line", "python")
"""Columns in which copies from one place are alike."""


def needless(table: pd.DataFrame, record: Record) -> npt.NDArray[np.object_]:
    """Per copy (rows of `copies`, by time): "", "there and back" or "every step"."""
    found = np.full(len(table), "", object)
    found[_in_every_step(record, table)] = EVERY_STEP
    found[_there_and_back(record, table)] = THERE_AND_BACK
    return found


def _there_and_back(record: Record, table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Both copies of each pair of opposite direction and equal size that follow one another.

    What came to the GPU and leaves it again was of no use there if no kernel ran in between. What
    left it and comes back may have been changed by the CPU: the round trip is what is needless. A
    copy after a new step or batch has begun brings something else, whatever its size, and so does
    one on another stream that was sent before the first had arrived.
    """
    hit = np.zeros(len(table), bool)
    between_host = table["direction"].isin(["HtoD", "DtoH"]).to_numpy(bool)
    at = np.flatnonzero(between_host)
    device = table["device"].to_numpy()[at]
    at = at[np.argsort(device, kind="stable")]
    first, second = at[:-1], at[1:]
    columns = {key: table[key].to_numpy() for key in ("device", "direction", "bytes")}
    pair = columns["device"][first] == columns["device"][second]
    pair &= columns["direction"][first] != columns["direction"][second]
    pair &= columns["bytes"][first] == columns["bytes"][second]
    pair &= columns["bytes"][first] >= SMALLEST
    first, second = first[pair], second[pair]
    start = table["start_ns"].to_numpy()
    same = columns["direction"][first] == "DtoH"
    same &= ~_began_anew(record, start[first], start[second])
    same &= ~_sent_before(record.trace, table, first, second)
    needless = same | (
        (columns["direction"][first] == "HtoD") & ~_worked(record.trace, table, first, second)
    )
    hit[first[needless]] = hit[second[needless]] = True
    return hit


def _began_anew(
    record: Record, first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Per pair of moments: whether a step or a wait for the next batch began between them."""
    loading = record.trace.slices["ts"].to_numpy()[is_dataloader(record.trace)]
    begun = np.sort(np.concatenate([steps(record)["start_ns"].to_numpy(np.int64), loading]))
    return np.searchsorted(begun, first, "right") < np.searchsorted(begun, second, "right")


def _sent_before(
    trace: Trace, table: pd.DataFrame, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """Per pair: whether the second was launched before the first ended, on another stream."""
    called = np.append(trace.slices["ts"].to_numpy(np.int64), np.iinfo(np.int64).max)
    arrived = (table["start_ns"] + table["dur_ns"]).to_numpy(np.int64)[first]
    stream = table["stream"].to_numpy()
    launched = called[table["launch"].to_numpy(np.intp)[second]]  # without a launch: late
    return np.asarray((stream[first] != stream[second]) & (launched < arrived))


def _worked(
    trace: Trace, table: pd.DataFrame, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """Per pair: whether a kernel ran on its device from one copy's start to the other's."""
    slices = trace.slices
    rows = counted_gpu_rows(trace)
    rows = rows[trace.index.in_category("kernel")[rows]]
    device, ts = trace.index.device[rows], slices["ts"].to_numpy()[rows]
    start, of = table["start_ns"].to_numpy(), table["device"].to_numpy()
    worked = np.zeros(len(first), bool)
    for number in np.unique(of[first]):
        here = of[first] == number
        on = device == number
        busy = union(ts[on], ts[on] + slices["dur"].to_numpy()[rows[on]])
        t0, t1 = start[first[here]], start[second[here]]
        worked[here] = covered_until(busy, t1) > covered_until(busy, t0)
    return worked


def _in_every_step(record: Record, table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Copies to the GPU within a module, of one size from one place, in every step.

    A batch comes from outside of modules, and where it does not, its size or place differ.
    """
    marked = steps(record)
    to_gpu = (table["direction"] == "HtoD").to_numpy(bool) & (table["module"] != "").to_numpy(bool)
    at = np.flatnonzero(to_gpu & (table["bytes"] >= 0).to_numpy(bool))
    hit = np.zeros(len(table), bool)
    if len(marked) < STEPS or not len(at):
        return hit
    launch = table["launch"].to_numpy()[at]
    called = np.append(record.trace.slices["ts"].to_numpy(), -1)[launch]
    step = np.searchsorted(marked["start_ns"].to_numpy(), called, side="right") - 1
    step[called >= marked["end_ns"].to_numpy()[np.maximum(step, 0)]] = -1
    groups, first = group_rows({key: table[key].iloc[at] for key in PLACE})
    in_steps = different(groups[step >= 0], step[step >= 0], len(first))
    hit[at] = (in_steps == len(marked))[groups]
    return hit
