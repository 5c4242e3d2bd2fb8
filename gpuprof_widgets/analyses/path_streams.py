"""GPU slices and what each had to wait for: its launch, its stream, events of other streams."""

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
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

NEVER = np.iinfo(np.int64).min // 4
"""Stands for the time of something that is not there."""

WAIT_EVENT = re.compile(r"(cuda|hip|cu)StreamWaitEvent(_\w+)?")


@dataclass(frozen=True)
class GpuWork:
    """The GPU slices of a range by their start, cut at its edges (times in ns).

    ``row``, ``start``, ``end``, ``ended`` (not cut), ``stream`` (a number per device and stream),
    ``kind`` (see `gpu_kinds`); ``launched`` (start of the call that launched it, `NEVER` where
    unknown; see `_given`), ``thread`` (that launched it, -1 where unknown or before the range, and
    where it follows another slice of the same call: see `_follows`).
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

    def last_launched(self, stream: Ints, before: Ints) -> Ints:
        """Per stream and moment: the slice launched on it last before then; -1 for none."""
        known = np.flatnonzero(self.launched != NEVER)
        order = known[np.lexsort((self.launched[known], self.stream[known]))]
        at = _position((self.stream[order], self.launched[order]), (stream, before)) - 1
        found = order[np.maximum(at, 0)] if len(order) else np.zeros(len(stream), np.int64)
        hit = (at >= 0) & (self.stream[found] == stream) if len(order) else np.zeros(len(at), bool)
        return np.where(hit, found, NONE).astype(np.int64)

    def next_launched(self, stream: Ints, after: Ints) -> Ints:
        """Per stream and moment: the slice launched on it first from then on; -1 for none."""
        known = np.flatnonzero(self.launched != NEVER)
        order = known[np.lexsort((self.launched[known], self.stream[known]))]
        at = _position((self.stream[order], self.launched[order]), (stream, after))
        found = np.append(order, NONE)[np.minimum(at, len(order))]
        hit = (found >= 0) & (np.append(self.stream, NONE)[found] == stream)
        return np.where(hit, found, NONE).astype(np.int64)

    @cached_property
    def before(self) -> Ints:
        """Per slice the one of its stream that ended last before it began; -1 for none."""
        order = np.lexsort((self.end, self.stream))
        at = _position((self.stream[order], self.end[order]), (self.stream, self.start + 1)) - 1
        found = order[np.maximum(at, 0)] if len(order) else np.zeros(0, np.int64)
        hit = (at >= 0) & (self.stream[found] == self.stream)
        return np.where(hit, found, NONE).astype(np.int64)

    def followers(self) -> tuple[Ints, Ints]:
        """Pairs of slices of a stream: the second is the first to begin once the first ended."""
        by_stream = np.lexsort((self.start, self.stream))
        ordered = self.stream[by_stream], self.start[by_stream]
        found = np.append(by_stream, NONE)[_position(ordered, (self.stream, self.end))]
        source = np.flatnonzero(np.append(self.stream, NONE)[found] == self.stream)
        return source, found[source]

    @cached_property
    def overlaps(self) -> npt.NDArray[np.bool_]:
        """Which slices run while another of their stream does."""
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
        """Per slice the one of its stream that runs when it begins, the first to end; -1: none."""
        found = np.full(len(self), NONE, np.int64)
        open_: dict[int, list[tuple[int, int]]] = {}
        places = np.flatnonzero(self.overlaps)
        columns = (column[places].tolist() for column in (self.stream, self.start, self.end))
        for place, stream, start, end in zip(places.tolist(), *columns, strict=True):
            heap = open_.setdefault(stream, [])
            while heap and heap[0][0] <= start:
                heapq.heappop(heap)
            if heap:
                found[place] = heap[0][1]
            heapq.heappush(heap, (end, place))
        return found

    @cached_property
    def previous(self) -> Ints:
        """Per slice the one that it follows on its stream; -1 for none.

        Of those that began before it the one whose end is nearest to its start. Mostly that is the
        one that ended last. But kernels of a graph's replay overlap the next by a few hundred ns,
        and branches of a graph, reported on one stream, run beside one another for long.
        """
        begun, over = self.start, np.append(self.end, NEVER)
        nearer = over[self.running] - begun < begun - over[self.before]
        found = np.where((self.running >= 0) & nearer, self.running, self.before)
        return np.asarray(found, np.int64)

    @property
    def free(self) -> Ints:
        """When the one that each follows let it begin: by its end, or where they overlap, then."""
        return np.asarray(np.minimum(np.append(self.end, NEVER)[self.previous], self.start))


def _position(sorted_pairs: tuple[Ints, Ints], wanted: tuple[Ints, Ints]) -> Ints:
    """Per wanted pair: how many of the sorted ones come before it."""
    times = np.concatenate([sorted_pairs[1], wanted[1]])
    if not len(times):
        return np.zeros(0, np.int64)
    low, room = int(times.min()), int(times.max() - times.min()) + 1
    keys = sorted_pairs[0] * room + (sorted_pairs[1] - low)
    return np.searchsorted(keys, wanted[0] * room + (wanted[1] - low), side="left").astype(np.int64)


def gpu_work(trace: Trace, threads: Threads) -> GpuWork:
    """The GPU slices in the threads' range; those without length take no part."""
    rows, kinds = gpu_kinds(trace)
    began, ended = trace.index.uncut
    t0, t1 = threads.t0, threads.t1
    start, end = np.clip(began[rows], t0, t1), np.clip(ended[rows], t0, t1)
    kept = (end > start) & (trace.slices["count"].to_numpy()[rows] > 0)
    order = np.flatnonzero(kept)[np.lexsort((end[kept], start[kept]))]
    rows, kinds, start, end = rows[order], kinds[order], start[order], end[order]
    tracks = trace.tracks.iloc[trace.slices["track"].to_numpy()[rows]]
    streams = tracks[["device", "stream"]].reset_index(drop=True)
    names = streams.drop_duplicates().sort_values(["device", "stream"], ignore_index=True)
    stream = streams.merge(names.reset_index(), how="left")["index"].to_numpy(np.int64)
    launch = _launchers(trace, rows)
    lanes = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()[launch]]
    at = np.searchsorted(threads.lane, lanes)
    known = np.append(threads.lane, NONE)[at] == lanes
    launched = np.where(launch >= 0, began[launch], NEVER)
    usable = known & (launched >= t0) & (launched <= start)
    thread = np.where(usable, at, NONE)
    work = GpuWork(
        rows.astype(np.int64), start, end, ended[rows], stream, kinds, launched,
        thread.astype(np.int64), names,
    )  # fmt: skip
    is_call = ~np.append(trace.index.is_op, False)[launch]
    given = _given(work, np.where(is_call, ended[launch], NEVER))
    thread = np.where(_follows(trace, work), NONE, work.thread)
    return replace(work, launched=given, thread=thread)


def _follows(trace: Trace, work: GpuWork) -> npt.NDArray[np.bool_]:
    """Which slices follow one of the same call: that is what they wait for, not the call.

    So the launch of a graph leads to what begins its replay on each stream, and on from there.
    """
    launch = trace.slices["launch"].to_numpy()[work.row]
    before = np.append(launch, NONE)[work.previous]
    return np.asarray((launch >= 0) & (before == launch), bool)


def _given(work: GpuWork, returned: Ints) -> Ints:
    """When the launch of each slice was under way: mostly when its call began.

    A call that took long before its slice began, on a stream that was idle, was at work itself
    until the usual delay before that: a copy from pageable memory has to be staged first.
    """
    usable = work.thread >= 0
    idle = usable & (work.free <= work.launched)
    usual = int(np.median(work.start[idle] - work.launched[idle])) if idle.any() else 0
    until = np.minimum(returned, work.start - usual)
    slow = idle & (until - work.launched > usual) & (usual > 0)
    return np.where(slow, until, work.launched)


def _launchers(trace: Trace, rows: npt.NDArray[np.intp]) -> Ints:
    """The call that launched each slice; where the trace has none the op, if that is known."""
    launch, op = (trace.slices[link].to_numpy()[rows] for link in ("launch", "op"))
    by_op = (op >= 0) & np.append(trace.index.is_op, False)[op]
    return np.where(launch >= 0, launch, np.where(by_op, op, NONE)).astype(np.int64)


def event_waits(trace: Trace, work: GpuWork) -> tuple[Ints, Ints]:
    """Pairs of GPU slices: the second waited for an event recorded after the first.

    As the trace tells it (``cuda_sync`` events, with ``enable_cuda_sync_events``): the last slice
    launched on the awaited stream before cudaEventRecord, and the first one launched on the waiting
    stream after cudaStreamWaitEvent. Without such events it is inferred (`_inferred`).
    """
    syncs = sync_events(trace)
    syncs = syncs[syncs["kind"] == "Stream Wait Event"]
    if not len(syncs):
        return _inferred(trace, work)
    calls = calls_by_correlation(trace)
    recorded = calls.reindex(syncs["record"]).to_numpy()
    waited = calls.reindex(syncs["correlation"]).to_numpy()
    source_stream = stream_numbers(work, syncs["device"], syncs["wait_on_stream"])
    target_stream = stream_numbers(work, syncs["device"], syncs["stream"])
    told = ~np.isnan(recorded) & ~np.isnan(waited) & (source_stream >= 0) & (target_stream >= 0)
    at, until = recorded[told].astype(np.int64), waited[told].astype(np.int64)
    source = work.last_launched(source_stream[told], at)
    target = work.next_launched(target_stream[told], until)
    return _possible(work, source, target)


def _inferred(trace: Trace, work: GpuWork) -> tuple[Ints, Ints]:
    """Waits that follow from the times, where only the call of cudaStreamWaitEvent was traced.

    The slice is the first launched on its stream after that call (on the launching thread); it
    waited for the slice of another stream of its device that ended last before it began, if that
    ended after the slice was launched and after its own stream was free.
    """
    calls = np.flatnonzero(trace.index.matching(WAIT_EVENT))
    if not len(calls) or not len(work):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    began, _ = trace.index.uncut
    moments = np.sort(began[calls])
    order = np.lexsort((work.launched, work.stream))
    before = np.append(NEVER, work.launched[order][:-1])
    first = np.append(True, work.stream[order][1:] != work.stream[order][:-1])
    before = np.where(first, NEVER, before)
    after_wait = np.searchsorted(moments, work.launched[order]) > np.searchsorted(moments, before)
    target = order[after_wait & (work.launched[order] != NEVER)]
    by_end = np.argsort(work.end, kind="stable")
    at = np.searchsorted(work.end[by_end], work.start[target], side="right") - 1
    source = np.where(at >= 0, by_end[np.maximum(at, 0)], NONE)
    other = (source >= 0) & (work.stream[source] != work.stream[target])
    device = work.names["device"].to_numpy()
    other &= device[work.stream[source]] == device[work.stream[target]]
    late = work.end[source] > np.maximum(work.launched[target], work.free[target])
    return _possible(work, np.where(other & late, source, NONE), target)


def _possible(work: GpuWork, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Without what contradicts the times: clocks and records are not always right."""
    known = (source >= 0) & (target >= 0)
    source, target = source[known], target[known]
    fits = work.end[source] <= work.start[target]
    return source[fits], target[fits]


def sync_events(trace: Trace) -> pd.DataFrame:
    """The ``cuda_sync`` events, -1 for what they do not say.

    Columns: ``kind``, ``correlation``, ``device``, ``stream``, ``wait_on_stream``, ``record``
    (correlation of the cudaEventRecord).
    """
    rows = np.flatnonzero(trace.index.in_category("cuda_sync"))

    def arg(key: str) -> Ints:
        values = trace.args.get(key)
        if values is None:
            return np.full(len(rows), NONE, np.int64)
        numbers = pd.to_numeric(values.reindex(rows), errors="coerce").fillna(NONE)
        return np.asarray(numbers, np.float64).astype(np.int64)

    return pd.DataFrame(
        {
            "kind": trace.slices["name"].to_numpy(object)[rows],
            "correlation": trace.slices["correlation"].to_numpy()[rows],
            "device": arg("device"),
            "stream": arg("stream"),
            "wait_on_stream": arg("wait_on_stream"),
            "record": arg("wait_on_cuda_event_record_corr_id"),
        }
    )


def calls_by_correlation(trace: Trace) -> pd.Series:
    """Start of the runtime call by its correlation id."""
    slices = trace.slices
    rows = np.flatnonzero(trace.index.is_launch & (slices["correlation"].to_numpy() > 0))
    began, _ = trace.index.uncut
    starts = pd.Series(began[rows], index=slices["correlation"].to_numpy()[rows])
    return starts[~starts.index.duplicated()]


def stream_numbers(work: GpuWork, device: pd.Series, stream: pd.Series) -> Ints:
    """The numbers that `GpuWork` gives to these streams; -1 for one that ran nothing."""
    wanted = pd.DataFrame({"device": device.to_numpy(), "stream": stream.to_numpy()})
    found = wanted.merge(work.names.reset_index(), how="left", on=["device", "stream"])["index"]
    return np.asarray(found.fillna(NONE), np.int64)


NEAR_NS = 20_000
"""From the end of a slice until one of another stream that waited for it begins: 1 to 6 us in a
trace of A100s, up to 19 us in one of MI300Xs (where the event that joins them was traced)."""


def stream_waits(work: GpuWork, ready: Ints) -> tuple[Ints, Ints]:
    """Pairs of GPU slices: the second must have waited for the first, on another stream.

    ``ready``: when all that is known to let a slice begin usually had done so. A slice that begins
    at most `NEAR_NS` after the end of a slice of another stream of its device waited for that, by
    an event that was not traced or for room on the GPU, where that end was more than `NEAR_NS`
    after ``ready``: less may be chance. One whose launch is unknown may have been launched that
    late: it counts where a single slice of the other stream ran during all the time since
    ``ready``, or where it is communication, whose stream torch's process group makes wait for the
    work before it.
    """
    source = _last_ended(work, work.start - ready > NEAR_NS)
    ended, began = (np.append(times, NEVER)[source] for times in (work.end, work.start))
    near = (source >= 0) & (work.start - ended <= NEAR_NS) & (ended - ready > NEAR_NS)
    communication = work.kind == "communication"
    found = np.flatnonzero(near & ((work.launched != NEVER) | (began <= ready) | communication))
    return source[found], found


def _last_ended(work: GpuWork, wanted: npt.NDArray[np.bool_]) -> Ints:
    """Of each wanted slice the one of its device that ended last before it began; -1 for none."""
    device = work.names["device"].to_numpy()[work.stream]
    found = np.full(len(work), NONE, np.int64)
    for one in np.unique(device[wanted]):
        mine = np.flatnonzero(device == one)
        mine = mine[np.argsort(work.end[mine], kind="stable")]
        asked = np.flatnonzero(wanted & (device == one))
        at = np.searchsorted(work.end[mine], work.start[asked], side="right") - 1
        found[asked] = np.where(at >= 0, mine[np.maximum(at, 0)], NONE)
    return found
