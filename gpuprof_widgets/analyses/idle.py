"""When a GPU had nothing to do, what came before and after, and what the CPU did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses import intervals
from gpuprof_widgets.analyses.device_busy import busy_intervals, devices
from gpuprof_widgets.analyses.innermost import segments
from gpuprof_widgets.analyses.kernels import device_of
from gpuprof_widgets.analyses.op_rows import gpu_rows
from gpuprof_widgets.analyses.waits import is_dataloader, is_synchronising
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

COLUMNS = (
    "device",
    "start_ns",
    "end_ns",
    "dur_ns",
    "before",
    "before_name",
    "after",
    "after_name",
    "launch_ns",
    "thread",
    "cpu",
    "cpu_name",
    "cpu_share",
    "cause",
)


def idle(record: Record) -> pd.DataFrame:
    """One row per gap of each GPU, the longest first; their sum is `device_busy`'s idle time.

    Columns: ``device``, ``start_ns``, ``end_ns``, ``dur_ns``; ``before``, ``after`` (rows of the
    GPU slice that ended last before it and of the one that ended the gap, -1 at the edges) with
    their names; ``launch_ns`` (start of the call that launched ``after``, -1 if unknown);
    ``thread`` (the track that launched it, or that launches most); ``cpu`` (row of a slice, the
    first of its kind), ``cpu_name`` and ``cpu_share``: what ran longest on that thread during the
    gap (innermost slice, by name; "" is no slice at all) and for which share of the gap;
    ``cause``, one of

    - "start", "end": before the first and after the last GPU slice,
    - "dataloader": the launching thread was in a DataLoader's ``__next__`` most of the time,
    - "synchronise": when it began the launching thread was in a call that waits for the GPU: so
      nothing was queued behind,
    - "host": the next slice was launched after the gap had begun: the GPU waited for the CPU,
    - "device": it was launched before: it waited for other GPU work, an event or its launch,
    - "unknown": the trace holds no launch of it.
    """
    trace = record.trace
    tables = [_gaps(trace, device) for device in devices(trace)]
    if not tables:
        return pd.DataFrame(columns=list(COLUMNS))
    table = pd.concat(tables, ignore_index=True)[list(COLUMNS)]
    return table.sort_values("dur_ns", ascending=False, kind="stable", ignore_index=True)


def _gaps(trace: Trace, device: int) -> pd.DataFrame:
    slices = trace.slices
    rows = gpu_rows(trace)
    rows = rows[device_of(trace, rows) == device]
    start, end = intervals.gaps(busy_intervals(trace, device), trace.start_ns, trace.end_ns)
    before, after = _neighbours(trace, rows, start, end)
    launch = np.where(after >= 0, slices["launch"].to_numpy()[after], NONE)
    launched = np.where(launch >= 0, slices["ts"].to_numpy()[launch], NONE)
    thread = _launching_track(trace, rows, launch)
    cpu = _cpu_meanwhile(trace, start, end, thread)
    names = np.append(slices["name"].cat.categories.to_numpy(object), "")
    code = np.append(slices["name"].cat.codes.to_numpy(), NONE)
    columns = {
        "device": device,
        "start_ns": start,
        "end_ns": end,
        "dur_ns": end - start,
        "before": before,
        "before_name": names[code[before]],
        "after": after,
        "after_name": names[code[after]],
        "launch_ns": launched,
        "thread": thread,
        "cpu": cpu.row,
        "cpu_name": names[code[cpu.row]],
        "cpu_share": cpu.share,
        "cause": _causes(start, before, after, launched, cpu),
    }
    return pd.DataFrame(columns)


def _neighbours(
    trace: Trace, rows: npt.NDArray[np.intp], start: Ints, end: Ints
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Per gap: the slice whose end began it and the slice whose start ended it."""
    ts, dur = trace.slices["ts"].to_numpy()[rows], trace.slices["dur"].to_numpy()[rows]
    timed = dur > 0
    return _ending(rows[timed], (ts + dur)[timed], start), _ending(rows[timed], ts[timed], end)


def _ending(rows: npt.NDArray[np.intp], moment: Ints, wanted: Ints) -> npt.NDArray[np.int32]:
    order = np.argsort(moment, kind="stable")
    at = np.minimum(np.searchsorted(moment[order], wanted), max(len(rows) - 1, 0))
    hit = moment[order[at]] == wanted if len(rows) else np.zeros(len(wanted), bool)
    return np.where(hit, rows[order[at]] if len(rows) else NONE, NONE).astype(np.int32)


def _launching_track(
    trace: Trace, rows: npt.NDArray[np.intp], launch: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """Per gap the CPU track that launched the next slice, else the one that launches most."""
    track = trace.slices["track"].to_numpy()
    all_launches = trace.slices["launch"].to_numpy()[rows]
    used = track[all_launches[all_launches >= 0]]
    cpu_tracks = np.flatnonzero((trace.tracks["kind"] == "cpu").to_numpy())
    usual = np.bincount(used).argmax() if len(used) else cpu_tracks[0] if len(cpu_tracks) else NONE
    return np.where(launch >= 0, track[launch], usual).astype(np.int32)


@dataclass(frozen=True)
class _Meanwhile:
    row: npt.NDArray[np.int32]
    share: npt.NDArray[np.float64]
    in_dataloader: npt.NDArray[np.bool_]
    synchronised: npt.NDArray[np.bool_]


def _cpu_meanwhile(
    trace: Trace, start: Ints, end: Ints, track: npt.NDArray[np.int32]
) -> _Meanwhile:
    row = np.full(len(start), NONE, np.int32)
    share = np.zeros(len(start))
    loading, synchronised = np.zeros(len(start), bool), np.zeros(len(start), bool)
    for number in np.unique(track[track >= 0]):
        gaps = np.flatnonzero(track == number)
        row[gaps], share[gaps] = _longest(trace, int(number), start[gaps], end[gaps])
        here = trace.slices["track"].to_numpy() == number
        in_loader = _when(trace, here & is_dataloader(trace))
        covered = intervals.overlap((start[gaps], end[gaps]), in_loader)
        loading[gaps] = 2 * covered > end[gaps] - start[gaps]
        waiting = _when(trace, here & is_synchronising(trace))
        synchronised[gaps] = intervals.overlap((start[gaps], start[gaps] + 1), waiting) > 0
    return _Meanwhile(row, share, loading, synchronised)


def _longest(
    trace: Trace, track: int, start: Ints, end: Ints
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Per gap the name that was innermost for the longest time, as a row, and its share."""
    parts = segments(trace, track)
    first = np.searchsorted(parts.end, start, side="right")
    last = np.searchsorted(parts.start, end, side="left")
    length = np.maximum(last - first, 0)
    gap = np.repeat(np.arange(len(start)), length)
    part = np.arange(len(gap)) - np.repeat(np.cumsum(length) - length, length) + first[gap]
    time = np.minimum(parts.end[part], end[gap]) - np.maximum(parts.start[part], start[gap])
    names = trace.slices["name"].cat.codes.to_numpy()
    code = np.where(parts.row[part] >= 0, names[parts.row[part]], NONE).astype(np.int64)
    key = gap * (int(names.max(initial=0)) + 2) + code + 1
    _, sample, group = np.unique(key, return_index=True, return_inverse=True)
    total = np.zeros(len(sample), np.int64)
    np.add.at(total, group.reshape(-1), time)
    order = np.lexsort((total, gap[sample]))  # the last one of each gap is its longest
    best = order[np.append(gap[sample][order][1:] != gap[sample][order][:-1], len(order) > 0)]
    row, share = np.full(len(start), NONE, np.int32), np.zeros(len(start))
    at = gap[sample[best]]
    row[at] = parts.row[part[sample[best]]]
    share[at] = total[best] / (end[at] - start[at])
    return row, share


def python_meanwhile(trace: Trace, thread: int, start: int, end: int) -> str:
    """The Python frame that ran longest in [start, end) on a CPU track's thread; "" if none did."""
    tracks = trace.tracks
    same = (tracks["kind"] == "python") & (tracks["lane"] == tracks["lane"].get(thread))
    for track in np.flatnonzero(same.to_numpy()):
        row, _ = _longest(trace, int(track), np.array([start]), np.array([end]))
        if row[0] >= 0:
            return str(trace.slices["name"].iloc[row[0]])
    return ""


def _when(trace: Trace, chosen: npt.NDArray[np.bool_]) -> intervals.Intervals:
    """When any of the chosen slices was open."""
    start = trace.slices["ts"].to_numpy()[chosen]
    return intervals.union(start, start + trace.slices["dur"].to_numpy()[chosen])


def _causes(
    start: Ints,
    before: npt.NDArray[np.int32],
    after: npt.NDArray[np.int32],
    launched: Ints,
    cpu: _Meanwhile,
) -> npt.NDArray[np.object_]:
    conditions = [
        before < 0,
        after < 0,
        launched == NONE,
        launched < start,
        cpu.in_dataloader,
        cpu.synchronised,
    ]
    causes = ["start", "end", "unknown", "device", "dataloader", "synchronise"]
    return np.select(conditions, causes, default="host").astype(object)
