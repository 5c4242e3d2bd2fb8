"""What DataLoader workers have written: their files read back, as slices on tracks of their own."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof_widgets.capture.workers.patches import FETCH, IDLE, PUT
from gpuprof_widgets.capture.workers.process import CALLS, LENGTH_BYTES, MOST_ITEMS, SPANS
from gpuprof_widgets.trace.edit import NewSlice, NewTrack
from gpuprof_widgets.trace.model import Calls, Trace
from gpuprof_widgets.trace.pstats import calls_of_stats

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
