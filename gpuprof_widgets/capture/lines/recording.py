"""Recording the lines of a cell: each statement is a region on the timeline.

`LinesRewrite` marks the cell's code before it is compiled. The part `MarkedCode` gives marked code
to earlier functions as well, for the whole run; the part `LinesWindow` switches the marks on for
each recorded window.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np

from gpuprof_widgets.capture.cell import CellTree, applied_rewrite
from gpuprof_widgets.capture.code import Embedded
from gpuprof_widgets.capture.lines import chosen
from gpuprof_widgets.capture.lines.regions import (
    LIMIT,
    LineMarks,
    end_open_regions,
    no_plain_code,
)
from gpuprof_widgets.capture.lines.rewrite import MarkedLines
from gpuprof_widgets.capture.lines.sources import (
    CodeSwap,
    SourceFile,
    first_line,
    functions_of_cells,
    place,
    place_of,
    source_files,
)
from gpuprof_widgets.capture.loop.bound import LoopBound
from gpuprof_widgets.capture.overhead import line_and_op_ns
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.capture.torch_profiler import emits_nvtx
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.edit import NewSlice, Region, kept_slices, with_regions, with_slices
from gpuprof_widgets.trace.model import Trace

_LONGEST_NAME = 80


class LinesRewrite:
    """The rewrite of a cell that marks its lines."""

    def __init__(self) -> None:
        self.marks: LineMarks | None = None

    def __call__(self, tree: CellTree, embedded: Embedded) -> None:
        self.marks = LineMarks(tree.label, tree.source)
        lines = MarkedLines(self.marks, embedded)
        tree.statements = lines.block(tree.statements)
        if tree.last is not None:
            tree.last, tree.around_last = lines.last(tree.last)


class MarkedCode(Part):
    """The code with regions in it: the cell's, and that of functions defined earlier.

    It stays marked from the start of the run to its end, whatever is recorded of it.
    """

    loses = "no cell lines"
    starts_before_loop = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self._swap = CodeSwap()
        self._notes: list[str] = []
        self.marks: list[LineMarks] = []
        self.shown: set[LineMarks] = set()
        """The marks of the profiled cell, and those of which anything was recorded."""

    def start(self) -> None:
        if (code := self._context.code) is not None:
            rewrite = applied_rewrite(code, LinesRewrite)
            if rewrite is not None and rewrite.marks is not None:
                self._add(rewrite.marks)
                self.shown.add(rewrite.marks)
                self._swap.add_cell(code, rewrite.marks)
            elif code.gave_up:
                self._notes.append("no cell lines: the cell with regions in it did not compile")
        functions = set(chosen)
        labels = self._context.cell_labels
        if self._context.options.stack:
            functions |= set(functions_of_cells(self._context.namespace, labels))
        for file in source_files(functions, labels):
            if file.functions:
                self._mark(file)
            unmarked = {function.__qualname__ for function in file.without if function in chosen}
            if unmarked:
                self._notes.append(
                    f"no lines inside of {', '.join(sorted(unmarked))}: its source in {file.label} "
                    "is not there or has changed, or torch.compile has compiled it"
                )

    def stop(self) -> None:
        self._swap.take()
        for marks in self.marks:
            # The garbage collector does not look into codes: they would hold each other for good.
            marks.plain_of = no_plain_code

    def open_lines(self) -> list[tuple[LineMarks, int]]:
        """Return the statements that are being executed, outermost first."""
        lines = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            marks = self._swap.marks_of(frame.f_code)
            before = [line for line in marks.lines() if line <= frame.f_lineno] if marks else []
            if marks is not None and before:
                lines.append((marks, before[-1]))
            frame = frame.f_back
        return lines[::-1]

    def refine(self, trace: Trace) -> Trace:
        names = set(trace.slices["name"].unique())
        self.shown |= {
            marks
            for marks in self.marks
            if any(marker in names for marker, _, _ in marks.markers())
        }
        regions = {
            marker: Region(_name(marks, line), "cell_line", _args(marks, line, resumed))
            for marks in self.marks
            for marker, line, resumed in marks.markers()
        }
        return with_regions(_counted(trace, self.marks), regions)

    def notes(self) -> list[str]:
        compiled = ", ".join(self._swap.compiled)
        notes = [f"no lines inside of {compiled}: compiled code has none"] if compiled else []
        return [*self._notes, *notes, *(note for marks in self.marks for note in _notes_on(marks))]

    def metadata(self) -> dict[str, Any]:
        cells = [
            {
                "label": marks.label,
                "source": marks.source,
                "first_line": marks.first_line,
                "statements": marks.lines(),
                "beyond_limit": marks.lines_beyond(),
            }
            for marks in self.marks
            if marks in self.shown
        ]
        limit = {} if any(marks.short_lines() for marks in self.marks) else {"limit": LIMIT}
        return {"lines": {**limit, "cells": cells}} if cells else {}

    def _add(self, marks: LineMarks) -> None:
        self.marks.append(marks)
        marks.plain_of = self._swap.plain_of

    def _mark(self, file: SourceFile) -> None:
        nodes = file.outermost
        first = min(first_line(node) for node in nodes)
        last = max(node.end_lineno or node.lineno for node in nodes)
        lines = linecache.getlines(file.functions[0][0].__code__.co_filename)
        marks, embedded = LineMarks(file.label, "".join(lines[first - 1 : last]), first), Embedded()
        if (bound := applied_rewrite(self._context.code, LoopBound)) is not None:
            list(bound.watch([file], embedded))
        rewriter = MarkedLines(marks, embedded)
        calls = {place_of(node): rewriter.function(node) for node in nodes}
        self._add(marks)
        for function, marked in file.codes(embedded):
            self._swap.put(function, marked, marks)
            if (of_function := calls.get(place(function.__code__))) is not None:
                of_function.define(function)


def _counted(trace: Trace, marks: list[LineMarks]) -> Trace:
    """Return the trace with regions of several rounds counted as these, without those of none."""
    rounds = {marker: n for one in marks for marker, n in one.rounds.items()}
    if not rounds:
        return trace
    names = trace.slices["name"]
    of_name = np.array([rounds.get(str(name), -1) for name in names.cat.categories], np.int32)
    number = of_name[names.cat.codes.to_numpy()]
    count = np.where(number > 0, number, trace.slices["count"].to_numpy())
    counted = replace(trace, slices=trace.slices.assign(count=count))
    return kept_slices(counted, number != 0) if (number == 0).any() else counted


class LinesWindow(Part):
    """Switches the regions on while a window of the run is recorded.

    Regions are numbered; those for another reader (Nsight Systems) are ``named``.
    """

    loses = "no cell lines"

    def __init__(self, code: MarkedCode, *, named: bool = False) -> None:
        self._code = code
        self._named = named
        self._open: list[tuple[LineMarks, int]] = []

    def start(self) -> None:
        self._open = self._code.open_lines()
        for marks in self._code.marks:
            marks.run_ns, marks.op_ns = line_and_op_ns()
            marks.switch_on(functools.partial(_name, marks) if self._named else None)

    def end_regions(self) -> None:
        if self._code.open_lines():
            end_open_regions()

    def give_way(self) -> None:
        self.stop()
        self.end_regions()

    def stop(self) -> None:
        for marks in self._code.marks:
            marks.switch_off()

    def refine(self, trace: Trace) -> Trace:
        """Return the trace with the statements that were open when it began, such as a loop."""
        annotations = trace.slices[trace.slices["category"] == "user_annotation"]
        if not self._open or not len(annotations):
            return trace
        self._code.shown.update(marks for marks, _ in self._open)
        ts, dur, track = (int(annotations[column].iloc[0]) for column in ("ts", "dur", "track"))
        return with_slices(
            trace,
            [
                NewSlice(ts + inset, dur - 2 * inset, _name(marks, line), "cell_line", track, args)
                for inset, (marks, line) in enumerate(self._open, start=1)
                for args in [_args(marks, line, resumed=True)]
            ],
        )


def _args(marks: LineMarks, line: int, resumed: bool) -> dict[str, Any]:
    args = {"cell": marks.label, "line": line}
    return {**args, "resumed": 1} if resumed else args


def _name(marks: LineMarks, line: int) -> str:
    text = f"{line}: {marks.text(line)}"
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def _notes_on(marks: LineMarks) -> Iterator[str]:
    short = marks.short_lines()
    beyond = [line for line in marks.lines_beyond() if line not in short]
    because = " runs only, because marking a run would take longer than the run itself"
    for lines, first in ((short, because), (beyond, f" {LIMIT:,} runs only")):
        if lines:
            numbers = ", ".join(map(str, lines))
            many = f"lines {numbers} are recorded for their first"
            one = f"line {numbers} is recorded for its first"
            yield f"{marks.label}: {many if len(lines) > 1 else one}{first}"


def lines_rewrite(options: Options) -> LinesRewrite | None:
    """Return the rewrite, where lines are wanted."""
    return LinesRewrite() if options.lines else None


def marked_code(context: Context) -> MarkedCode | None:
    """Return the part with the marked code, where lines are wanted."""
    if not context.options.lines:
        return None
    context.shared["lines"] = code = MarkedCode(context)
    return code


def lines_window(context: Context) -> LinesWindow | None:
    """Return the part that records the lines of each window, where lines are wanted."""
    code = context.shared.get("lines")
    return None if code is None else LinesWindow(code, named=emits_nvtx(context.options))
