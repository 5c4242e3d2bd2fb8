"""The recording of a bounded loop: which loops `--steps` watches, in which code, until when.

`BoundedLoop` watches the loops of functions that the code reaches (`LoopBound` has rewritten those
of the code itself), and leaves loops that no source shows to `UnseenLoop`.
"""

from __future__ import annotations

from types import FunctionType

from gpuprof_widgets.capture.cell import applied_rewrite
from gpuprof_widgets.capture.code import Embedded, FunctionsElsewhere
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

    def start(self) -> None:
        self._bound.program.names = self._context.namespace
        self._bound.stream = "stdout" if self._context.cell_labels else "stderr"
        code = self._context.code
        if code is not None and not self._context.options.lines:  # else `MarkedCode` restores it
            self._swap.add_cell(code)
        self._search()
        self._bound.search = self._search
        self._unseen.start()

    def stop(self) -> None:
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
        return self._unseen.notes() or self._bound.notes()
