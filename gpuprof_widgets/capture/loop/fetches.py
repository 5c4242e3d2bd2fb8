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
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from gpuprof_widgets.capture.code import Embedded, FunctionsElsewhere, is_users
from gpuprof_widgets.capture.lines.sources import CodeSwap, source_files
from gpuprof_widgets.capture.loop.bound import LoopBound, loop_bound_of
from gpuprof_widgets.capture.loop.iterations import Schedule
from gpuprof_widgets.capture.loop.steps import Counting, fetched
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace

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


def bounded_loop(context: Context) -> BoundedLoop | None:
    """The part, where a loop of this code is to be bounded."""
    bound = loop_bound_of(context.code)
    return None if bound is None else BoundedLoop(bound, context)


class BoundedLoop:
    """Watches the loops of functions that the code reaches, and those that no source shows."""

    loses = "no bounded loop in functions of other cells and modules"
    starts_before_loop = True

    def __init__(self, bound: LoopBound, context: Context) -> None:
        self._bound = bound
        self._context = context
        self._swap = CodeSwap()
        self._known: set[FunctionType] = set()
        self._elsewhere = FunctionsElsewhere(bound.names, context.namespace, context.cell_labels)
        self._unseen = UnseenLoop(bound, context.options, context.cell_labels)

    def start(self) -> None:
        self._bound.program.names = self._context.namespace
        self._bound.stream = "stdout" if self._context.cell_labels else "stderr"
        code = self._context.code
        if code is not None and not self._context.options.lines:  # else its part takes it back
            for changed, plain in zip((code.statements, code.last), code.plain, strict=True):
                if changed is not None and plain is not None:
                    self._swap.add(changed, plain)
        self._search()
        self._bound.search = self._search
        self._unseen.start()

    def stop(self) -> None:
        self._bound.search = lambda: None
        self._unseen.stop()
        self._swap.take()

    def _search(self) -> None:
        """Watch the loops of functions that could not be seen until now."""
        labels = self._context.cell_labels
        new = [one for one in self._elsewhere.that_train() if one not in self._known]
        self._known.update(new)
        # All of them first: what a function of one file calls stands in another.
        found = source_files(new, labels, self._bound.statements)
        files = [file for file in found if file.functions]
        for file in files:
            self._bound.program.add(file.outermost, file=file.label)
        self._bound.program.settle()
        for file in files:
            embedded = Embedded()
            if self._bound.watch(file, embedded):
                for function, changed in file.codes(embedded):
                    self._swap.add(changed, function.__code__)
                    self._swap.put(function, changed)

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        return self._unseen.notes() or self._bound.notes()

    def metadata(self) -> dict[str, Any]:
        return {}
