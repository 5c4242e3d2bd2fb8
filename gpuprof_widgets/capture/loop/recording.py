"""The recording of a bounded loop: which loops `--steps` watches, in which code, until when.

`BoundedLoop` watches the loops of functions that the code reaches (`LoopBound` has rewritten those
of the code itself), and leaves loops that no source shows to `UnseenLoop`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.process import BaseProcess
from types import FunctionType
from typing import Any

from gpuprof_widgets.capture.cell import applied_rewrite
from gpuprof_widgets.capture.code import Embedded, FunctionsElsewhere, is_users
from gpuprof_widgets.capture.lines.sources import CodeSwap, source_files
from gpuprof_widgets.capture.loop.bound import LoopBound
from gpuprof_widgets.capture.loop.fetches import UnseenLoop
from gpuprof_widgets.capture.part import Context, Part


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
        self._unseen = UnseenLoop(bound, context.options, context.cell_labels)
        self._starts: ProcessStarts | None = None

    def start(self) -> None:
        self._bound.program.names = self._context.namespace
        self._bound.stream = "stdout" if self._context.cell_labels else "stderr"
        code = self._context.code
        if code is not None and not self._context.options.lines:  # else `MarkedCode` restores it
            self._swap.add_cell(code)
        self._search()
        self._bound.search = self._search
        self._unseen.start()
        if self._starts is None:
            self._starts = ProcessStarts(self._context.cell_labels)

    def stop(self) -> None:
        if self._starts is not None:
            self._starts.end()
        self._bound.search = lambda: None
        self._unseen.stop()
        self._swap.take()

    def _search(self) -> None:
        """Watch the loops of functions that were not reachable until now."""
        labels = self._context.cell_labels
        training = self._elsewhere.that_train()
        new = [function for function in training if function not in self._known]
        self._known.update(new)
        files = [file for file in source_files(new, labels) if file.functions]
        # Add all files before watching any: functions of one call those of another.
        for file in files:
            self._bound.program.add(file.outermost, file=file.label, tree=file.tree)
        self._bound.program.settle()
        for file in files:
            embedded = Embedded()
            if self._bound.watch(file, embedded):
                for function, changed in file.codes(embedded):
                    self._swap.add(changed, function.__code__)
                    self._swap.put(function, changed)

    def notes(self) -> list[str]:
        if self._starts is None or self._bound.has_bounded or self._unseen.notes():
            return self._unseen.notes() or self._bound.notes()
        return [*self._bound.notes(), *self._starts.notes()]


class ProcessStarts:
    """Notes what processes the code starts, other than the workers of a DataLoader.

    It stands for the method ``start`` of processes without a frame around it, which tracebacks
    would show.
    """

    def __init__(self, cell_files: Collection[str]) -> None:
        self._cell_files = cell_files
        self._started: list[str] = []  # the user's functions that they run
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
