"""The worker processes of DataLoaders: recorded where asked for, else at least mentioned.

While a recording runs, the target of a new worker's process is a `RecordedLoop`, which writes what
it does into a folder. `time.perf_counter_ns` is one clock for all processes of a machine; read
beside the clock of the day, in whose time torch.profiler writes, it places the spans on the trace.
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

import pandas as pd

from gpuprof_widgets.capture.interrupts import temporary_folder
from gpuprof_widgets.capture.own_frames import without_own_calls
from gpuprof_widgets.capture.part import Context, Part, both_clocks, time_of_day
from gpuprof_widgets.capture.workers.patches import FETCH, IDLE, PUT
from gpuprof_widgets.capture.workers.process import (
    CALLS,
    LENGTH_BYTES,
    MOST_ITEMS,
    SPANS,
    RecordedLoop,
)
from gpuprof_widgets.trace.edit import NewSlice, NewTrack, with_slices
from gpuprof_widgets.trace.model import Calls, Trace
from gpuprof_widgets.trace.pstats import calls_of_stats

LOADS_WITH_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
"""The region that torch opens while it waits for a batch from a worker."""

_STARTED_BEFORE = (
    "the DataLoader's workers were started before this recording, so they are not in it; those "
    "that start while it runs are"
)


def workers(context: Context) -> Part:
    """The part that records workers, or the one that says that they are not recorded."""
    return Workers(context) if context.options.workers else UnrecordedWorkers()


class UnrecordedWorkers:
    """Says what a profile lacks whose run loaded its data in other processes."""

    loses = "no word on the DataLoader's workers"

    def __init__(self) -> None:
        self._seen = False

    def start(self) -> None:
        """Nothing is put in."""

    def stop(self) -> None:
        """Nothing to take out."""

    def refine(self, trace: Trace) -> Trace:
        self._seen = loads_with_workers(trace)
        return trace

    def notes(self) -> list[str]:
        note = "the DataLoader's worker processes are not recorded: --workers does"
        return [note] if self._seen else []

    def metadata(self) -> dict[str, Any]:
        return {}


class Workers:
    """Records the workers that start in the run: their spans and their Python calls."""

    loses = "no DataLoader workers"
    starts_before_loop = True  # a loop's workers start with it, long before its first window

    def __init__(self, context: Context) -> None:
        self._cprofile = context.options.cprofile
        self._cell_labels = context.cell_labels
        self._folder: Path | None = None
        self._process = 0
        self._loop: Any = None
        self._began = self._ended = (0, 0)
        self._files: list[WorkerFile] = []
        self._waited = False

    def start(self) -> None:
        """Let every worker that starts from now on record itself."""
        if self._folder is not None:
            return
        from torch.utils.data._utils import worker

        self._folder = temporary_folder()
        self._process = os.getpid()
        self._began = both_clocks()
        self._loop = worker._worker_loop
        loop = RecordedLoop(self._loop, str(self._folder), cprofile=self._cprofile)
        worker._worker_loop = loop

    def stop(self) -> None:
        """Take the loop out again, and let the workers that live on go on without us."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        from torch.utils.data._utils import worker

        worker._worker_loop = self._loop
        if os.getpid() != self._process:
            return  # a fork: the folder is that of the process in which it was made
        self._ended = both_clocks()
        try:
            # Renamed at once: a worker that looks for the folder finds it gone, and stops.
            folder = folder.rename(f"{folder}-ended")
            self._files += read_folder(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def refine(self, trace: Trace) -> Trace:
        self._waited |= loads_with_workers(trace)
        if not len(trace):
            return trace
        files, ended = self._files, self._ended
        if self._folder is not None:  # one window of several: the workers are still at it
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
        """What cProfile counted in each worker, by the worker's name."""
        found = {file.name: file.calls() for file in self._files}
        return {
            name: self._labelled(without_own_calls(calls, {}))
            for name, calls in found.items()
            if calls is not None
        }

    def _labelled(self, calls: Calls) -> Calls:
        """Functions of cells under their cells' names."""
        files = [self._cell_labels.get(file, file) for file in calls.functions["file"]]
        named = calls.functions.assign(file=pd.Series(files, dtype=object))
        return Calls(named, calls.edges)


def calls_of_workers(parts: Iterable[Part]) -> Mapping[str, Calls]:
    """What cProfile counted in the workers, if one of these parts has recorded any."""
    return {
        name: calls
        for part in parts
        if isinstance(part, Workers)
        for name, calls in part.calls().items()
    }


def loads_with_workers(trace: Trace) -> bool:
    """Whether a DataLoader waited for worker processes in this trace."""
    return LOADS_WITH_WORKERS in set(trace.slices["name"].cat.categories)


STARTS_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__init__"
"""Named as torch names the region in which the loop waits for a batch."""


class WorkerStarts:
    """Marks what ``iter(loader)`` takes where it starts processes: input pipeline, not Python."""

    loses = "no word on how long DataLoader workers took to start"

    def __init__(self, context: Context) -> None:
        self._begin: _InRegion | None = None

    def start(self) -> None:
        """Open the region around every start of workers from now on."""
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        plain = kind.__dict__.get("__init__")
        if self._begin is None and isinstance(plain, FunctionType):
            self._begin = kind.__init__ = _InRegion(plain)

    def stop(self) -> None:
        """The class as torch has it, or as the user has made it meanwhile."""
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        begin, self._begin = self._begin, None
        if begin is None:
            return
        begin.ended = True
        if kind.__dict__.get("__init__") is begin:
            kind.__init__ = begin.plain

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        return {}


class _InRegion:
    """An ``__init__`` whose every call is a region on the trace, with no frame of ours around it.

    A frame would be where the warnings of torch's own ``__init__`` point to (they name its caller),
    and would stand in the traceback of its errors. Instead the bound method holds the region. It is
    freed, and torch ends the region, as soon as the call is over, however that ended.
    """

    def __init__(self, plain: FunctionType) -> None:
        self.plain = plain
        self.ended = False

    def __get__(self, iterator: Any, kind: type | None = None) -> Any:
        if iterator is None or self.ended:
            return self.plain.__get__(iterator, kind)
        from torch._C._autograd import _record_function_with_args_enter

        begin: Any = partial(self.plain, iterator)
        # No local name holds the region: an interrupt's traceback would keep it open.
        begin.region = _record_function_with_args_enter(STARTS_WORKERS)
        return begin


CATEGORY, IDLE_CATEGORY = "worker", "worker_idle"

Span = tuple[str, int, int, int, int, int]
"""Name, start, end (ns of `perf_counter_ns`), batch, item (of a fetch: how many), index."""


@dataclass(frozen=True)
class WorkerFile:
    """One worker process: who it is, what it did, and how it ended.

    ``child`` is the number that multiprocessing gave it: its parent started them one by one, while
    which of them is the first to run depends on the machine.
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
        """Its name in the profile; a loader's workers are numbered, its processes are not."""
        return f"worker{self.worker}.pid{self.pid}"

    def calls(self) -> Calls | None:
        """What cProfile counted in the ``counted`` items it had seen when it was last written."""
        return calls_of_stats(self.stats) if self.stats else None

    def about(self) -> dict[str, Any]:
        """What the metadata says of it."""
        who = {"worker": self.worker, "workers": self.workers, "pid": self.pid}
        return {**who, "items_in_calls": self.counted, "died": self.died}

    def notes(self) -> Iterator[str]:
        """What is missing of it."""
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
    """The workers that wrote into this folder, in the order of their start."""
    found = [one for path in folder.glob(f"*{SPANS}") if (one := _read(path)) is not None]
    return sorted(found, key=lambda one: one.child)


def _read(path: Path) -> WorkerFile | None:
    told = list(_told(path.read_bytes()))
    if not told:
        return None
    head, *rest = told
    spans = [span for one in rest if isinstance(one, list) for span in one]
    last = next((one for one in rest if isinstance(one, dict)), {})
    counted, stats = _stats(path.with_suffix(CALLS))
    return WorkerFile(
        **head,
        end=last.get("end"),
        items=last.get("items", 0),
        died="end" not in last and not _is_alive(head["pid"]),
        spans=tuple(sorted(spans, key=lambda span: span[2])),  # two threads of it write
        counted=counted,
        stats=stats,
    )


def _stats(path: Path) -> tuple[int, dict[Any, Any]]:
    """The items and the calls in them, as cProfile had them last; nothing where it did not run."""
    if not path.exists():
        return 0, {}
    counted, stats = marshal.loads(path.read_bytes())
    return counted, stats


def _told(data: bytes) -> Iterator[Any]:
    """What the worker wrote, piece by piece, without one that it could not finish."""
    while len(data) > LENGTH_BYTES:
        end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
        if len(data) < end:
            return
        yield marshal.loads(data[LENGTH_BYTES:end])
        data = data[end:]


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
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
    """The workers' spans within the trace's bounds, cut there, and the tracks they lie on.

    A worker has two: its loop, and the thread that pickles and sends batches meanwhile.
    """
    slices: list[NewSlice] = []
    tracks: list[NewTrack] = []
    for file in files:
        label = f"DataLoader worker {file.worker} · "
        for suffix, sends in ((f"pid {file.pid}", False), ("sending", True)):
            track = len(trace.tracks) + len(tracks)
            mine = [span for span in file.spans if (span[0] == PUT) == sends]
            placed = [_slice(span, file, track, trace, place) for span in mine]
            inside = [one for one in placed if one is not None]
            if inside:
                slices += inside
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
    args = {"worker": file.worker, "batch": batch}
    if name == FETCH:
        args["items"] = item
    elif item >= 0:
        args["item"] = item
    if index >= 0:
        args["index"] = index
    if name == IDLE:
        del args["batch"]  # it did not wait for this one in particular
    category = IDLE_CATEGORY if name == IDLE else CATEGORY
    return NewSlice(start, end - start, name, category, track, args)
