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
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from gpuprof_widgets.capture.loop.bound import LoopBound
from gpuprof_widgets.capture.loop.elsewhere import is_users
from gpuprof_widgets.capture.loop.schedule import Schedule
from gpuprof_widgets.capture.loop.steps import Counting, fetched
from gpuprof_widgets.options import Options

_BY_HAND = (
    "write `for batch in gpuprof_widgets.steps(loader)` in it, or give the trainer a "
    "callback of gpuprof_widgets.integrations"
)


class UnseenLoop:
    """Counts the batches, or the optimizer's steps, of a loop that `LoopBound` cannot watch."""

    def __init__(self, bound: LoopBound, options: Options, cell_labels: Mapping[str, str]) -> None:
        self._bound = bound
        self._cell_labels = cell_labels
        self._schedule = Schedule.of(options)
        self._undo: list[Any] = []
        self._counting: Counting | None = None
        self._source: Any = None  # the loader's sampler or the optimizer that is counted
        self._what = ""
        self._is_polite = False  # a `for` asks for the batches: their end is no error
        self._ended = False
        self._fetches: Counter[int] = Counter()  # batches by sampler
        self._alive: dict[int, Any] = {}  # what these numbers stand for
        self._last: Any = None  # the sampler of the last batch
        self._stepped: set[int] = set()  # samplers of batches with which an optimizer made a step
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
        if not self._ended:
            return []
        if self._is_polite:
            return [
                f"the loop over {self._what} was ended; a further one, such as the next epoch, "
                f"runs as it is written, unrecorded; to end that as well, {_BY_HAND}"
            ]
        return [
            f"the loop over {self._what} could not be ended and ran on, unrecorded; to end it, "
            f"{_BY_HAND}"
        ]

    def _goes_on(self, iterator: Any) -> bool:
        """Before a batch is fetched: whether there is to be a further one."""
        if not self._bound.is_here:
            return True
        data = _data_of(iterator)
        if self._may_take:
            trains = id(data) in self._stepped
            if trains or not self._bound.expects_training:
                ends = _asked_by_for(sys._getframe(2))
                self._take(data, "batches", ends=ends, before=self._fetches[id(data)])
        self._fetches[id(data)] += 1
        self._last = self._alive[id(data)] = data
        self._since.clear()
        if self._counting is None or data is not self._source or self._ended:
            return True
        if self._counting.next_step():
            return True
        self._ended = True
        self._is_polite = _asked_by_for(sys._getframe(2))
        return not self._is_polite

    def _exhausted(self, iterator: Any) -> None:
        """The DataLoader has no further batch: the next epoch may begin."""
        loop = self._counting.loop if self._counting is not None else None
        if loop is not None and _data_of(iterator) is self._source and not self._ended:
            loop.pause(exhausted=True)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._bound.is_here:
            return  # a compiler reads hooks as well: of this one it is to see nothing else
        self._bound.made_step()
        self._since[id(optimizer)] += 1
        self._alive[id(optimizer)] = optimizer
        if self._last is not None:
            self._stepped.add(id(self._last))
        if self._may_take:
            number = self._since[id(optimizer)]
            if self._last is None or number > 1:  # steps without batches between them
                self._take(optimizer, "optimizer's steps", ends=False, before=number)
        if self._counting is not None and optimizer is self._source and not self._ended:
            self._ended = not self._counting.next_step()

    @property
    def _may_take(self) -> bool:
        bound = self._bound
        return self._counting is None and bound.is_open and not bound.waits_in_training

    def _take(self, source: Any, what: str, *, ends: bool, before: int) -> None:
        place = self._place()
        self._source, self._what = source, f"the {what} of {place}"
        self._bound.announce(f"the loop over {self._what}", ends=ends)
        self._counting = Counting(self._schedule, place, explicit=False, before=before).__enter__()

    def _place(self) -> str:
        """The user's code that led here, and its line."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if is_users(file, self._cell_labels):
                label = self._cell_labels.get(file, Path(file).name)
                return f"{label}, line {frame.f_lineno}"
            frame = frame.f_back
        return "code that is not known"


def _data_of(iterator: Any) -> Any:
    """What its loader draws from: the same from epoch to epoch, and no other loader's."""
    return getattr(iterator, "_index_sampler", iterator)


def _asked_by_for(frame: FrameType | None) -> bool:
    """Whether the frame asks for an item as a ``for`` does, through generators that do as well."""
    while frame is not None:
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] != "FOR_ITER":
            return False
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        frame = frame.f_back
    return False
