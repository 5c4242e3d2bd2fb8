"""GPU slices and what each had to wait for: its launch, its stream, events of other streams.

Waits for other streams come from recorded events (`event_waits`); where no event was recorded they
are inferred from the times (`stream_waits`).
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_work import gpu_kinds
from gpuprof_widgets.analyses.host_states import Threads
from gpuprof_widgets.analyses.operators import arg_numbers
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

NEVER = np.iinfo(np.int64).min // 4
"""Time of an event that did not happen or is not known."""

WAIT_EVENT = re.compile(r"(cuda|hip|cu)StreamWaitEvent(_\w+)?")


@dataclass(frozen=True)
class GpuWork:
    """The GPU slices of a range by their start, cut at its edges (times in ns).

    ``row``, ``start``, ``end``, ``ended`` (not cut), ``stream`` (a number per device and stream),
    ``kind`` (see `gpu_kinds`); ``launched``: when it was launched, mostly when its call began,
    `NEVER` if unknown; ``thread``: that launched it, -1 if unknown, before the range, or if it
    follows another slice of the same call.
    """

    row: Ints
    start: Ints
    end: Ints
    ended: Ints
    stream: Ints
    kind: npt.NDArray[np.object_]
    launched: Ints
    thread: Ints
    names: pd.DataFrame
    """Per stream number: ``device``, ``stream``."""

    def __len__(self) -> int:
        return len(self.row)

    def launched_next(self, stream: Ints, time: Ints, *, offset: int = 0) -> Ints:
        """Return per stream and time the slice launched on it first from then on; -1 for none.

        With an ``offset`` of -1, the slice launched last before then.
        """
        known = np.flatnonzero(self.launched != NEVER)
        return self._next(known, self.launched, stream, time, offset)

    def _next(self, rows: Rows, moment: Ints, stream: Ints, time: Ints, offset: int) -> Ints:
        """Return per stream and time the first of these rows whose moment is not before the time.

        With an ``offset`` of -1, the last whose moment is before it; -1 for none on that stream.
        """
        order = rows[np.lexsort((moment[rows], self.stream[rows]))]
        times = np.concatenate([moment[order], time])
        if not len(times):
            return np.zeros(0, np.int64)
        low, room = times.min(), np.ptp(times) + 1  # streams follow one another on a line
        keys = self.stream[order] * room + (moment[order] - low)
        place = np.searchsorted(keys, stream * room + (time - low)) + offset
        row = np.append(order, NONE)[place]
        return np.where(take(self.stream, row) == stream, row, NONE).astype(np.int64)

    @cached_property
    def before(self) -> Ints:
        """The slice of the same stream that ended last before each began; -1 for none."""
        return self._next(np.arange(len(self)), self.end, self.stream, self.start + 1, NONE)

    def followers(self) -> tuple[Ints, Ints]:
        """Return pairs: a slice, and the first slice of its stream that begins after it ended."""
        follower = self._next(np.arange(len(self)), self.start, self.stream, self.end, 0)
        source = np.flatnonzero(follower >= 0)
        return source, follower[source]

    @cached_property
    def overlaps(self) -> Mask:
        """Which slices run while another slice of their stream does."""
        order = np.argsort(self.stream, kind="stable")
        room = int(self.end.max(initial=0) - self.start.min(initial=0)) + 1
        start, end = (self.stream[order] * room + time[order] for time in (self.start, self.end))
        late = start[1:] < np.maximum.accumulate(end)[:-1]
        overlaps = np.zeros(len(self), bool)
        overlaps[order[1:]] = late
        overlaps[order[:-1]] |= late
        return overlaps

    @cached_property
    def running(self) -> Ints:
        """The slice of the same stream that runs when each begins, the first to end; -1: none."""
        running = np.full(len(self), NONE, np.int64)
        open_: dict[int, list[tuple[int, int]]] = {}
        places = np.flatnonzero(self.overlaps)
        columns = (column[places].tolist() for column in (self.stream, self.start, self.end))
        for place, stream, start, end in zip(places.tolist(), *columns, strict=True):
            heap = open_.setdefault(stream, [])
            while heap and heap[0][0] <= start:
                heapq.heappop(heap)
            if heap:
                running[place] = heap[0][1]
            heapq.heappush(heap, (end, place))
        return running

    @cached_property
    def previous(self) -> Ints:
        """The slice that each follows on its stream; -1 for none.

        Of those that began before it, this is the one whose end is nearest to its start, mostly the
        one that ended last. But kernels of a graph's replay overlap the next by a few hundred ns,
        and branches of a graph, reported on one stream, run beside one another for long.
        """
        running_until, before_until = (
            take(self.end, slices, NEVER) for slices in (self.running, self.before)
        )
        nearer = running_until - self.start < self.start - before_until
        return np.where((self.running >= 0) & nearer, self.running, self.before)

    @property
    def free(self) -> Ints:
        """When the stream was free for each slice: when its previous ended, at most its start."""
        return np.minimum(take(self.end, self.previous, NEVER), self.start)


def gpu_work(trace: Trace, threads: Threads) -> GpuWork:
    """Return the GPU slices in the threads' range, without those of zero length."""
    rows, kinds = gpu_kinds(trace)
    began, ended = trace.index.uncut
    t0, t1 = threads.t0, threads.t1
    start, end = np.clip(began[rows], t0, t1), np.clip(ended[rows], t0, t1)
    kept = (end > start) & (trace.slices["count"].to_numpy()[rows] > 0)
    order = np.flatnonzero(kept)[np.lexsort((end[kept], start[kept]))]
    rows, kinds, start, end = rows[order], kinds[order], start[order], end[order]
    streams = trace.tracks[["device", "stream"]].iloc[trace.index.track[rows]]
    streams = streams.reset_index(drop=True)
    names = streams.drop_duplicates().sort_values(["device", "stream"], ignore_index=True)
    stream = streams.merge(names.reset_index(), how="left")["index"].to_numpy(np.int64)
    call, op = (trace.index.column(link)[rows] for link in ("launch", "op"))
    by_op = take(trace.index.is_op, op, False)
    launch = np.where(call >= 0, call, np.where(by_op, op, NONE)).astype(np.int64)
    lanes = trace.tracks["lane"].to_numpy()[trace.index.track[launch]]
    at = np.searchsorted(threads.lane, lanes)
    known = np.append(threads.lane, NONE)[at] == lanes
    launched = take(began, launch, NEVER)
    usable = known & (launched >= t0) & (launched <= start)
    thread = np.where(usable, at, NONE)
    work = GpuWork(
        rows.astype(np.int64), start, end, ended[rows], stream, kinds, launched,
        thread.astype(np.int64), names,
    )  # fmt: skip
    # If the stream was idle and the slice began long after its call, the call itself was at work
    # until the usual delay before the slice: a copy from pageable memory has to be staged first.
    idle = usable & (work.free <= launched)
    usual = median(start[idle] - launched[idle])
    returned = np.where(take(trace.index.is_op, launch, False), NEVER, ended[launch])
    until = np.minimum(returned, start - usual)
    slow = idle & (until - launched > usual) & (usual > 0)
    # A slice waits for an earlier one of the same call and not for the call: the launch of a graph
    # leads to the first slice of its replay on each stream, then along it.
    follows = (call >= 0) & (take(call, work.previous) == call)
    thread = np.where(follows, NONE, work.thread)
    return replace(work, launched=np.where(slow, until, launched), thread=thread)


def median(delays: Ints) -> int:
    """Return the median of delays (ns); 0 without any."""
    return int(np.median(delays)) if len(delays) else 0


def event_waits(trace: Trace, work: GpuWork) -> tuple[Ints, Ints]:
    """Return pairs of GPU slices: the second waited for an event recorded after the first.

    The trace has ``cuda_sync`` events with ``enable_cuda_sync_events``: the first slice is the last
    one launched on the awaited stream before cudaEventRecord, the second the first one launched on
    the waiting stream after cudaStreamWaitEvent. Without such events `_inferred_waits` counts.
    """
    syncs = sync_events(trace)
    syncs = syncs[syncs["kind"] == "Stream Wait Event"]
    if not len(syncs):
        return _inferred_waits(trace, work)
    calls = calls_by_correlation(trace)
    recorded = calls.reindex(syncs["record"]).to_numpy()
    waited = calls.reindex(syncs["correlation"]).to_numpy()
    source_stream = stream_numbers(work, syncs["device"], syncs["wait_on_stream"])
    target_stream = stream_numbers(work, syncs["device"], syncs["stream"])
    known = ~np.isnan(recorded) & ~np.isnan(waited) & (source_stream >= 0) & (target_stream >= 0)
    at, until = recorded[known].astype(np.int64), waited[known].astype(np.int64)
    source = work.launched_next(source_stream[known], at, offset=-1)
    target = work.launched_next(target_stream[known], until)
    return _possible(work, source, target)


def _inferred_waits(trace: Trace, work: GpuWork) -> tuple[Ints, Ints]:
    """Infer waits from the times where only the calls of cudaStreamWaitEvent were traced.

    The waiting slice is the first launched on its stream after such a call. It waited for the slice
    of another stream of its device that ended last before it began, if that ended after the
    waiting slice was launched and after its own stream was free.
    """
    calls = np.flatnonzero(trace.index.matching(WAIT_EVENT))
    if not len(calls) or not len(work):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    began, _ = trace.index.uncut
    moments = np.sort(began[calls])
    order = np.lexsort((work.launched, work.stream))
    launched, stream = work.launched[order], work.stream[order]
    before = np.append(NEVER, np.where(stream[1:] == stream[:-1], launched[:-1], NEVER))
    after_wait = np.searchsorted(moments, launched) > np.searchsorted(moments, before)
    target = order[after_wait & (launched != NEVER)]
    by_end = np.argsort(work.end, kind="stable")
    at = np.searchsorted(work.end[by_end], work.start[target], side="right") - 1
    source = take(by_end, at)
    other = (source >= 0) & (work.stream[source] != work.stream[target])
    device = work.names["device"].to_numpy()
    other &= device[work.stream[source]] == device[work.stream[target]]
    late = work.end[source] > np.maximum(work.launched[target], work.free[target])
    return _possible(work, np.where(other & late, source, NONE), target)


def _possible(work: GpuWork, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Drop pairs that contradict the times, because clocks and records are not always right."""
    known = (source >= 0) & (target >= 0)
    source, target = source[known], target[known]
    fits = work.end[source] <= work.start[target]
    return source[fits], target[fits]


def sync_events(trace: Trace) -> pd.DataFrame:
    """Return the ``cuda_sync`` events, with -1 for missing values.

    Columns: ``kind``, ``correlation``, ``device``, ``stream``, ``wait_on_stream``, ``record``
    (correlation of the cudaEventRecord).
    """
    rows = np.flatnonzero(trace.index.in_category("cuda_sync"))
    return pd.DataFrame(
        {
            "kind": trace.index.names_of(rows),
            "correlation": trace.index.column("correlation")[rows],
            "device": arg_numbers(trace, "device", rows, NONE),
            "stream": arg_numbers(trace, "stream", rows, NONE),
            "wait_on_stream": arg_numbers(trace, "wait_on_stream", rows, NONE),
            "record": arg_numbers(trace, "wait_on_cuda_event_record_corr_id", rows, NONE),
        }
    )


def calls_by_correlation(trace: Trace) -> pd.Series:
    """Return the start of each runtime call by its correlation id."""
    correlation = trace.index.column("correlation")
    rows = np.flatnonzero(trace.index.is_launch & (correlation > 0))
    starts = pd.Series(trace.index.uncut[0][rows], index=correlation[rows])
    return starts[~starts.index.duplicated()]


def stream_numbers(work: GpuWork, device: pd.Series, stream: pd.Series) -> Ints:
    """Return the numbers of these streams in `GpuWork`; -1 for streams without work."""
    wanted = pd.DataFrame({"device": device.to_numpy(), "stream": stream.to_numpy()})
    numbers = wanted.merge(work.names.reset_index(), how="left", on=["device", "stream"])["index"]
    return np.asarray(numbers.fillna(NONE), np.int64)


NEAR_NS = 20_000
"""Longest delay between a slice and one of another stream that waited for it: 1 to 6 us in a trace
of A100s, up to 19 us in one of MI300Xs (where the event that joins them was traced)."""


def stream_waits(work: GpuWork, ready: Ints) -> tuple[Ints, Ints]:
    """Return pairs of GPU slices: the second must have waited for the first, on another stream.

    ``ready``: when each slice could usually have begun, by all known causes. If a slice begins at
    most `NEAR_NS` after the end of one of another stream of its device, it waited for that slice,
    by an untraced event or for room on the GPU; the end has to be more than `NEAR_NS` after
    ``ready``, because less may be chance. A slice with unknown launch may have been launched that
    late. It counts only if one slice of the other stream ran all the time since ``ready``, or if it
    is communication: torch's process group makes its stream wait for the work before it.
    """
    # The slice of its device that ended last before each slice that began late.
    late = work.start - ready > NEAR_NS
    device = work.names["device"].to_numpy()[work.stream]
    source = np.full(len(work), NONE, np.int64)
    for gpu in np.unique(device[late]):
        by_end = np.flatnonzero(device == gpu)
        by_end = by_end[np.argsort(work.end[by_end], kind="stable")]
        asked = np.flatnonzero(late & (device == gpu))
        at = np.searchsorted(work.end[by_end], work.start[asked], side="right") - 1
        source[asked] = take(by_end, at)
    ended, began = (take(times, source, NEVER) for times in (work.end, work.start))
    near = (source >= 0) & (work.start - ended <= NEAR_NS) & (ended - ready > NEAR_NS)
    communication = work.kind == "communication"
    target = np.flatnonzero(near & ((work.launched != NEVER) | (began <= ready) | communication))
    return source[target], target
