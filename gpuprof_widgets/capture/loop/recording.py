"""The part of a recording that bounds a loop: it changes functions, and takes that back."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from gpuprof_widgets.capture.embedded import Embedded
from gpuprof_widgets.capture.lines.functions import CodeSwap
from gpuprof_widgets.capture.lines.sources import source_files
from gpuprof_widgets.capture.loop.bound import LoopBound, loop_bound_of
from gpuprof_widgets.capture.loop.elsewhere import FunctionsElsewhere
from gpuprof_widgets.capture.loop.fetches import UnseenLoop
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.model import Trace


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
