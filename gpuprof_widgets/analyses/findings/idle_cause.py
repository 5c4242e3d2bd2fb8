"""Why a GPU was idle: the main cause, and which part of its idle time that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.breakdown import (
    CLASSES,
    IDLE,
    QUEUED,
    breakdown,
    breakdown_segments,
)
from gpuprof_widgets.analyses.cold_start import cold_spans, paid_once, recording_time
from gpuprof_widgets.analyses.findings.finding import LATENCY_NS
from gpuprof_widgets.analyses.gpu_work import device_busy
from gpuprof_widgets.analyses.host_states import CPU_OPS, LAUNCHING, OTHER, PYTHON, RUNTIME
from gpuprof_widgets.analyses.idle import device_gaps
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE

HOST = "host"
COLD = "first calls"
"""Ops, launches or other calls in which the CPU loads libraries and kernels."""
DELAYS = (PYTHON, CPU_OPS, RUNTIME, LAUNCHING)
"""What the CPU did that launches too late."""
RECORDING = "recording"
"""The recording asked for memory, in a launch or in what was to launch."""
COLD_KINDS = (CPU_OPS, RUNTIME, LAUNCHING)
"""What first calls can be: ops, calls of the runtime or launches."""
BETWEEN = "between ops"
"""Cause where the CPU was late and the trace does not show why (see `host_states.ran_python`)."""
EDGES = ("start", "end")
"""Causes in which the GPU had no work yet, or no more."""
GPU_ALONE = "no ops recorded"
"""The same in a trace without any ops."""
LATE = "late"
"""Cause of idle time after launches returned, where most of it is longer than launch latency."""


@dataclass(frozen=True)
class IdleCause:
    """The main cause of a GPU's idle time and its share; what delayed the CPU most, how long."""

    name: str
    share: float
    delayed_by: str
    delayed_ns: int


@remembered
def idle_cause(record: Record, device: int) -> IdleCause:
    """Return the main cause; a launch to an idle GPU takes until its work begins there."""
    table = breakdown(record)
    idle = table[(table["device"] == device) & (table["state"] == IDLE)]
    times: dict[str, int] = dict(zip(idle["class"], idle["time_ns"].tolist(), strict=True))
    on_the_way = intervals.length(_on_the_way(record, device))
    times[QUEUED] -= on_the_way
    times[LAUNCHING] += on_the_way
    late = {name: times.pop(name) for name in DELAYS}
    cold = {name: cold_ns(record, device, name) for name in COLD_KINDS}
    recording = recording_time(record.trace)
    segments = {name: segments_of(record, device, name) for name in DELAYS}
    own = {name: int(intervals.overlap(segments[name], recording).sum()) for name in DELAYS}
    late = {name: late[name] - cold.get(name, 0) - own[name] for name in late}
    late |= {COLD: sum(cold.values())}
    delayed_by = max(late, key=lambda name: late[name])
    late[RECORDING] = sum(own.values())
    if 2 * late[RECORDING] > sum(late.values()):  # nobody can do anything about it
        delayed_by = RECORDING
    causes = {HOST: sum(late.values()), **times}
    cause = max(causes, key=lambda name: causes[name])
    share = causes[cause] / max(sum(causes.values()), 1)
    return IdleCause(cause, share, delayed_by, late[delayed_by])


def _on_the_way(record: Record, device: int) -> Intervals:
    """Return the usual latency of launches that were made in a gap."""
    gaps = device_gaps(record)[["device", "start_ns", "launch_ns"]]
    gaps = gaps[gaps["device"] == device].sort_values("start_ns")
    start, end = segments_of(record, device, QUEUED)
    at = np.searchsorted(gaps["start_ns"].to_numpy(), start, side="right") - 1
    in_gap = (gaps["launch_ns"] >= gaps["start_ns"]).to_numpy(bool)[at]
    usual = in_gap & (end - start < LATENCY_NS)
    return start[usual], end[usual]


def main_cause(record: Record, gaps: pd.DataFrame) -> str:
    """Return the cause of most of the idle time: a key of `gpu_idle.WHEN`."""
    device = int(gaps["device"].iloc[0])
    cause = idle_cause(record, device)
    if cause.name == HOST:
        return cause.delayed_by
    if cause.name == OTHER:
        (start, end), causes = _unexplained(record, device, gaps)
        return str(pd.Series(end - start).groupby(causes).sum().idxmax())
    start, end = segments_of(record, device, QUEUED)
    queued = end - start
    late_ns = int(queued[queued >= LATENCY_NS].sum())  # longer than launch latency explains
    return LATE if cause.name == QUEUED and 2 * late_ns > int(queued.sum()) else cause.name


def segments_of_cause(record: Record, gaps: pd.DataFrame, cause: str) -> Intervals:
    """Return the idle time of a cause (a key of `gpu_idle.WHEN`): that of its class, if it has one.

    The usual latency of a launch counts for launching, not as queued work. Time before the first
    and after the last work is that, whatever the CPU did.
    """
    device = int(gaps["device"].iloc[0])
    own = recording_time(record.trace)
    if cause in (COLD, RECORDING):
        kinds, spans = (COLD_KINDS, cold_spans(record)) if cause == COLD else (DELAYS, own)
        parts = [segments_of(record, device, kind) for kind in kinds]
        return intervals.intersection(_joined(parts), spans)
    if cause in DELAYS:
        elsewhere = paid_once(record) if cause in COLD_KINDS else own
        parts = [intervals.difference(segments_of(record, device, cause), elsewhere)]
        parts += [_on_the_way(record, device)] if cause == LAUNCHING else []
        return _joined(parts)
    if cause in (QUEUED, LATE):
        return intervals.difference(
            segments_of(record, device, QUEUED), _on_the_way(record, device)
        )
    if cause in CLASSES:
        return segments_of(record, device, cause)
    if cause in EDGES:
        gaps = gaps[gaps["cause"] == cause]
        return gaps["start_ns"].to_numpy(np.int64), gaps["end_ns"].to_numpy(np.int64)
    (start, end), causes = _unexplained(record, device, gaps)
    return start[causes == cause], end[causes == cause]


def _joined(parts: list[Intervals]) -> Intervals:
    return intervals.union(*(np.concatenate(edges) for edges in zip(*parts, strict=True)))


def _unexplained(
    record: Record, device: int, gaps: pd.DataFrame
) -> tuple[Intervals, npt.NDArray[np.object_]]:
    """Return the segments that the trace does not explain, and the cause of each one's gap."""
    gaps = gaps.sort_values("start_ns")
    start, end = segments_of(record, device, OTHER)
    at = np.searchsorted(gaps["start_ns"].to_numpy(), start, side="right") - 1
    between = BETWEEN if record.trace.index.is_op.any() else GPU_ALONE
    cause = gaps["cause"].where(gaps["cause"].isin([*EDGES, "unknown"]), between)
    return (start, end), cause.to_numpy(object)[at]


def began_with_waits(gaps: pd.DataFrame) -> bool:
    """Whether most of this idle time is in gaps that began when the CPU had waited for the GPU."""
    times = gaps.groupby("cause")["dur_ns"].sum()
    return 2 * int(times.get("synchronise", 0)) >= max(int(times.sum()), 1)


def cold_ns(record: Record, device: int, kind: str) -> int:
    """Return how long a GPU waited for first calls of this kind (`cold_start`), in ns."""
    segments = segments_of(record, device, kind)
    return int(intervals.overlap(segments, cold_spans(record)).sum())


@dataclass(frozen=True)
class LongestCall:
    """The longest stretch in which a GPU waited for calls.

    ``row``: the call that took most of it, -1 if none did; ``is_most``: whether such a call exists
    and this stretch is more than half of all waiting.
    """

    start_ns: int
    end_ns: int
    row: int
    is_most: bool

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


def longest_call(record: Record, start: Ints, end: Ints) -> LongestCall:
    """Return the longest of the stretches from start to end in which a GPU waited."""
    if not len(start):
        return LongestCall(0, 0, NONE, False)
    longest, index = int((end - start).argmax()), record.trace.index
    t0, t1 = int(start[longest]), int(end[longest])
    calls = index.is_launch.copy()
    launch = index.column("launch")
    calls[launch[launch >= 0]] = True  # in traces without runtime calls (TensorFlow's), ops launch
    rows = np.flatnonzero(calls & index.on_tracks("cpu"))
    shared = np.minimum(index.end[rows], t1) - np.maximum(index.ts[rows], t0)
    if not len(rows) or 2 * shared.max() <= t1 - t0:
        return LongestCall(t0, t1, NONE, False)
    is_most = bool(2 * (t1 - t0) > int((end - start).sum()))
    return LongestCall(t0, t1, int(rows[shared.argmax()]), is_most)


def blames_first_calls(record: Record, device: int, least_share: float) -> bool:
    """Whether the finding on this GPU's idle time blames first calls."""
    cause = idle_cause(record, device)
    by_first_calls = cause.name == HOST and cause.delayed_by == COLD
    return by_first_calls and _idle_share(record, device) >= least_share


def blames_one_launch(record: Record, device: int, least_share: float) -> bool:
    """Whether the finding on this GPU's idle time blames a single launch."""
    cause = idle_cause(record, device)
    by_launches = cause.name == HOST and cause.delayed_by == LAUNCHING
    longest = longest_call(record, *segments_of(record, device, LAUNCHING))
    is_most = longest.is_most and 2 * longest.dur_ns > cause.delayed_ns
    return by_launches and is_most and _idle_share(record, device) >= least_share


def _idle_share(record: Record, device: int) -> float:
    table = device_busy(record)
    return 1 - float(table["busy_share"][table["device"] == device].max())


@remembered
def segments_of(record: Record, device: int, kind: str) -> tuple[Ints, Ints]:
    """Return starts and ends of a GPU's time in this class of the breakdown."""
    table = breakdown_segments(record)
    table = table[(table["device"] == device) & (table["class"] == kind)]
    return table["start_ns"].to_numpy(np.int64), table["end_ns"].to_numpy(np.int64)
