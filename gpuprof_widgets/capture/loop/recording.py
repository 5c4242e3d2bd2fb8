"""The recording of a bounded loop: which loops `--steps` watches, in which code, until when.

`BoundedLoop` watches the loops of functions that the code reaches (`LoopBound` has rewritten those
of the code itself). Loops that no source shows, such as a library's trainer, are left to
`UnseenLoop`. `ProcessStarts` notes the processes in which no loop is bounded.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from gpuprof_widgets.capture.cell import applied_rewrite
from gpuprof_widgets.capture.code import Embedded, FunctionsElsewhere, is_users
from gpuprof_widgets.capture.lines.sources import CodeSwap, source_files
from gpuprof_widgets.capture.loop.bound import LoopBound
from gpuprof_widgets.capture.loop.iterations import StepLoop
from gpuprof_widgets.capture.loop.steps import fetched
from gpuprof_widgets.capture.part import Context, Part

_BY_HAND = (
    "write `for batch in gpuprof_widgets.steps(loader)` in it, or give the trainer a "
    "callback of gpuprof_widgets.integrations"
)


def bounded_loop(context: Context) -> BoundedLoop | None:
    """Return the part, where a loop of this code is bounded."""
    bound = applied_rewrite(context.code, LoopBound)
    return None if bound is None else BoundedLoop(bound, context)


class BoundedLoop(Part):
    """Watches the loops of functions that the code reaches, and those that no source shows."""

    loses = "no bounded loop in functions of other cells and modules"
    starts_before_loop = True

    def __init__(self, bound: LoopBound, context: Context) -> None:
        self._bound = bound
        self._context = context
        self._swap = CodeSwap()
        self._known: set[FunctionType] = set()
        self._elsewhere = FunctionsElsewhere(bound.names, context.namespace, context.cell_labels)
        self._unseen = UnseenLoop(bound, context.cell_labels)
        self._starts = ProcessStarts(context.cell_labels)

    def start(self) -> None:
        self._bound.program.names = self._context.namespace
        self._bound.stream = "stdout" if self._context.cell_labels else "stderr"
        code = self._context.code
        if code is not None and not self._context.options.lines:  # else `MarkedCode` restores it
            self._swap.add_cell(code)
        self._search()
        self._bound.search = self._search
        self._unseen.start()
        self._starts.begin()

    def stop(self) -> None:
        self._starts.end()
        self._bound.search = lambda: None
        self._unseen.stop()
        self._swap.take()

    def _search(self) -> None:
        """Watch the loops of functions that were not reachable until now."""
        new = [one for one in self._elsewhere.that_train() if one not in self._known]
        self._known.update(new)
        files = source_files(new, self._context.cell_labels)
        embedded = Embedded()
        for file in self._bound.watch([file for file in files if file.functions], embedded):
            for function, changed in file.codes(embedded):
                self._swap.put(function, changed)

    def notes(self) -> list[str]:
        of_processes = [] if self._bound.has_bounded else self._starts.notes()
        return self._unseen.notes() or [*self._bound.notes(), *of_processes]


@dataclass
class _Loader:
    """A DataLoader's sampler, which stays the same from epoch to epoch, and what came of it."""

    sampler: Any
    batches: int = 0
    trains: bool = False
    """An optimizer's step followed a batch."""


class UnseenLoop:
    """Counts the batches, or the optimizer's steps, of a loop that `LoopBound` cannot watch.

    Where a DataLoader is used its batches are counted, otherwise the steps of an optimizer. The
    loop ends where a ``for`` asks for the next batch. Code that calls ``next`` itself might start
    its loader anew, or fail; it goes on, unrecorded.
    """

    def __init__(self, bound: LoopBound, cell_labels: Mapping[str, str]) -> None:
        self._bound = bound
        self._cell_labels = cell_labels
        self._undo: list[Any] = []
        self._loop: StepLoop | None = None
        self._source: Any = None  # the loader or the optimizer that is counted
        self._counted = ""
        self._can_end = False  # a `for` asks for the batches, and simply ends with them
        self._ended = False
        self._loaders: dict[int, _Loader] = {}  # by id of the sampler, which they keep alive
        self._last: _Loader | None = None  # of the last batch
        self._steps_since: Counter[int] = Counter()  # since the last batch, by id of the optimizer
        self._optimizers: dict[int, Any] = {}  # by id, kept alive so that no other gets the id

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
        loader = self._loader_of(iterator)
        if self._may_take and (loader.trains or not self._bound.expects_training):
            ends = _asked_by_for(sys._getframe(2))
            self._take(loader, "batches", ends=ends, before=loader.batches)
        loader.batches += 1
        self._last = loader
        self._steps_since.clear()
        if self._loop is None or loader is not self._source or self._ended:
            return True
        if self._loop.next_step():
            return True
        self._ended = True
        self._can_end = _asked_by_for(sys._getframe(2))
        return not self._can_end

    def _exhausted(self, iterator: Any) -> None:
        """Note that the DataLoader has no further batch: the next epoch may begin."""
        loop = self._loop
        if loop is not None and self._loader_of(iterator) is self._source and not self._ended:
            loop.pause(exhausted=True)

    def _loader_of(self, iterator: Any) -> _Loader:
        sampler = getattr(iterator, "_index_sampler", iterator)
        return self._loaders.setdefault(id(sampler), _Loader(sampler))

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._bound.is_here:
            return  # a compiler reads hooks as well, and shall see nothing else of this one
        self._bound.made_step()
        self._steps_since[id(optimizer)] += 1
        self._optimizers[id(optimizer)] = optimizer
        if self._last is not None:
            self._last.trains = True
        number = self._steps_since[id(optimizer)]
        if self._may_take and (self._last is None or number > 1):  # steps without batches between
            self._take(optimizer, "optimizer's steps", ends=False, before=number)
        if self._loop is not None and optimizer is self._source and not self._ended:
            self._ended = not self._loop.next_step()

    @property
    def _may_take(self) -> bool:
        bound = self._bound
        return self._loop is None and bound.is_open and not bound.waits_in_training

    def _take(self, source: Any, unit: str, *, ends: bool, before: int) -> None:
        """Count batches or steps from now on; ``unit`` is the word for them."""
        place = self._place()
        self._source, self._counted = source, f"the {unit} of {place}"
        self._bound.announce(f"the loop over {self._counted}", ends=ends)
        self._loop = self._bound.take(place, before=before)

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


def _asked_by_for(frame: FrameType | None) -> bool:
    """Whether a ``for`` in the frame asks for an item, directly or through generators."""
    while frame is not None:
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] != "FOR_ITER":
            return False
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        frame = frame.f_back
    return False


class ProcessStarts:
    """Notes what processes the code starts, other than the workers of a DataLoader.

    It stands for the method ``start`` of processes without a frame around it, which tracebacks
    would show.
    """

    def __init__(self, cell_files: Collection[str]) -> None:
        self._cell_files = cell_files
        self._started: list[str] = []  # the user's functions that they run

    def begin(self) -> None:
        """Stand for the method from now on."""
        self._plain: Callable[..., Any] = BaseProcess.start
        BaseProcess.start = self  # type: ignore[method-assign, assignment]

    def __get__(self, process: Any, kind: type | None = None) -> Any:
        with suppress(Exception):  # a class of the user's may lack anything, and the class has none
            loader: Any = sys.modules.get("torch.utils.data._utils.worker")
            if loader is None or process._target is not loader._worker_loop:
                given = [process._target, *process._args]  # torch's `spawn` passes the user's on
                functions = [each for each in given if isinstance(each, FunctionType)]
                users = (f for f in functions if is_users(f.__code__.co_filename, self._cell_files))
                self._started += [f"`{function.__name__}`" for function in users][:1]
        return self._plain.__get__(process, kind)

    def end(self) -> None:
        """Give processes their method back, unless somebody has changed it since."""
        if vars(BaseProcess)["start"] is self:
            BaseProcess.start = self._plain  # type: ignore[method-assign]

    def notes(self) -> list[str]:
        """Return how to record the processes, if several run functions of the user's."""
        if (count := len(self._started)) < 2:
            return []
        return [
            f"the code started {count} processes, where "
            f"--steps bounds and records no loop: in {self._started[0]} write `for item in "
            'gpuprof_widgets.steps(items, save="run")`, which writes a file per rank; or let '
            "torchrun start the ranks instead: `torchrun --no-python --nproc-per-node "
            f"{count} gpuprof run --steps N SCRIPT`"
        ]
