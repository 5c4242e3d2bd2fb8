"""Which line of the cell: each statement is a region on the timeline."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from gpuprof_widgets.capture.cell import CellTree
from gpuprof_widgets.capture.embedded import Embedded
from gpuprof_widgets.capture.lines_compiled import compiled_definitions
from gpuprof_widgets.capture.lines_functions import CodeSwap, chosen
from gpuprof_widgets.capture.lines_regions import LIMIT, LineMarks
from gpuprof_widgets.capture.lines_rewrite import MarkedLines
from gpuprof_widgets.capture.lines_sources import functions_of_cells, marked_files
from gpuprof_widgets.capture.options import Options
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.edit import Region, with_regions
from gpuprof_widgets.trace.model import Trace

_LONGEST = 80


class LinesRewrite:
    """The rewrite of a cell that marks its lines."""

    def __init__(self) -> None:
        self.marks: LineMarks | None = None
        self.untouched: list[str] = []

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        self.marks = LineMarks(tree.label, tree.source)
        every = [*tree.statements, *([ast.Expr(tree.last)] if tree.last else [])]
        compiled = compiled_definitions(every)
        self.untouched = sorted({str(getattr(node, "name", "")) for node in compiled})
        lines = MarkedLines(self.marks, embedded, compiled)
        tree.statements = lines.block(tree.statements)
        if tree.last is not None:
            tree.last, tree.around_last = lines.last(tree.last)


class LinesPart:
    """Regions on the lines of the cell, and of functions that were defined before it."""

    loses = "no cell lines"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._marks: list[LineMarks] = []
        self._swap = CodeSwap()
        self._notes: list[str] = []
        self._known: set[int] = set()
        if context.code is not None:
            self._take_cell()

    def start(self) -> None:
        self._swap.put_again()
        self._mark_functions()
        for marks in self._marks:
            marks.switch_on()

    def stop(self) -> None:
        for marks in self._marks:
            marks.switch_off()
        self._swap.take()

    def refine(self, trace: Trace) -> Trace:
        return with_regions(trace, dict(self._regions()))

    def notes(self) -> list[str]:
        return [*self._notes, *map(_beyond, filter(LineMarks.lines_beyond, self._marks))]

    def metadata(self) -> dict[str, Any]:
        cells = [
            {
                "label": marks.label,
                "source": marks.source,
                "first_line": marks.first_line,
                "statements": marks.lines(),
                "beyond_limit": marks.lines_beyond(),
            }
            for marks in self._marks
        ]
        return {"lines": {"limit": LIMIT, "cells": cells}} if cells else {}

    def _take_cell(self) -> None:
        code = self._context.code
        assert code is not None
        rewrite = next((one for one in code.rewrites if isinstance(one, LinesRewrite)), None)
        if rewrite is None or rewrite.marks is None:
            return
        self._marks.append(rewrite.marks)
        for marked, plain in zip((code.statements, code.last), code.plain, strict=True):
            if marked is not None and plain is not None:
                self._swap.add(marked, plain)
        if rewrite.untouched:
            names = ", ".join(rewrite.untouched)
            self._notes.append(f"no lines inside of {names}: a compiler reads this code")

    def _mark_functions(self) -> None:
        """Put regions into the functions that are to have them and have none yet."""
        functions = set(chosen)
        labels = self._context.cell_labels
        if self._context.options.stack:
            functions |= set(functions_of_cells(self._context.namespace, labels))
        new = [one for one in functions if id(one) not in self._known]
        self._known |= {id(one) for one in new}
        for file in marked_files(new, labels):
            if file.functions:
                self._marks.append(file.marks)
            for function, marked in file.functions:
                self._swap.add(marked, function.__code__)
                self._swap.put(function, marked)
            unmarked = [one.__qualname__ for one in file.without if one in chosen]
            if unmarked:
                names = ", ".join(sorted(unmarked))
                self._notes.append(
                    f"no lines inside of {names}: its source in {file.marks.label} "
                    "is not there, has changed, or a compiler reads it"
                )

    def _regions(self) -> Iterator[tuple[str, Region]]:
        for marks in self._marks:
            for marker, line, resumed in marks.markers():
                args = {"cell": marks.label, "line": line, **({"resumed": 1} if resumed else {})}
                yield marker, Region(_name(marks, line), "cell_line", args)


def _name(marks: LineMarks, line: int) -> str:
    text = f"{line}: {marks.text(line)}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _beyond(marks: LineMarks) -> str:
    lines = ", ".join(map(str, marks.lines_beyond()))
    return f"{marks.label}: the first {LIMIT:,} runs are recorded of each of the lines {lines}"


def lines_rewrite(options: Options) -> LinesRewrite | None:
    """The rewrite, where lines are wanted."""
    return LinesRewrite() if options.lines else None


def lines_part(context: Context) -> LinesPart | None:
    """The part, where lines are wanted."""
    return LinesPart(context) if context.options.lines else None
