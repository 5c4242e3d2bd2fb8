"""Idle GPUs: the gaps in their work, what surrounds each gap, and what the CPU did in it.

Each gap has one cause, from its next slice's launch and the launching thread; `breakdown` has the
CPU's state at every moment of it.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.analyses.gpu_work import (
    Gaps,
    devices,
    devices_at_work,
    gaps_between,
    gaps_of_each,
    open_times,
    rows_on,
)
from gpuprof_widgets.analyses.owners import line_of, module_frame_around, region_behind
from gpuprof_widgets.analyses.reasons import LACKS, empty_table, says_if_empty
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.waits import is_dataloader, is_synchronising, is_taking
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals, links
from gpuprof_widgets.trace.arrays import Codes, Floats, Ints, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

BACK_TO_BACK_NS = 10_000
"""Limit for gaps between two queued kernels: 99 % of the gaps of a stream that runs alone are
shorter in traces of V100, A100 and H100 (half of them take about 1 us)."""
IN_A_FILE = re.compile(r".+\(\d+\): .+")
"""Names of Python frames with a line of a file: "train.py(12): step"."""
BY = ("device", "stream")
NO_GPU = "the trace has no GPU work, and so no gaps in it"

COLUMNS = (
    *("device", "stream", "start_ns", "end_ns", "dur_ns"),
    *("before", "before_name", "after", "after_name", "launch_ns", "thread"),
    *("cpu", "cpu_name", "cpu_share", "line", "module", "cause"),
)
NAMES_OF = {
    "before_name": "before",
    "after_name": "after",
    "cpu_name": "cpu",
    "line": "line",
    "module": "module",
}
"""Columns of names, and the columns of the rows that they name."""


@says_if_empty("no GPU was idle: there is no gap in its work")
def idle(
    record: Record, *, by: str = "device", back_to_back_ns: int = BACK_TO_BACK_NS
) -> pd.DataFrame:
    """One row per gap of each GPU (or stream), the longest first.

    The gaps of a GPU add up to the idle time in `device_busy`. Those of its streams add up to the
    time in which nothing of theirs ran, whatever the others did.

    Rule: each gap has one ``cause`` (what the CPU did from moment to moment of it is the class in
    `breakdown`):

    - "start", "end": it lies before the first or after the last GPU slice.
    - "dataloader": the launching thread was in a DataLoader's ``__next__`` most of the time (in
      TensorFlow: an op waited for a queue or an iterator).
    - "synchronise": when the gap began, the launching thread was in a call that waits for the GPU.
      So nothing was queued behind, whatever the thread did afterwards.
    - "host": the next slice was launched after the gap had begun: the GPU waited for the CPU.
    - "device": the next slice was launched before: it waited for other GPU work, an event or its
      launch.
    - "unknown": the trace holds no launch of the next slice, as if a range lies within the gap.
    - "back to back": of streams, "device" shorter than ``back_to_back_ns``: what the GPU takes from
      one kernel to the next.
    - "stream": of streams, "device" where work of another stream ended in the gap, less than
      ``back_to_back_ns`` before the next slice, which waited for it (as far as can be told without
      recorded events).

    Options:

    - ``by``: "device" or "stream".
    - ``back_to_back_ns``: see the rule; in ns.

    Columns:

    - ``device``, ``stream``: the stream is -1 by device.
    - ``start_ns``, ``end_ns``, ``dur_ns``: the gap.
    - ``before``, ``before_name``: the GPU slice that ended last before it; -1 and "" at the edges.
    - ``after``, ``after_name``: the GPU slice that ended the gap; -1 and "" at the edges.
    - ``launch_ns``: start of the call that launched ``after``; -1: unknown.
    - ``thread``: the track that launched it, else the one that launches most.
    - ``cpu``, ``cpu_name``: what ran longest on that thread during the gap (innermost slices, by
      name; the row is the first of them); -1 and "": no slice.
    - ``cpu_share``: for which share of the gap.
    - ``line``, ``module``: the cell line and the module in which that was; in the backward pass the
      module of the forward op. If these were not recorded, the Python frame that ran longest in the
      gap, and the ``nn.Module`` around it. "": unknown.
    - ``cause``: see the rule.

    Source: HTA's ``get_idle_time_breakdown``. Its host_wait is "host", "dataloader" and
    "synchronise" here, its kernel_wait is "back to back" and "stream" with its threshold, which is
    30 (ns by its documentation, µs by its code). It leaves out the time before a stream's first and
    after its last slice, and counts 0 where slices of a stream overlap.
    """
    if by not in BY:
        raise OptionError(f"idle time is by one of {', '.join(BY)}, not by {by!r}")
    trace = record.trace
    gaps = device_gaps(record) if by == "device" else _of_streams(trace, back_to_back_ns)
    if LACKS in gaps.attrs:
        return gaps
    names = {column: trace.index.names_of(gaps[row].to_numpy()) for column, row in NAMES_OF.items()}
    return gaps.assign(**names)[list(COLUMNS)]


@remembered
def device_gaps(record: Record) -> pd.DataFrame:
    """Return the gaps of each GPU as `idle` does, but with rows in place of all names."""
    trace, tables = record.trace, []
    for device in devices(trace):
        rows = rows_on(trace, device)
        table = _described(trace, gaps_between(trace, rows)).assign(device=device, stream=NONE)
        if not len(rows):  # a window within a gap
            table["cause"] = np.full(len(table), "unknown", object)
        tables.append(table)
    return _longest_first(tables)


def _of_streams(trace: Trace, back_to_back_ns: int) -> pd.DataFrame:
    end, tables = trace.index.uncut[1], []
    for device in devices_at_work(trace):
        rows = rows_on(trace, device)
        stream = stream_of(trace, rows)
        rows_of_stream = {number: rows[at] for number, at in links.rows_by(stream).items()}
        gaps, group = gaps_of_each(trace, list(rows_of_stream.values()))
        streams = np.array([*rows_of_stream])[group]
        table = _described(trace, gaps).assign(device=device, stream=streams)
        last = _last_elsewhere(table, end[rows], stream)
        waited = (last > table["end_ns"] - back_to_back_ns) & (last > table["start_ns"])
        refined = table["cause"].where(~waited, "stream")
        refined = refined.where(table["dur_ns"] >= back_to_back_ns, "back to back")
        cause = table["cause"].where(table["cause"] != "device", refined)
        tables.append(table.assign(cause=cause))
    return _longest_first(tables)


def _last_elsewhere(table: pd.DataFrame, end: Ints, stream: Ints) -> Ints:
    """Return per gap when work of another stream last ended before the gap did; the least if never.

    ``end``, ``stream``: those of the device's slices.
    """
    order = np.argsort(end, kind="stable")
    ends, stream = end[order], stream[order]
    differs = np.append(True, stream[1:] != stream[:-1])[: len(stream)]
    other = np.maximum.accumulate(np.where(differs, np.arange(len(stream)), 0)) - 1
    last = np.searchsorted(ends, table["end_ns"].to_numpy(), side="right") - 1
    is_same = (last >= 0) & (stream[last] == table["stream"].to_numpy())
    last = np.where(is_same, other[last], last)
    return take(ends, last, np.iinfo(np.int64).min)


def _longest_first(tables: list[pd.DataFrame]) -> pd.DataFrame:
    if not tables:
        return empty_table(COLUMNS, NO_GPU)
    table = pd.concat(tables, ignore_index=True)
    return table.sort_values("dur_ns", ascending=False, kind="stable", ignore_index=True)


def stream_of(trace: Trace, rows: Rows) -> Ints:
    """Return the stream of each of these slices."""
    return np.asarray(trace.index.stream[rows], np.int64)


def _described(trace: Trace, gaps: Gaps) -> pd.DataFrame:
    """Return the gaps with all columns but device and stream, and with rows in place of names."""
    start, end = gaps.start, gaps.end
    row, share = np.full(len(start), NONE, np.int32), np.zeros(len(start))
    in_dataloader, synchronised = np.zeros(len(start), bool), np.zeros(len(start), bool)
    loads, waits, taken = is_dataloader(trace), is_synchronising(trace), is_taking(trace)
    for track, at in links.rows_by(gaps.thread).items():
        if track < 0:
            continue
        row[at], share[at] = _longest(trace, track, start[at], end[at])
        here = trace.index.rows_of_track(track)
        in_loader = open_times(trace, np.concatenate([here[loads[here]], np.flatnonzero(taken)]))
        covered = intervals.overlap((start[at], end[at]), in_loader)
        in_dataloader[at] = 2 * covered > end[at] - start[at]
        waiting = open_times(trace, here[waits[here]])
        synchronised[at] = intervals.inside(start[at], waiting)
    line, module = _place(trace, gaps, row)
    causes = {  # the first that holds
        "start": gaps.before < 0,
        "end": gaps.after < 0,
        "unknown": gaps.launch_ns == NONE,
        "device": gaps.launch_ns < start,
        "dataloader": in_dataloader,
        "synchronise": synchronised,
    }
    columns = {
        "start_ns": start,
        "end_ns": end,
        "dur_ns": end - start,
        "before": gaps.before,
        "after": gaps.after,
        "launch_ns": gaps.launch_ns,
        "thread": gaps.thread,
        "cpu": row,
        "cpu_share": share,
        "line": line,
        "module": module,
        "cause": np.select([*causes.values()], [*causes], default="host").astype(object),
    }
    return pd.DataFrame(columns)


def _place(trace: Trace, gaps: Gaps, row: Codes) -> tuple[Codes, Codes]:
    """Return rows of the line and module of what ran, else those of the longest Python frame."""
    line, module = take(line_of(trace), row), take(region_behind(trace, "module"), row)
    lane, kind = trace.tracks["lane"].to_numpy(), trace.tracks["kind"].to_numpy()
    frame = np.full(len(row), NONE, np.int32)
    python_of = links.rows_by(np.where(kind == "python", lane, NONE))
    for track, at in links.rows_by(gaps.thread).items():
        for python in python_of.get(int(lane[track]), ()) if track >= 0 else ():
            frame[at], _ = _longest(trace, int(python), gaps.start[at], gaps.end[at])
    if (frame >= 0).any():
        in_file = trace.index.in_category("python_function") & trace.index.matching(IN_A_FILE)
        frame_in_file = links.itself_or_ancestor(trace.index.parent, in_file)
        line = np.where(line >= 0, line, take(frame_in_file, frame))
        module = np.where(module >= 0, module, module_frame_around(trace, frame))
    return line.astype(np.int32), module.astype(np.int32)


def _longest(trace: Trace, track: int, start: Ints, end: Ints) -> tuple[Codes, Floats]:
    """Return per gap the name that was innermost for the longest time, as a row, and its share."""
    parts = trace.index.segments(track)
    first = np.searchsorted(parts.end, start, side="right")
    last = np.searchsorted(parts.start, end, side="left")
    length = np.maximum(last - first, 0)
    gap = np.repeat(np.arange(len(start)), length)
    part = np.arange(len(gap)) - np.repeat(np.cumsum(length) - length, length) + first[gap]
    time = np.minimum(parts.end[part], end[gap]) - np.maximum(parts.start[part], start[gap])
    code = take(trace.index.name, parts.row[part]).astype(np.int64)
    key = gap * (len(trace.index.names) + 1) + code + 1
    _, sample, group = np.unique(key, return_index=True, return_inverse=True)
    total = group_sums(group.reshape(-1), time, len(sample))
    order = np.lexsort((total, gap[sample]))  # the last one of each gap is its longest
    row, share = np.full(len(start), NONE, np.int32), np.zeros(len(start))
    best = order[np.diff(gap[sample][order], append=NONE) != 0]
    at = gap[sample[best]]
    row[at] = parts.row[part[sample[best]]]
    share[at] = total[best] / (end[at] - start[at])
    return row, share


def python_meanwhile(trace: Trace, thread: int, start: int, end: int) -> str:
    """Return the Python frame that ran longest in [start, end) on a CPU track's thread, or ""."""
    tracks = trace.tracks
    same = (tracks["kind"] == "python") & (tracks["lane"] == tracks["lane"].get(thread))
    for track in np.flatnonzero(same.to_numpy()):
        row, _ = _longest(trace, int(track), np.array([start]), np.array([end]))
        if row[0] >= 0:
            return str(trace.slices["name"].iloc[row[0]])
    return ""
