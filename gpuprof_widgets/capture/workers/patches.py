"""Timed stand-ins for torch's functions, in the process of a recorded DataLoader worker."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import queues
from time import perf_counter_ns
from typing import Any, Protocol

from gpuprof_widgets.capture.frame_filter import remove_profiler_frames

IDLE, FETCH, COLLATE, PUT = "idle", "fetch", "collate", "put"
"""Names of spans: waiting for indices, getting a batch, collating it, pickling and sending it."""

_DEEPEST = 4
"""How far down datasets inside datasets (`Subset`, `ConcatDataset`, ...) are timed."""


class Spans(Protocol):
    """Where the times go: the worker's recording."""

    batch: int
    items: int

    def add(self, name: str, start: int, batch: int, item: int = -1, index: Any = None) -> None: ...

    def add_item(self, name: str, start: int, index: Any) -> None: ...

    def began_batch(self, batch: int) -> None: ...

    def ended_batch(self) -> None: ...

    def sent_batch(self) -> None: ...


class Patches:
    """Timed stand-ins for what torch's worker loop calls; ``undo`` restores everything."""

    def __init__(self, spans: Spans) -> None:
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
        self._set(index_queue, "get", self._timed_get(index_queue.get))
        self._set(data_queue, "put", self._timed_put(data_queue.put))
        if hasattr(data_queue, "_send_bytes"):  # a queue of multiprocessing: a thread sends
            self._set(data_queue, "_send_bytes", self._timed_send(data_queue._send_bytes))
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
        original = vars(owner).get(name, self)  # self: the owner inherits it
        setattr(owner, name, value)
        if original is self:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, original))

    def _timed_get(self, get: Callable[..., Any]) -> Callable[..., Any]:
        def timed_get(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter_ns()
            task = None
            try:
                task = get(*args, **kwargs)
                return task
            finally:
                if self._on:
                    batch = _batch_of(task)
                    self._spans.add(IDLE, start, batch)
                    if batch >= 0:
                        self._spans.began_batch(batch)

        return timed_get

    def _timed_put(self, put: Callable[..., Any]) -> Callable[..., Any]:
        sends = not hasattr(getattr(put, "__self__", None), "_send_bytes")

        def timed_put(sent: Any, *args: Any, **kwargs: Any) -> Any:
            if self._on:
                self._spans.ended_batch()  # before the main process has it, and may end us
            start = perf_counter_ns()
            try:
                return put(sent, *args, **kwargs)
            finally:
                if self._on and sends:
                    self._spans.add(PUT, start, _batch_of(sent))

        return timed_put

    def _timed_send(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Time pickling and sending as one span, in the queue's thread, during the next fetch.

        A worker's last span is lost where its process ends before this thread goes on.
        """

        def timed_send(data: Any) -> Any:
            started, batch = getattr(self._pickled, "last", (perf_counter_ns(), -1))
            try:
                return send(data)
            finally:
                if self._on and batch >= 0:
                    self._spans.add(PUT, started, batch)
                    self._spans.sent_batch()

        return timed_send

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
        fetcher.fetch = self._timed_fetch(fetcher.fetch)
        fetcher.collate_fn = self._timed_collate(fetcher.collate_fn)
        if hasattr(fetcher, "dataset_iter"):
            name = f"{type(fetcher.dataset).__name__}.__iter__"
            fetcher.dataset_iter = _TimedIterator(fetcher.dataset_iter, name, self._item)
            return
        for kind in dict.fromkeys(map(type, _datasets(fetcher.dataset))):
            if not self._time_class(kind) and kind is type(fetcher.dataset):
                name = f"{kind.__name__}.__getitem__"
                fetcher.dataset = _TimedItems(fetcher.dataset, name, self._item)

    def _timed_fetch(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed_fetch(index: Any) -> Any:
            start, asked = perf_counter_ns(), 0
            self._depth = 0
            try:
                data = fetch(index)
                asked = len(index) if isinstance(index, (list, tuple)) else 1
                return data
            finally:
                if self._on:
                    # A dataset may return all items at once, which are not counted then.
                    self._spans.items = self._spans.items or asked
                    self._spans.add(FETCH, start, self._spans.batch, self._spans.items)

        return timed_fetch

    def _timed_collate(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed_collate(data: Any) -> Any:
            start = perf_counter_ns()
            try:
                return collate(data)
            finally:
                if self._on:
                    self._spans.add(COLLATE, start, self._spans.batch)

        return timed_collate

    def _time_class(self, kind: Any) -> bool:
        """Time how a dataset gets its items; return False where its class cannot be changed."""
        if getattr(getattr(kind, "__getitem__", None), "gpuprof", False):
            return True  # persistent workers make a fetcher per epoch
        try:
            item = self._timed_item(kind.__getitem__, f"{kind.__name__}.__getitem__")
            self._set(kind, "__getitem__", item)
        except (AttributeError, TypeError):
            return False
        if getattr(kind, "__getitems__", None):
            items = self._timed_items(kind.__getitems__, f"{kind.__name__}.__getitems__")
            self._set(kind, "__getitems__", items)
        return True

    def _timed_item(self, get: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(get)
        def timed_item(dataset: Any, index: Any, *more: Any, **named: Any) -> Any:
            return self._item(name, index, get, dataset, index, *more, **named)

        timed_item.gpuprof = True  # type: ignore[attr-defined]
        return timed_item

    def _timed_items(self, get: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(get)
        def timed_items(dataset: Any, indices: Any) -> Any:
            start = perf_counter_ns()
            try:
                return get(dataset, indices)
            finally:
                if self._on:
                    self._spans.add(name, start, self._spans.batch)

        return timed_items

    def _item(
        self, name: str, index: Any, get: Callable[..., Any], *args: Any, **named: Any
    ) -> Any:
        """Time one item; one that a dataset gets from another dataset is counted once."""
        self._depth += 1
        start, got = perf_counter_ns(), 0
        try:
            item = get(*args, **named)
            got = 1
            return item
        finally:
            self._depth -= 1
            if self._on:
                self._spans.add_item(name, start, index)
                self._spans.items += got if self._depth == 0 else 0


class _TimedItems:
    """A timed stand-in for a dataset whose class cannot be changed (a list, an array)."""

    def __init__(self, dataset: Any, name: str, item: Callable[..., Any]) -> None:
        self._dataset, self._name, self._item = dataset, name, item

    def __getitem__(self, index: Any) -> Any:
        return self._item(self._name, index, self._dataset.__getitem__, index)


class _TimedIterator:
    """A timed stand-in for the iterator of an iterable dataset."""

    def __init__(self, iterator: Iterator[Any], name: str, item: Callable[..., Any]) -> None:
        self._iterator, self._name, self._item = iterator, name, item

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        return self._item(self._name, None, self._iterator.__next__)


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
