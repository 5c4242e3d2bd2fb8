"""Loops that no source shows, such as a library's trainer: counted by batches or optimizer steps.

Where a DataLoader is used its batches are counted, otherwise the steps of an optimizer. The loop
ends where a ``for`` asks for the next batch. Code that calls ``next`` itself might start its loader
anew, or fail; it goes on, unrecorded.
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

from gpuprof_widgets.capture.code import is_users
from gpuprof_widgets.capture.loop.bound import LoopBound
from gpuprof_widgets.capture.loop.iterations import Schedule
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
        self._counted = ""
        self._can_end = False  # a `for` asks for the batches, and simply ends with them
        self._ended = False
        self._fetches: Counter[int] = Counter()  # batches, by id of the sampler
        self._alive: dict[int, Any] = {}  # objects by id, kept alive so that no other gets the id
        self._last_sampler: Any = None  # of the last batch
        self._stepped: set[int] = set()  # ids of samplers whose batch an optimizer's step followed
        self._steps_since: Counter[int] = Counter()  # since the last batch, by id of the optimizer

    def start(self) -> None:
        """Hook into every DataLoader and every optimizer."""
        kind: Any = dataloader._BaseDataLoaderIter
        plain = kind.__next__
        kind.__next__ = fetched(plain, self._goes_on, self._exhausted)
        self._undo.append(lambda: setattr(kind, "__next__", plain))
        self._undo.append(register_optimizer_step_post_hook(self._after_step).remove)

    def stop(self) -> None:
        """Take the hooks out."""
        while self._undo:
            self._undo.pop()()

    def notes(self) -> list[str]:
        """Return how the loop ended, if one was counted here."""
        if not self._ended:
            return []
        if self._can_end:
            return [
                f"the loop over {self._counted} was ended; later loops, such as the next epoch, "
                f"run to their end and are not recorded; to end them as well, {_BY_HAND}"
            ]
        return [
            f"the loop over {self._counted} could not be ended and ran on, unrecorded; to end it, "
            f"{_BY_HAND}"
        ]

    def _goes_on(self, iterator: Any) -> bool:
        """Return, before a batch is fetched, whether there shall be another one."""
        if not self._bound.is_here:
            return True
        sampler = _sampler_of(iterator)
        if self._may_take:
            trains = id(sampler) in self._stepped
            if trains or not self._bound.expects_training:
                ends = _asked_by_for(sys._getframe(2))
                self._take(sampler, "batches", ends=ends, before=self._fetches[id(sampler)])
        self._fetches[id(sampler)] += 1
        self._last_sampler = self._alive[id(sampler)] = sampler
        self._steps_since.clear()
        if self._counting is None or sampler is not self._source or self._ended:
            return True
        if self._counting.next_step():
            return True
        self._ended = True
        self._can_end = _asked_by_for(sys._getframe(2))
        return not self._can_end

    def _exhausted(self, iterator: Any) -> None:
        """Note that the DataLoader has no further batch: the next epoch may begin."""
        loop = self._counting.loop if self._counting is not None else None
        if loop is not None and _sampler_of(iterator) is self._source and not self._ended:
            loop.pause(exhausted=True)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._bound.is_here:
            return  # a compiler reads hooks as well, and shall see nothing else of this one
        self._bound.made_step()
        self._steps_since[id(optimizer)] += 1
        self._alive[id(optimizer)] = optimizer
        if self._last_sampler is not None:
            self._stepped.add(id(self._last_sampler))
        if self._may_take:
            number = self._steps_since[id(optimizer)]
            if self._last_sampler is None or number > 1:  # steps without batches between them
                self._take(optimizer, "optimizer's steps", ends=False, before=number)
        if self._counting is not None and optimizer is self._source and not self._ended:
            self._ended = not self._counting.next_step()

    @property
    def _may_take(self) -> bool:
        bound = self._bound
        return self._counting is None and bound.is_open and not bound.waits_in_training

    def _take(self, source: Any, unit: str, *, ends: bool, before: int) -> None:
        """Count batches or steps from now on; ``unit`` is the word for them."""
        place = self._place()
        self._source, self._counted = source, f"the {unit} of {place}"
        self._bound.announce(f"the loop over {self._counted}", ends=ends)
        self._counting = Counting(self._schedule, place, explicit=False, before=before).__enter__()

    def _place(self) -> str:
        """Return the file or cell, and the line, of the user's code that led here."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if is_users(file, self._cell_labels):
                label = self._cell_labels.get(file, Path(file).name)
                return f"{label}, line {frame.f_lineno}"
            frame = frame.f_back
        return "unknown code"


def _sampler_of(iterator: Any) -> Any:
    """Return the sampler of an iterator's loader, which stays the same from epoch to epoch."""
    return getattr(iterator, "_index_sampler", iterator)


def _asked_by_for(frame: FrameType | None) -> bool:
    """Whether a ``for`` in the frame asks for an item, directly or through generators."""
    while frame is not None:
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] != "FOR_ITER":
            return False
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        frame = frame.f_back
    return False
