"""The worker processes of DataLoaders: recorded where asked for, else at least mentioned.

While a recording runs, the target of a new worker's process is a `RecordedLoop`, which writes what
it does into a folder. `time.perf_counter_ns` is one clock for all processes of a machine; read
beside the clock of the day, in whose time torch.profiler writes, it places the spans on the trace.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from gpuprof_widgets.capture.clocks import both_clocks, time_of_day
from gpuprof_widgets.capture.own_frames import without_own_calls
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.capture.temporary import temporary_folder
from gpuprof_widgets.capture.workers.files import WorkerFile, read_folder, track_slices
from gpuprof_widgets.capture.workers.process import RecordedLoop
from gpuprof_widgets.trace.edit import with_slices
from gpuprof_widgets.trace.model import Calls, Trace

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
