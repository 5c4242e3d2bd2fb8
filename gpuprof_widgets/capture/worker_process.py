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
import functools
import gc
import inspect
import marshal
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat, starmap
from multiprocessing import queues
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from gpuprof_widgets.capture.cprofile import hear_this_thread_only
from gpuprof_widgets.capture.frame_filter import remove_profiler_frames

IDLE, FETCH, COLLATE, PUT = "idle", "fetch", "collate", "put"
"""Names of spans: waiting for indices, getting a batch, collating it, pickling and sending it."""

SPANS, CALLS = ".spans", ".spans.prof"
LENGTH_BYTES = 4

MOST_ITEMS = 20_000
"""Items of one worker that get a span; batches always get one."""

_DUMP_PAUSE = 50
"""Pause between writes of cProfile's table, in times of their duration: at most 2 % of time."""

_DEEPEST = 4
"""How far down datasets inside datasets (`Subset`, `ConcatDataset`, ...) are timed."""


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
            self.write()
        else:
            self.end()

    def ended_batch(self) -> None:
        """Write the spans and calls, just before the batch is sent."""
        self.write()
        if perf_counter_ns() >= self._dump_after:
            try:
                self._dump_calls()
            except Exception:
                self.end()

    def write(self) -> None:
        """Write the spans so far; end the recording if that fails: the user's worker must go on."""
        try:
            self._flush()
        except Exception:  # a full disk
            self.end()

    def finish(self) -> None:
        """Finish after the loop; the sending thread may still add spans after that."""
        if self._file < 0:
            return
        if self._calls is not None:
            with suppress(Exception):
                self._dump_calls()
            # On Python 3.11 another profiler may have the hook by now, and keeps it.
            hook: Any = sys.getprofile()
            if sys.version_info >= (3, 12) or hook is self._calls:
                self._calls.disable()
            self._calls = None
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
        with suppress(IndexError):  # the thread that sends may take some of them
            while True:
                spans.append(self._spans.popleft())
        if spans:
            self._write(spans)

    def _write(self, entry: Any) -> None:
        """Append an entry to the file, after its length, which shows where one is cut off."""
        data = marshal.dumps(entry)
        with self._writing:
            if self._file >= 0:
                os.write(self._file, len(data).to_bytes(LENGTH_BYTES, "little") + data)

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
    # A call by a finalizer, while they are listed, would rearrange the tree that they are.
    collects = gc.isenabled()
    gc.disable()
    try:
        entries = list(profile.getstats())
    finally:
        if collects:
            gc.enable()
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


class Patches:
    """Timed stand-ins for what torch's worker loop calls; ``undo`` restores everything."""

    def __init__(self, spans: WorkerRecording) -> None:
        self._spans = spans
        self._undo: list[Callable[[], Any]] = []
        self._on = False
        self._depth = 0
        self._pickled = threading.local()

    def apply(self, index_queue: Any, data_queue: Any) -> None:
        """Time the two queues, and every fetcher that the loop makes from now on."""
        from torch.utils.data import _DatasetKind
        from torch.utils.data._utils import worker

        wrapper: Any = worker.ExceptionWrapper  # type: ignore[attr-defined]
        self._on = True
        self._set(index_queue, "get", self._timed(index_queue.get, self._got_indices))
        self._set(data_queue, "put", self._after_writing(data_queue.put))
        # Pickling and sending are one span, in the queue's thread, during the next fetch. The last
        # one of a worker is lost where its process ends before this thread goes on.
        if hasattr(data_queue, "_send_bytes"):  # a queue of multiprocessing: a thread sends
            self._set(data_queue, "_send_bytes", self._timed(data_queue._send_bytes, self._sent))
            self._set(queues, "_ForkingPickler", self._timed_pickler())
        create = self._timed_create(_DatasetKind.create_fetcher)
        self._set(_DatasetKind, "create_fetcher", staticmethod(create))
        self._set(worker, "ExceptionWrapper", _without_our_frames(wrapper))

    def undo(self) -> None:
        """Restore everything; a timed function that is still referenced then adds no spans."""
        self._on = False
        while self._undo:
            self._undo.pop()()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        own = [vars(owner)[name]] if name in vars(owner) else []  # else the owner inherits it
        setattr(owner, name, value)
        self._undo.append(functools.partial(setattr if own else delattr, owner, name, *own))

    def _timed(
        self, function: Callable[..., Any], then: Callable[[int, Any, Any], None]
    ) -> Callable[..., Any]:
        """Return the function; ``then`` gets its start, arguments and result (None: it failed)."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start, result = perf_counter_ns(), None
            try:
                result = function(*args, **kwargs)
                return result
            finally:
                if self._on:
                    then(start, args, result)

        return timed

    def _got_indices(self, start: int, args: Any, task: Any) -> None:
        batch = _batch_of(task)
        self._spans.add(IDLE, start, batch)
        if batch >= 0:
            self._spans.began_batch(batch)

    def _after_writing(self, put: Callable[..., Any]) -> Callable[..., Any]:
        def put_batch(*args: Any, **kwargs: Any) -> Any:
            if self._on:
                self._spans.ended_batch()  # before the main process has it, and may end us
            return put(*args, **kwargs)

        return put_batch

    def _sent(self, start: int, args: Any, result: Any) -> None:
        started, batch = getattr(self._pickled, "last", (start, -1))
        if batch >= 0:
            self._spans.add(PUT, started, batch)
            self._spans.write()

    def _timed_pickler(self) -> Any:
        pickled = self._pickled

        class TimedPickler(queues._ForkingPickler):  # type: ignore[name-defined, misc]
            @classmethod
            def dumps(cls, sent: Any, protocol: Any = None) -> Any:
                pickled.last = (perf_counter_ns(), _batch_of(sent))
                return super().dumps(sent, protocol)

        return TimedPickler

    def _timed_create(self, create: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(create)
        def timed_create(kind: Any, dataset: Any, *args: Any) -> Any:
            fetcher = create(kind, dataset, *args)
            from torch.utils.data import get_worker_info

            worker = get_worker_info()
            # A dataset may itself use a DataLoader in this process, which is not this worker's.
            if self._on and worker is not None and worker.dataset is dataset:
                self._time_fetcher(fetcher)
            return fetcher

        return timed_create

    def _time_fetcher(self, fetcher: Any) -> None:
        fetcher.fetch = self._timed(fetcher.fetch, self._fetched)
        fetcher.collate_fn = self._timed(fetcher.collate_fn, self._add(COLLATE))
        kind = type(fetcher.dataset)
        if hasattr(fetcher, "dataset_iter"):
            get = fetcher.dataset_iter.__next__
            timed = self._timed_item(get, f"{kind.__name__}.__iter__", None)
            fetcher.dataset_iter = starmap(timed, repeat(()))  # until it raises StopIteration
            return
        for inner in dict.fromkeys(map(type, _datasets(fetcher.dataset))):
            if not self._time_class(inner) and inner is kind:
                get = fetcher.dataset.__getitem__
                fetcher.dataset = _TimedItems(
                    self._timed_item(get, f"{kind.__name__}.__getitem__", 0)
                )

    def _fetched(self, start: int, args: Any, data: Any) -> None:
        index = args[0]
        asked = len(index) if isinstance(index, (list, tuple)) else 1
        # A dataset may return all items at once, which are not counted then.
        self._spans.items = self._spans.items or (0 if data is None else asked)
        self._spans.add(FETCH, start, self._spans.batch, self._spans.items)

    def _add(self, name: str) -> Callable[[int, Any, Any], None]:
        return lambda start, args, result: self._spans.add(name, start, self._spans.batch)

    def _time_class(self, kind: Any) -> bool:
        """Time how a dataset gets its items; return False where its class cannot be changed."""
        if getattr(getattr(kind, "__getitem__", None), "gpuprof", False):
            return True  # persistent workers make a fetcher per epoch
        try:
            item = self._timed_item(kind.__getitem__, f"{kind.__name__}.__getitem__", 1)
            item.gpuprof = True  # type: ignore[attr-defined]
            self._set(kind, "__getitem__", item)
        except (AttributeError, TypeError):
            return False
        if get := getattr(kind, "__getitems__", None):
            items = functools.wraps(get)(
                self._timed(get, self._add(f"{kind.__name__}.__getitems__"))
            )
            self._set(kind, "__getitems__", items)
        return True

    def _timed_item(
        self, get: Callable[..., Any], name: str, place: int | None
    ) -> Callable[..., Any]:
        """Time each item; one that a dataset gets from another dataset is counted once.

        ``place`` is that of the item's index among the arguments.
        """

        @functools.wraps(get)
        def timed_item(*args: Any, **named: Any) -> Any:
            self._depth += 1
            start, got = perf_counter_ns(), 0
            try:
                item = get(*args, **named)
                got = 1
                return item
            finally:
                self._depth -= 1
                if self._on:
                    index = args[place] if place is not None and len(args) > place else None
                    self._spans.add_item(name, start, index)
                    self._spans.items += got if self._depth == 0 else 0

        return timed_item


class _TimedItems:
    """A timed stand-in for a dataset whose class cannot be changed (a list, an array)."""

    def __init__(self, get: Callable[..., Any]) -> None:
        self._get = get

    def __getitem__(self, index: Any) -> Any:
        return self._get(index)


def _batch_of(sent: Any) -> int:
    """Return the batch number of what goes through a queue: (number, indices or data); else -1."""
    is_batch = isinstance(sent, tuple) and len(sent) == 2 and type(sent[0]) is int
    return sent[0] if is_batch else -1


def _datasets(dataset: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the dataset and those inside it."""
    from torch.utils.data import Dataset

    yield dataset
    if depth == _DEEPEST or not isinstance(dataset, Dataset):
        return
    inner = getattr(dataset, "datasets", None)
    several = inner if isinstance(inner, (list, tuple)) else []
    for part in [getattr(dataset, "dataset", None), *several]:
        if isinstance(part, Dataset):
            yield from _datasets(part, depth + 1)


def _without_our_frames(wrapper: Any) -> Callable[..., Any]:
    """Return the wrapper of an exception for the main process, whose text lacks our frames."""

    def wrap(exc_info: Any = None, where: str = "in background") -> Any:
        kind, error, traceback = exc_info or sys.exc_info()
        remove_profiler_frames(error)
        return wrapper((kind, error, error.__traceback__ if error else traceback), where)

    return wrap
