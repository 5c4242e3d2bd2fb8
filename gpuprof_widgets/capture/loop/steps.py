"""What stands between a loop and its items: `gpuprof_widgets.steps`, and what `--steps` puts there.

The frames of this module are left out of profiles, and what they fetch counts as fetched by the
loop.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from gpuprof_widgets.capture.loop.iterations import Schedule, StepLoop
from gpuprof_widgets.capture.part import Active

Item = TypeVar("Item")
Alone = Callable[[], AbstractContextManager[Any]]
"""Makes a recording of its own for a loop that runs outside of any."""


class Steps(Generic[Item]):
    """The items of the iterable, until the schedule is over: then as if there were no more.

    Outside of any recording it makes one, by ``alone``; without that it only ends the loop.
    """

    def __init__(
        self,
        source: Any,
        schedule: Schedule,
        *,
        place: str,
        explicit: bool = True,
        alone: Alone | None = None,
    ) -> None:
        self._source = source
        self._schedule = schedule
        self._place = place
        self._explicit = explicit
        self._alone = alone

    def __len__(self) -> int:
        whole = len(self._source)
        return whole if self._schedule.keep_going else min(whole, self._schedule.total)

    def __iter__(self) -> Iterator[Item]:
        if is_progress_bar(self._source):
            return self._inside_bar(self._source)
        return self._items(self._source)

    def counting(self) -> Counting:
        """A use of this loop: where it counts, and the recording that it may have made."""
        return Counting(self._schedule, self._place, explicit=self._explicit, alone=self._alone)

    def _items(self, source: Iterable[Item]) -> Iterator[Item]:
        __tracebackhide__ = True
        with self.counting() as counting:
            counting.next_step()
            iterator = iter(source)
            for item in iterator:
                yield item
                if not counting.next_step():
                    _end_iterator(iterator)
                    return
            counting.exhausted()

    async def __aiter__(self) -> AsyncIterator[Item]:
        __tracebackhide__ = True
        with self.counting() as counting:
            counting.next_step()
            iterator = aiter(self._source)
            async for item in iterator:
                yield item
                if not counting.next_step():
                    if inspect.isasyncgen(iterator):
                        await iterator.aclose()
                    return
            counting.exhausted()

    def _inside_bar(self, bar: Any) -> Iterator[Item]:
        """A progress bar over the bounded items: one that is cut off looks like a failure."""
        __tracebackhide__ = True
        most = None if self._schedule.keep_going else self._schedule.total
        yield from inside_bar(bar, self._over(bar.iterable), most)

    def _over(self, source: Any) -> Steps[Item]:
        return Steps(
            source,
            self._schedule,
            place=self._place,
            explicit=self._explicit,
            alone=self._alone,
        )


class Run(Protocol):
    """One run through a loop that `--steps` watches, asked before each item."""

    def __enter__(self) -> Any: ...

    def next(self) -> bool:
        """Whether the loop goes on."""

    def exhausted(self) -> None:
        """There is no further item."""

    def __exit__(self, *error: Any) -> Any: ...


def watched(source: Iterable[Item], run: Run) -> Iterator[Item]:
    """The items of a loop, until the run says that it is over: then as if there were no more."""
    __tracebackhide__ = True
    with run:
        if not run.next():
            return
        iterator = iter(source)
        for item in iterator:
            yield item
            if not run.next():
                _end_iterator(iterator)
                return
        run.exhausted()


async def watched_async(source: Any, run: Run) -> AsyncIterator[Any]:
    """The same for an asynchronous loop."""
    __tracebackhide__ = True
    with run:
        if not run.next():
            return
        iterator = aiter(source)
        async for item in iterator:
            yield item
            if not run.next():
                if inspect.isasyncgen(iterator):
                    await iterator.aclose()
                return
        run.exhausted()


def fetched(
    fetch: Callable[[Any], Item], before: Callable[[Any], bool], exhausted: Callable[[Any], None]
) -> Callable[[Any], Item]:
    """The ``__next__`` of an iterator's class that asks before each item whether there is one."""

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


def inside_bar(bar: Any, items: Iterable[Item], most: int | None = None) -> Iterator[Item]:
    """The items through a progress bar over what they come from; at most ``most`` of them."""
    __tracebackhide__ = True
    whole = bar.iterable
    if bar.total is not None and most is not None:
        bar.reset(total=min(bar.total, most))
    bar.iterable = items
    try:
        yield from bar
    finally:
        bar.iterable = whole


def fill_bar(bar: Any, number: int) -> None:
    """Let a bar that is cut off after so many items end full."""
    if bar.total is not None:
        bar.total = number
        container = getattr(bar, "container", None)
        if container is not None:  # of a notebook
            container.children[1].max = number


class Counting:
    """One run through a loop: in the recording at work, in one of its own, or in none."""

    def __init__(
        self,
        schedule: Schedule,
        place: str,
        *,
        explicit: bool,
        alone: Alone | None = None,
        before: int = 0,
    ) -> None:
        self._schedule = schedule
        self._place = place
        self._explicit = explicit
        self._alone = alone
        self._before = before
        self._run: AbstractContextManager[Any] | None = None
        self._loop: StepLoop | None = None
        self._left = schedule.total

    def __enter__(self) -> Counting:
        if Active.recorder is None and self._alone is not None:
            self._run = self._alone()
            self._run.__enter__()
        recorder = Active.recorder
        if recorder is not None:
            loop = StepLoop(
                recorder,
                self._schedule,
                place=self._place,
                explicit=self._explicit,
                before=self._before,
            )
            self._loop = loop if recorder.take(loop) else None
        return self

    def next_step(self) -> bool:
        """Whether the loop goes on."""
        if self._loop is not None:
            return self._loop.next_step()
        self._left -= 1
        return self._schedule.keep_going or self._left >= 0

    @property
    def loop(self) -> StepLoop | None:
        """What counts, in a recording."""
        return self._loop

    def begin_again(self) -> None:
        """What ran since the step was begun, as a validation, belongs to no step."""
        if self._loop is not None:
            self._loop.pause(exhausted=True)
            self._loop.next_step()

    def exhausted(self) -> None:
        """There is no further item."""
        if self._loop is not None:
            self._loop.exhausted()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop, run = self._loop, self._run
        self._loop = self._run = None
        try:
            if loop is not None:
                loop.close()
        finally:
            if run is not None:
                # How a loop is left that has dropped its items (break or an error) is not known.
                known = kind is not None and kind is not GeneratorExit
                run.__exit__(*((kind, error, traceback) if known else (None, None, None)))


def is_progress_bar(source: Any) -> bool:
    """Whether it is a bar of tqdm (any of its kinds) over something."""
    ours = any(kind.__module__.partition(".")[0] == "tqdm" for kind in type(source).__mro__)
    return ours and getattr(source, "iterable", None) is not None and hasattr(source, "reset")


def _end_iterator(iterator: Any) -> None:
    """Leave it as it is after its last item: a generator closed, a DataLoader without workers."""
    if inspect.isgenerator(iterator):
        iterator.close()
    stop_workers = getattr(iterator, "_shutdown_workers", None)
    if stop_workers is not None and not getattr(iterator, "_persistent_workers", False):
        stop_workers()
