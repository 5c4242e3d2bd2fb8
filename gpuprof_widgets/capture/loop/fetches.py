"""Loops that no source shows, such as a library's trainer: known by what they fetch and step.

Where a DataLoader is used its batches are counted, else the steps of an optimizer. The loop ends
where a ``for`` asks for the next batch; code that calls ``next`` itself may start its loader
anew, or fail: it goes on, unrecorded.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from gpuprof_widgets.capture.loop.bound import LoopBound
from gpuprof_widgets.capture.loop.schedule import Schedule
from gpuprof_widgets.capture.loop.steps import Counting, fetched
from gpuprof_widgets.capture.options import Options

_TORCH = str(Path(torch.__file__).parent)
_BY_HAND = (
    "to end it, write `for batch in gpuprof_widgets.steps(loader)` in it, or give the trainer a "
    "callback of gpuprof_widgets.integrations"
)


class UnseenLoop:
    """Counts the batches, or the optimizer's steps, of a loop that `LoopBound` cannot watch."""

    def __init__(self, bound: LoopBound, options: Options) -> None:
        self._bound = bound
        self._schedule = Schedule.of(options)
        self._undo: list[Any] = []
        self._counting: Counting | None = None
        self._source: Any = None  # the data set or the optimizer that is counted
        self._place = ""
        self._ends = ""  # how it ended, where it was not politely
        self._fetches: Counter[int] = Counter()  # batches by data set
        self._last: Any = None  # the data set of the last batch
        self._stepped: set[int] = set()  # data sets with whose batches an optimizer made a step
        self._since: Counter[int] = Counter()  # steps by optimizer since the last batch

    def start(self) -> None:
        """Listen to every DataLoader and every optimizer."""
        kind: Any = dataloader._BaseDataLoaderIter
        plain = kind.__next__
        kind.__next__ = fetched(plain, self._goes_on, self._exhausted)
        self._undo.append(lambda: setattr(kind, "__next__", plain))
        self._undo.append(register_optimizer_step_post_hook(self._after_step).remove)

    def stop(self) -> None:
        """Listen no more."""
        while self._undo:
            self._undo.pop()()

    def notes(self) -> list[str]:
        """How the loop ended that was counted here."""
        if self._counting is None:
            return []
        if self._ends:
            return [f"the loop over {self._place} {self._ends}; {_BY_HAND}"]
        return []

    def _goes_on(self, iterator: Any) -> bool:
        """Before a batch is fetched: whether there is to be a further one."""
        if not self._bound.is_here:
            return True
        data = _data_of(iterator)
        if self._counting is None and self._bound.is_open:
            self._consider_batch(data)
        goes_on = True
        if self._counting is not None and data is self._source and not self._ends:
            goes_on = self._counting.next_step() or self._has_to_go_on()
        self._fetches[id(data)] += 1
        self._last = data
        self._since.clear()
        return goes_on

    def _exhausted(self, iterator: Any) -> None:
        """The DataLoader has no further batch: the next epoch may begin."""
        loop = self._counting.loop if self._counting is not None else None
        if loop is not None and _data_of(iterator) is self._source and not self._ends:
            loop.pause(exhausted=True)

    def _consider_batch(self, data: Any) -> None:
        """Take the loop that fetches from this data set, if it is the one."""
        trains = id(data) in self._stepped
        if trains or not self._bound.expects_training:
            self._take(data, f"the batches of {_place()}", before=self._fetches[id(data)])

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self._bound.is_here:
            return
        self._since[id(optimizer)] += 1
        if self._last is not None:
            self._stepped.add(id(self._last))
        if self._counting is None and self._bound.is_open:
            number = self._since[id(optimizer)]
            if self._last is None or number > 1:  # steps without batches between them
                self._take(optimizer, f"the optimizer's steps of {_place()}", before=number)
        counts = self._counting is not None and optimizer is self._source and not self._ends
        if counts and self._counting is not None and not self._counting.next_step():
            self._ends = "could not be ended and ran on unrecorded"

    def _take(self, source: Any, place: str, *, before: int) -> None:
        self._source, self._place = source, place
        self._bound.announce(f"the loop over {place}")
        self._counting = Counting(self._schedule, place, explicit=False, before=before).__enter__()

    def _has_to_go_on(self) -> bool:
        """Whether code asks for the batch that would not take a polite end for one."""
        if _asked_by_for(sys._getframe(3)):
            self._ends = (
                "was ended; where its code begins another one, that runs as it is written, "
                "unrecorded"
            )
            return False
        self._ends = "fetches its batches by hand: it could not be ended and ran on unrecorded"
        return True


def _data_of(iterator: Any) -> Any:
    """The data set, which stays the same from epoch to epoch."""
    return getattr(iterator, "_dataset", iterator)


def _asked_by_for(frame: FrameType | None) -> bool:
    """Whether the frame asks for an item as a ``for`` does, through generators that do as well."""
    while frame is not None:
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] != "FOR_ITER":
            return False
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        frame = frame.f_back
    return False


def _place() -> str:
    """The function that fetches or steps, and its line: the first that is not torch's or ours."""
    ours = str(Path(__file__).parents[2])
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, ours)):
        frame = frame.f_back
    if frame is None:
        return "code that is not known"
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
