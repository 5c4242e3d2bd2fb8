"""Where every nanosecond of each GPU went: one class each, which add up to the span exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.breakdown_segments import (
    BUSY_CLASSES,
    CLASSES,
    HOST_CLASSES,
    IDLE_CLASSES,
    NOTHING,
    breakdown_segments,
)
from gpuprof_widgets.analyses.device_busy import devices
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.steps import NO_STEPS, rank_of, time_ranges
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.intervals import Intervals
from gpuprof_widgets.trace.model import Record

Ints = npt.NDArray[np.int64]

BUSY, IDLE, HOST = "busy", "idle", "host"
COLUMNS = ("rank", "device", "step", "state", "class", "time_ns", "share", "span_ns")
BY = ("device", "step")


def breakdown(record: Record, *, by: str = "device") -> pd.DataFrame:
    """One row per GPU and class (and step): how long; the classes add up to the span exactly.

    ``by``: "device" (the whole trace) or "step" (each step that the profiler's schedule marked, by
    the CPU's annotation: GPU work that runs later than that counts where it ran). Columns:
    ``rank`` (-1: unknown), ``device``, ``step`` (-1: the whole), ``state`` ("busy", "idle"; "host"
    without a GPU), ``class``, ``time_ns``, ``share`` (of the span), ``span_ns``. All classes have
    their row, also with 0 ns, in the order in which a moment is given to the first that fits:

    - "compute": a kernel runs that is not communication,
    - "exposed communication", "exposed copy", "memset": these run and nothing before them does,
    - the GPU is idle, by its next slice, the call that launched that, and what the thread was
      doing that made the call (where nothing was open on it, e.g. on autograd's: the main thread):
      "other": nothing followed, or the trace holds no launch of what did (or see the end); where
      a range lies within the gap, so that neither is known, what the main thread was doing counts;
      "queued": the launching call had returned, so what remains is the GPU's: launch latency, its
      time from one kernel to the next, or a wait of which the trace knows nothing;
      "launching": in the launching call;
      before it "input pipeline": in a DataLoader's ``__next__`` (in TensorFlow: an op waited for a
      queue or an iterator, and no other ran);
      "synchronising": in a call that waits for the GPU, and after it for as long as it had lasted,
      where the gap began in it: so much earlier would the next launch have come without it;
      "launching", "runtime calls": in a call that launches something else, or in another one of
      the runtime or driver (allocating, loading modules); "CPU ops": in an op, or in autograd's
      engine between two of them, or in a region of a program that we know nothing else of;
      "Python": in none of these, also suspended in ``await``, if PyTorch's ops or Python's frames,
      lines or calls are in the record (otherwise nobody knows what ran, and that is "other" too);
      and Python that an op ran, as far as that is known: frames and lines in it, what an
      ``autograd.Function`` in Python takes itself whose backward ran too, and stretches of 50 us
      and more of the engine's own time, where cProfile saw that hooks took about as long.

    So a class is what the CPU did at each moment. How a gap came about as a whole is `idle`'s
    cause: one that began in a short synchronisation is "synchronise" there from end to end, and
    here mostly what the CPU did after that.

    A record without GPU work has ``device`` -1, and its main thread's time (autograd's where that
    runs the backward pass) in the same idle classes, but first of all in "exposed communication":
    a collective of the CPU (gloo) was in flight, and no thread was in an op that computes.

    Peers: TraceLens has the same order of busy classes. The TensorBoard plugin puts copies and
    memsets before communication and so calls communication what is but the rest; it takes the CPU's
    state from all threads, and knows no `cuda_runtime`. HTA knows compute, not compute and idle,
    and has the time before the first and after the last GPU slice in no class.
    """
    if by not in BY:
        raise OptionError(f"a breakdown is by one of {', '.join(BY)}, not by {by!r}")
    return _of_devices(record) if by == "device" else _table(record, by)


@remembered
def _of_devices(record: Record) -> pd.DataFrame:
    return _table(record, "device")


def _table(record: Record, by: str) -> pd.DataFrame:
    segments = breakdown_segments(record)
    number, start, end = time_ranges(record, by)
    if not len(segments) or not len(number):
        return lacking(COLUMNS, NO_STEPS if len(segments) else NOTHING)
    device = segments["device"].to_numpy()
    classes = CLASSES if devices(record.trace) else HOST_CLASSES
    tables = [
        _class_rows(int(one), segments[device == one], classes, number, (start, end))
        for one in np.unique(device)
    ]
    table = pd.concat(tables, ignore_index=True)
    return table.assign(rank=rank_of(record.trace))[list(COLUMNS)]


def _class_rows(
    device: int,
    segments: pd.DataFrame,
    classes: tuple[str, ...],
    number: Ints,
    ranges: Intervals,
) -> pd.DataFrame:
    start, end = (segments[f"{edge}_ns"].to_numpy() for edge in ("start", "end"))
    code, times = segments["class"].cat.codes.to_numpy(), []
    for name in classes:
        mine = code == CLASSES.index(name)
        times.append(intervals.overlap(ranges, (start[mine], end[mine])))
    span = np.repeat(ranges[1] - ranges[0], len(classes))
    time = np.array(times).T.reshape(-1)
    host = dict.fromkeys(HOST_CLASSES, HOST)
    state = [(STATE_OF_CLASS if classes is CLASSES else host)[name] for name in classes]
    columns = {
        "device": device,
        "step": np.repeat(number, len(classes)),
        "state": state * len(number),
        "class": [*classes] * len(number),
        "time_ns": time,
        "share": time / np.maximum(span, 1),
        "span_ns": span,
    }
    return pd.DataFrame(columns)


STATE_OF_CLASS: Mapping[str, str] = {
    **dict.fromkeys(BUSY_CLASSES, BUSY),
    **dict.fromkeys(IDLE_CLASSES, IDLE),
}
