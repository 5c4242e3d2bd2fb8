"""The worker processes of DataLoaders: recorded where asked for, otherwise mentioned in a note.

While a recording runs, the target of a new worker's process is a `RecordedLoop`, which writes what
it does into a folder. `time.perf_counter_ns` is one clock for all processes of a machine; pairs of
readings with the time of day, in which torch.profiler writes, place the spans on the trace.

`Workers` is the part that records them, `UnrecordedWorkers` the part that mentions them, and
`WorkerStarts` marks how long they take to start. A `WorkerFile` is what one worker has written.
"""

from __future__ import annotations

import marshal
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from gpuprof_widgets.capture.frame_filter import with_labels, without_profiler_calls
from gpuprof_widgets.capture.interrupts import temporary_folder
from gpuprof_widgets.capture.part import Context, Part, both_clocks, time_of_day
from gpuprof_widgets.capture.worker_process import (
    CALLS,
    FETCH,
    IDLE,
    LENGTH_BYTES,
    MOST_ITEMS,
    PUT,
    SPANS,
    RecordedLoop,
)
from gpuprof_widgets.trace.edit import NewSlice, NewTrack, with_slices
from gpuprof_widgets.trace.model import Calls, Trace
from gpuprof_widgets.trace.pstats import calls_of_stats

LOADS_WITH_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
"""The region that torch opens while it waits for a batch from a worker."""

STARTS_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__init__"
"""Our region around the start of workers, named like torch's."""

CATEGORY, IDLE_CATEGORY = "worker", "worker_idle"

Span = tuple[str, int, int, int, int, int]
"""Name, start, end (ns of `perf_counter_ns`), batch, item (for a fetch: how many), index."""

_STARTED_BEFORE = (
    "the DataLoader's workers were started before this recording, so they are not in it; only "
    "workers that start during the recording are"
)


def workers(context: Context) -> Part:
    """Return the part that records workers, or the one that notes that they are not recorded."""
    return Workers(context) if context.options.workers else UnrecordedWorkers()


class UnrecordedWorkers(Part):
    """Notes that a run loaded its data in other processes, which are not recorded."""

    loses = "whether DataLoader workers ran is not known"

    def __init__(self) -> None:
        self._seen = False

    def refine(self, trace: Trace) -> Trace:
        self._seen = loads_with_workers(trace)
        return trace

    def notes(self) -> list[str]:
        note = "the DataLoader's worker processes are not recorded: --workers records them"
        return [note] if self._seen else []


class Workers(Part):
    """Records the workers that start in the run: their spans and their Python calls."""

    loses = "no DataLoader workers"
    starts_before_loop = True  # a loop's workers start with it, long before its first window

    def __init__(self, context: Context) -> None:
        self._counts_calls = context.options.counts_calls
        self._cell_labels = context.cell_labels
        self._folder: Path | None = None
        self._process = 0
        self._loop: Any = None
        self._began = self._ended = (0, 0)
        self._files: list[WorkerFile] = []
        self._waited = False

    def start(self) -> None:
        """Make every worker that starts from now on record itself."""
        from torch.utils.data._utils import worker

        self._folder = temporary_folder()
        self._process = os.getpid()
        self._began = both_clocks()
        self._loop = worker._worker_loop
        loop = RecordedLoop(self._loop, str(self._folder), cprofile=self._counts_calls)
        worker._worker_loop = loop

    def stop(self) -> None:
        """Restore torch's loop, and end the recording of workers that live on."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        from torch.utils.data._utils import worker

        worker._worker_loop = self._loop
        if os.getpid() != self._process:
            return  # a fork: the folder belongs to its parent
        self._ended = both_clocks()
        try:
            # Renamed first: a worker that looks for the folder then stops recording.
            folder = folder.rename(f"{folder}-ended")
            self._files += read_folder(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def refine(self, trace: Trace) -> Trace:
        self._waited |= loads_with_workers(trace)
        if not len(trace):
            return trace
        files, ended = self._files, self._ended
        if self._folder is not None:  # one window of several: the workers still run
            files, ended = read_folder(self._folder), both_clocks()

        def place(moment: int) -> int:
            return time_of_day(moment, began=self._began, ended=ended) - trace.epoch_ns

        slices, tracks = track_slices(files, trace, place)
        return with_slices(trace, slices, tracks) if slices else trace

    def notes(self) -> list[str]:
        if self._waited and not self._files:
            return [_STARTED_BEFORE]
        return [note for file in self._files for note in file.notes()]

    def metadata(self) -> dict[str, Any]:
        return {"workers": [file.about() for file in self._files]} if self._files else {}

    def calls(self) -> dict[str, Calls]:
        """Return what cProfile counted in each worker, by the worker's name."""
        by_worker = {}
        for file in self._files:
            if file.stats:
                calls = without_profiler_calls(calls_of_stats(file.stats), {})
                functions = with_labels(calls.functions, self._cell_labels)
                by_worker[file.name] = Calls(functions, calls.edges)
        return by_worker


def calls_of_workers(parts: Iterable[Part]) -> Mapping[str, Calls]:
    """Return what cProfile counted in the workers, if one of these parts recorded any."""
    return next((part.calls() for part in parts if isinstance(part, Workers)), {})


def loads_with_workers(trace: Trace) -> bool:
    """Whether a DataLoader waited for worker processes in this trace."""
    return LOADS_WITH_WORKERS in set(trace.slices["name"].cat.categories)


class WorkerStarts(Part):
    """Marks the time that ``iter(loader)`` takes to start processes, as input pipeline."""

    loses = "how long DataLoader workers took to start is not known"

    def __init__(self, context: Context) -> None:
        self._patch: _InRegion | None = None

    def start(self) -> None:
        """Open the region around every start of workers from now on."""
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        plain = kind.__dict__.get("__init__")
        if self._patch is None and isinstance(plain, FunctionType):
            self._patch = kind.__init__ = _InRegion(plain)

    def give_way(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Restore torch's class, unless the user has changed it meanwhile."""
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        patch, self._patch = self._patch, None
        if patch is None:
            return
        patch.ended = True
        if kind.__dict__.get("__init__") is patch:
            kind.__init__ = patch.plain


class _InRegion:
    """An ``__init__`` whose every call is a region on the trace, without a frame of ours around it.

    Warnings of torch's ``__init__``, which name its caller, would name our frame, and tracebacks
    would show it. Instead the bound method holds the region: it is freed, and torch ends the
    region, as soon as the call is over, however that ended.
    """

    def __init__(self, plain: FunctionType) -> None:
        self.plain = plain
        self.ended = False

    def __get__(self, iterator: Any, kind: type | None = None) -> Any:
        if iterator is None or self.ended:
            return self.plain.__get__(iterator, kind)
        from torch._C._autograd import _record_function_with_args_enter

        bound: Any = partial(self.plain, iterator)
        # No local variable holds the region: an interrupt's traceback would keep it open.
        bound.region = _record_function_with_args_enter(STARTS_WORKERS)
        return bound


@dataclass(frozen=True)
class WorkerFile:
    """One worker process: who it is, what it did, and how it ended.

    ``child`` is its number by multiprocessing, the order in which the workers were started; the
    order in which they run differs. ``stats`` is what cProfile had counted when it was last
    written, after ``counted`` items.
    """

    worker: int
    workers: int
    pid: int
    child: tuple[int, ...]
    end: int | None
    items: int
    died: bool
    spans: tuple[Span, ...]
    counted: int
    stats: dict[Any, Any]

    @property
    def name(self) -> str:
        """Its name in the profile, with the process: several loaders have a worker 0."""
        return f"worker{self.worker}.pid{self.pid}"

    def about(self) -> dict[str, Any]:
        """Return the worker's row of the metadata."""
        who = {"worker": self.worker, "workers": self.workers, "pid": self.pid}
        return {**who, "items_in_calls": self.counted, "died": self.died}

    def notes(self) -> Iterator[str]:
        """Yield what is missing of it."""
        who = f"DataLoader worker {self.worker} (pid {self.pid})"
        if self.died:
            fetched = {batch for name, _, _, batch, _, _ in self.spans if name == FETCH}
            last = max((span[3] for span in self.spans), default=-1)
            when = f"in batch {last}" if last not in fetched else f"after batch {last}"
            when = when if last >= 0 else "before its first batch"
            yield f"{who} died {when}: what it did until then is recorded"
        if self.items > MOST_ITEMS:
            yield f"{who}: the first {MOST_ITEMS:,} of its {self.items:,} items are on the timeline"


def read_folder(folder: Path) -> list[WorkerFile]:
    """Return the workers that wrote into this folder, in the order of their start."""
    files = map(_read, folder.glob(f"*{SPANS}"))
    return sorted((file for file in files if file is not None), key=lambda file: file.child)


def _read(path: Path) -> WorkerFile | None:
    entries = list(_entries(path.read_bytes()))
    if not entries:
        return None
    head, *rest = entries
    spans = [span for entry in rest if isinstance(entry, list) for span in entry]
    last = next((entry for entry in rest if isinstance(entry, dict)), {})
    calls = path.with_suffix(CALLS)  # not there without cProfile
    counted, stats = marshal.loads(calls.read_bytes()) if calls.exists() else (0, {})
    return WorkerFile(
        **head,
        end=last.get("end"),
        items=last.get("items", 0),
        died="end" not in last and not _is_alive(head["pid"]),
        spans=tuple(sorted(spans, key=lambda span: span[2])),  # two threads write
        counted=counted,
        stats=stats,
    )


def _entries(data: bytes) -> Iterator[Any]:
    """Yield the entries that the worker wrote, without one that it could not finish."""
    while len(data) > LENGTH_BYTES:
        end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
        if len(data) < end:
            return
        yield marshal.loads(data[LENGTH_BYTES:end])
        data = data[end:]


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def track_slices(
    files: list[WorkerFile], trace: Trace, place: Callable[[int], int]
) -> tuple[list[NewSlice], list[NewTrack]]:
    """Return the workers' spans, cut at the trace's bounds, and their tracks.

    A worker has two tracks: its loop, and the thread that pickles and sends batches meanwhile.
    """
    slices: list[NewSlice] = []
    tracks: list[NewTrack] = []
    for file in files:
        label = f"DataLoader worker {file.worker} · "
        for suffix, sends in ((f"pid {file.pid}", False), ("sending", True)):
            track = len(trace.tracks) + len(tracks)
            of_track = [span for span in file.spans if (span[0] == PUT) == sends]
            placed = (_slice(span, file, track, trace, place) for span in of_track)
            if visible := list(filter(None, placed)):
                slices += visible
                thread = f"{file.pid}{'-sending' if sends else ''}"
                tracks.append(NewTrack("worker", label + suffix, str(file.pid), thread))
    return slices, tracks


def _slice(
    span: Span, file: WorkerFile, track: int, trace: Trace, place: Callable[[int], int]
) -> NewSlice | None:
    name, began, ended, batch, item, index = span
    start, end = max(place(began), trace.start_ns), min(place(ended), trace.end_ns)
    if end <= start:
        return None
    if name == IDLE:  # it did not wait for this batch in particular
        return NewSlice(start, end - start, name, IDLE_CATEGORY, track, {"worker": file.worker})
    args = {"worker": file.worker, "batch": batch}
    if name == FETCH:
        args["items"] = item
    elif item >= 0:
        args["item"] = item
    if index >= 0:
        args["index"] = index
    return NewSlice(start, end - start, name, CATEGORY, track, args)
