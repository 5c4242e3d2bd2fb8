"""What runs in a worker process of a DataLoader: torch's own loop, timed and under cProfile.

Every worker imports this module, a spawned one afresh, so it imports little.

Times are of `time.perf_counter_ns`, which on Linux, macOS and Windows is one clock for all
processes of a machine. A worker appends its spans to a file of its own after every batch, in one
unbuffered write, so that one that crashes or is killed keeps what it did. It stops recording when
the folder is gone, and its loop goes on as it would without us.

Our own work calls only built-in functions, so that cProfile counts it as ours, which is left out,
and not as calls of a library.
"""

from __future__ import annotations

import _lsprof
import cProfile
import gc
import inspect
import marshal
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from gpuprof_widgets.capture.cprofile import hear_this_thread_only
from gpuprof_widgets.capture.workers.patches import Patches

SPANS, CALLS = ".spans", ".spans.prof"
LENGTH_BYTES = 4

MOST_ITEMS = 20_000
"""Items of one worker that get a span; batches always get one."""

_DUMP_PAUSE = 50
"""Pause between writes of cProfile's table, in times of their duration: at most 2 % of time."""


class RecordedLoop:
    """torch's loop of a worker, recorded, as the target of its process.

    It is pickled without the loop: a spawned worker takes that of its own torch.
    """

    def __init__(self, loop: Callable[..., None], folder: str, *, cprofile: bool) -> None:
        self._loop = loop
        self._folder = folder
        self._cprofile = cprofile

    def __reduce__(self) -> Any:
        return _in_new_process, (self._folder, self._cprofile)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        recording = None
        with suppress(Exception):  # a worker works even if it cannot be recorded
            arguments = inspect.signature(self._loop).bind(*args, **kwargs).arguments
            recording = WorkerRecording(Path(self._folder), arguments, cprofile=self._cprofile)
            recording.start()
        try:
            self._loop(*args, **kwargs)
        finally:
            if recording is not None:
                recording.finish()


def _in_new_process(folder: str, cprofile: bool) -> RecordedLoop:
    from torch.utils.data._utils import worker

    return RecordedLoop(worker._worker_loop, folder, cprofile=cprofile)


class WorkerRecording:
    """The spans and the Python calls of one worker process, on their way into two files."""

    def __init__(self, folder: Path, arguments: dict[str, Any], *, cprofile: bool) -> None:
        self.batch = -1
        self.items = 0
        self._folder = str(folder)
        self._path = f"{folder}/{os.getpid()}{SPANS}"
        self._arguments = arguments
        self._wants_calls = cprofile
        self._calls: Any = None
        self._dump_after = 0
        self._spans: deque[tuple[str, int, int, int, int, int]] = deque()
        self._writing = threading.Lock()
        self._file = -1
        self._item_spans = 0
        self._fetched = 0  # items of earlier batches
        self._patches = Patches(self)

    def start(self) -> None:
        """Open the file, and time torch's functions in this process."""
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        head = {
            "worker": self._arguments["worker_id"],
            "workers": self._arguments["num_workers"],
            "pid": os.getpid(),
            "child": multiprocessing.current_process()._identity,
        }
        self._write(head)
        self._patches.apply(self._arguments["index_queue"], self._arguments["data_queue"])
        if self._wants_calls:
            _end_inherited_profiler()
            # The class below cProfile.Profile, whose `enable` the main process may have replaced.
            self._calls = _lsprof.Profiler()
            self._calls.enable()
            hear_this_thread_only(self._calls)

    def add(self, name: str, start: int, batch: int, item: int = -1, index: Any = None) -> None:
        """Add a span of that name from ``start`` until now."""
        number = index if type(index) is int else -1
        self._spans.append((name, start, perf_counter_ns(), batch, item, number))

    def add_item(self, name: str, start: int, index: Any) -> None:
        """Add the span of one item of the current batch; only the first `MOST_ITEMS` are kept."""
        self._item_spans += 1
        if self._item_spans <= MOST_ITEMS:
            self.add(name, start, self.batch, self.items, index)

    def began_batch(self, batch: int) -> None:
        """Begin a batch: write what came before, which names this batch in case we die."""
        self._fetched += self.items
        self.batch, self.items = batch, 0
        if os.access(self._folder, os.F_OK):
            self._or_end(self._flush)
        else:
            self.end()

    def ended_batch(self) -> None:
        """Write the spans, just before the batch is sent."""
        self._or_end(self._flush)
        if perf_counter_ns() >= self._dump_after:
            self._or_end(self._dump_calls)

    def sent_batch(self) -> None:
        """Write the spans, in the thread that has sent a batch."""
        self._or_end(self._flush)

    def _or_end(self, action: Callable[[], None]) -> None:
        """Do it, and end the recording if it fails (a full disk): the user's worker must go on."""
        try:
            action()
        except Exception:
            self.end()

    def finish(self) -> None:
        """Finish after the loop; the sending thread may still add spans after that."""
        if self._file < 0:
            return
        self._stop_calls()
        with suppress(Exception):
            self._flush()
            self._write({"end": perf_counter_ns(), "items": self._item_spans})

    def end(self) -> None:
        """Stop recording before the loop is over: restore everything, close the file."""
        self._patches.undo()
        self.finish()
        with self._writing:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _flush(self) -> None:
        spans = []
        while True:
            try:
                spans.append(self._spans.popleft())
            except IndexError:
                break
        if spans:
            self._write(spans)

    def _write(self, entry: Any) -> None:
        """Append an entry to the file, after its length, which shows where one is cut off."""
        data = marshal.dumps(entry)
        with self._writing:
            if self._file >= 0:
                os.write(self._file, len(data).to_bytes(LENGTH_BYTES, "little") + data)

    def _stop_calls(self) -> None:
        if self._calls is None:
            return
        with suppress(Exception):
            self._dump_calls()
        # On Python 3.11 another profiler may have the hook by now, and keeps it.
        hook: Any = sys.getprofile()
        if sys.version_info >= (3, 12) or hook is self._calls:
            self._calls.disable()
        self._calls = None

    def _dump_calls(self) -> None:
        """Write cProfile's current table in place of the one before."""
        if self._calls is None or not os.access(self._folder, os.F_OK):
            return
        began = perf_counter_ns()
        data = marshal.dumps((self._fetched + self.items, _stats(self._calls)))
        with open(f"{self._path}.unfinished", "wb") as file:  # noqa: PTH123 (see the module)
            file.write(data)
        os.replace(f"{self._path}.unfinished", f"{self._path}.prof")  # noqa: PTH105
        ended = perf_counter_ns()
        self._dump_after = ended + _DUMP_PAUSE * (ended - began)


def _stats(profile: Any) -> dict[Any, Any]:
    """Return pstats' dictionary, as `Profile.snapshot_stats` makes it, from a running profile."""
    entries = _entries(profile)
    stats: dict[Any, Any] = {}
    callers: dict[Any, dict[Any, Any]] = {_key(entry.code): {} for entry in entries}
    for entry in entries:
        caller = _key(entry.code)
        for call in entry.calls or ():
            numbers = _numbers(call)
            by = callers.setdefault(_key(call.code), {})
            before = by.get(caller, (0, 0, 0.0, 0.0))
            by[caller] = tuple(a + b for a, b in zip(before, numbers, strict=True))
    for entry in entries:
        key, (calls, primitive, self_s, total) = _key(entry.code), _numbers(entry)
        before = stats.get(key, (0, 0, 0.0, 0.0))
        numbers = (primitive + before[0], calls + before[1], self_s + before[2], total + before[3])
        stats[key] = (*numbers, callers[key])
    return stats


def _entries(profile: Any) -> list[Any]:
    """Return the entries of a running cProfile.

    They are a tree that every call rearranges: a callback or finalizer that the garbage collector
    runs meanwhile would hide some of them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return list(profile.getstats())
    finally:
        if collects:
            gc.enable()


def _key(code: Any) -> tuple[str, int, str]:
    if isinstance(code, str):
        return "~", 0, code  # a built-in function
    return code.co_filename, code.co_firstlineno, code.co_name


def _numbers(entry: Any) -> tuple[int, int, float, float]:
    calls = entry.callcount
    return calls, calls - entry.reccallcount, entry.inlinetime, entry.totaltime


def _end_inherited_profiler() -> None:
    """End the copy of the main process's profiler that runs in a forked worker."""
    if "enable" in vars(cProfile.Profile):
        del cProfile.Profile.enable  # our recorder's, which makes way for the user's own
    if sys.version_info >= (3, 12):
        tool = sys.monitoring.PROFILER_ID
        if sys.monitoring.get_tool(tool) is not None:
            sys.monitoring.set_events(tool, 0)
            sys.monitoring.free_tool_id(tool)
    else:
        sys.setprofile(None)
