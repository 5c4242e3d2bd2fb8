"""What stands between a loop and its items: `gpuprof_widgets.steps`, and what `--steps` puts there.

`frame_filter` leaves the frames of this module out of profiles, and counts what they fetch as
fetched by the loop.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from gpuprof_widgets.capture.loop.iterations import Schedule, StepLoop
from gpuprof_widgets.capture.part import Active

Item = TypeVar("Item")
Alone = Callable[[], AbstractContextManager[Any]]
"""Makes a recording for a loop that runs outside of any."""


class Steps(Generic[Item]):
    """The items of the iterable, until the schedule is over: then it ends as if by itself.

    Outside of any recording it makes one by ``alone``; without that it only ends the loop.
    """

    def __init__(
        self, source: Any, schedule: Schedule, *, place: str, alone: Alone | None = None
    ) -> None:
        self._source = source
        self._schedule = schedule
        self._place = place
        self._alone = alone

    def __len__(self) -> int:
        whole = len(self._source)
        return whole if self._schedule.keep_going else min(whole, self._schedule.total)

    def __iter__(self) -> Iterator[Item]:
        total = getattr(self._source, "total", None) if is_progress_bar(self._source) else None
        if total is not None and not self._schedule.keep_going:
            self._source.reset(total=min(total, self._schedule.total))
        return watched(self._source, self.counting())

    def __aiter__(self) -> AsyncIterator[Item]:
        return watched_async(self._source, self.counting())

    def counting(self) -> Counting:
        """Return a new run through this loop."""
        return Counting(self._schedule, self._place, self._alone)


class Run(Protocol):
    """One run through a loop, which is asked before each item."""

    def __enter__(self) -> Any: ...

    def next_step(self) -> bool:
        """Begin the next iteration; return whether the loop goes on."""

    def exhausted(self) -> None:
        """Note that there is no further item."""

    def __exit__(self, *error: Any) -> Any: ...


def watched(source: Any, run: Run) -> Iterator[Any]:
    """Return the items of a loop until the run ends it, as if there were no more.

    They go through their progress bar, if there is one, which is full at the end.
    """
    return _inside_bar(source, run) if is_progress_bar(source) else _items(source, run)


def _items(source: Any, run: Run, bar: Any = None) -> Iterator[Any]:
    __tracebackhide__ = True
    number = 0
    with run:
        if not run.next_step():
            return
        iterator = iter(source)
        for item in iterator:
            number += 1
            yield item
            if not run.next_step():
                _end_iterator(iterator)
                if bar is not None:
                    _fill(bar, number)
                return
        run.exhausted()


def _inside_bar(bar: Any, run: Run) -> Iterator[Any]:
    __tracebackhide__ = True
    whole = bar.iterable
    bar.iterable = _items(whole, run, bar)
    try:
        yield from bar
    finally:
        bar.iterable = whole


def _fill(bar: Any, number: int) -> None:
    """Make a bar that is cut off after so many items end full."""
    if bar.total is not None:
        bar.total = number
        container = getattr(bar, "container", None)
        if container is not None:  # of a notebook
            container.children[1].max = number


async def watched_async(source: Any, run: Run) -> AsyncIterator[Any]:
    """Do the same for an asynchronous loop."""
    __tracebackhide__ = True
    with run:
        if not run.next_step():
            return
        iterator = aiter(source)
        async for item in iterator:
            yield item
            if not run.next_step():
                if inspect.isasyncgen(iterator):
                    await iterator.aclose()
                return
        run.exhausted()


def fetched(
    fetch: Callable[[Any], Item], before: Callable[[Any], bool], exhausted: Callable[[Any], None]
) -> Callable[[Any], Item]:
    """Return the ``__next__`` of an iterator's class that first asks whether to go on."""

    @functools.wraps(fetch)
    def fetched_next(iterator: Any) -> Item:
        __tracebackhide__ = True
        if not before(iterator):
            _end_iterator(iterator)
            raise StopIteration
        try:
            return fetch(iterator)
        except StopIteration:
            exhausted(iterator)
            raise

    return fetched_next


class Counting:
    """One run through a loop: in the active recording, in one of its own, or in none."""

    def __init__(self, schedule: Schedule, place: str, alone: Alone | None) -> None:
        self._schedule = schedule
        self._place = place
        self._alone = alone
        self._run: AbstractContextManager[Any] | None = None
        self.loop: StepLoop | None = None
        """The loop as its recording counts it."""
        self._left = schedule.total

    def __enter__(self) -> Counting:
        if Active.recorder is None and self._alone is not None:
            self._run = self._alone()
            self._run.__enter__()
        recorder = Active.recorder
        if recorder is not None:
            loop = StepLoop(recorder, self._schedule, place=self._place, explicit=True)
            self.loop = loop if recorder.take(loop) else None
        return self

    def next_step(self) -> bool:
        """Begin the next step; return whether the loop goes on."""
        if self.loop is not None:
            return self.loop.next_step()
        self._left -= 1
        return self._schedule.keep_going or self._left >= 0

    def begin_again(self) -> None:
        """Begin the step anew: what ran since, such as a validation, belongs to no step."""
        if self.loop is not None:
            self.loop.pause(exhausted=True)
            self.loop.next_step()

    def exhausted(self) -> None:
        """Note that there is no further item."""
        if self.loop is not None:
            self.loop.pause(exhausted=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop, run = self.loop, self._run
        self.loop = self._run = None
        try:
            if loop is not None:
                loop.close()
        finally:
            if run is not None:
                # GeneratorExit: the loop dropped its items, by a `break` or an unknown error.
                known = kind is not None and kind is not GeneratorExit
                run.__exit__(*((kind, error, traceback) if known else (None, None, None)))


def is_progress_bar(source: Any) -> bool:
    """Whether it is a bar of tqdm (any of its kinds) over something."""
    of_tqdm = any(kind.__module__.partition(".")[0] == "tqdm" for kind in type(source).__mro__)
    return of_tqdm and getattr(source, "iterable", None) is not None and hasattr(source, "reset")


def _end_iterator(iterator: Any) -> None:
    """End an iterator as its last item does: close a generator, stop a DataLoader's workers."""
    if inspect.isgenerator(iterator):
        iterator.close()
    stop_workers = getattr(iterator, "_shutdown_workers", None)
    if stop_workers is not None and not getattr(iterator, "_persistent_workers", False):
        stop_workers()
