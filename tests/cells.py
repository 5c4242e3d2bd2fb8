"""Cells run as the magic runs them, in this process: plain, with marked lines, and recorded."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from gpuprof_widgets.capture.cell import CellCode, Rewrite, cell_numbers, compile_cell, kind_of
from gpuprof_widgets.capture.lines.recording import LinesRewrite
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.window import rewrites_for
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Record
from tests.leftovers import PACKAGE_FOLDER

_NOTHING = contextlib.nullcontext()
FIRST_LINE = "%%gpuprofile"
NUMBER = 7


def cells_in(file: str) -> dict[str, str]:
    """The cells of a file in tests/data, each after a line that names it."""
    text = (Path(__file__).parent / "data" / file).read_text()
    return dict(part.split("\n", 1) for part in text.removesuffix("\n").split("# %% ")[1:])


@cache
def shell() -> Any:
    """One shell for all; each cell has a namespace of its own."""
    return InteractiveShell()  # type: ignore[no-untyped-call]


@dataclass
class Outcome:
    """All that a user can see of a cell's run."""

    result: Any
    names: dict[str, str]
    stdout: str
    error: str
    raised_at: list[tuple[str, int | None, int | None]]
    """Function, line and column of the frames that the traceback shows, except those hidden."""


def compiled(
    body: str,
    names: dict[str, Any],
    rewrites: Sequence[Rewrite] = (),
    interactivity: str = "last_expr",
) -> CellCode:
    """The cell's code, to run with these names."""
    one = shell()
    one.ast_node_interactivity = interactivity
    awaits = kind_of(one, body) == "awaiting"
    code = compile_cell(
        one, body, first_line=FIRST_LINE, number=NUMBER, awaits=awaits, rewrites=rewrites
    )
    return replace(code, global_names=names, names=names)


def run(code: CellCode) -> Any:
    """What the cell's last expression is worth."""
    if _awaits(code):
        return asyncio.run(code.run_awaiting())
    return code.run()


def _awaits(code: CellCode) -> bool:
    return any(part is not None and part.co_flags & 0x80 for part in code.plain)


def outcome_of(code: CellCode, around: Any = _NOTHING) -> Outcome:
    """What the run of a cell shows, inside of that recorder."""
    printed = io.StringIO()
    result, error, raised_at = None, "", []
    with contextlib.redirect_stdout(printed):
        try:
            with around:
                result = run(code)
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            raised_at = _shown(raised)
    own = {"__builtins__", "__warningregistry__"}
    names = {key: _text(value) for key, value in code.names.items() if key not in own}
    return Outcome(_text(result), names, printed.getvalue(), error, raised_at)


def _text(value: Any) -> str:
    """The repr, less the address at which the object happens to be."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _shown(error: BaseException) -> list[tuple[str, int | None, int | None]]:
    """The frames that IPython and pytest show, of the error and of what led to it."""
    shown = []
    chain: BaseException | None = error
    while chain is not None:
        for (frame, _), summary in zip(
            traceback.walk_tb(chain.__traceback__),
            traceback.extract_tb(chain.__traceback__),
            strict=True,
        ):
            if summary.filename.startswith(PACKAGE_FOLDER) or "asyncio" in summary.filename:
                assert frame.f_locals.get("__tracebackhide__") or "asyncio" in summary.filename
            elif "cells.py" not in summary.filename:
                shown.append((summary.name, summary.lineno, summary.colno))
        chain = chain.__cause__ or chain.__context__
    return shown


def plain(body: str, interactivity: str = "last_expr") -> Outcome:
    """What a cell shows without us."""
    return outcome_of(compiled(body, {"__name__": "__main__"}, (), interactivity))


def marked(body: str, interactivity: str = "last_expr") -> Outcome:
    """What it shows with regions on its lines, while nothing is recorded."""
    names = {"__name__": "__main__"}
    code = compiled(body, names, [LinesRewrite()], interactivity)
    assert not code.gave_up
    return outcome_of(code)


def recorded(
    body: str,
    names: dict[str, Any] | None = None,
    interactivity: str = "last_expr",
    **options: Any,
) -> tuple[Outcome, Record]:
    """What it shows under a profile, and the profile's record."""
    names = {"__name__": "__main__"} if names is None else names
    chosen = Options(**options)
    code = compiled(body, names, rewrites_for(chosen), interactivity)
    assert not code.gave_up
    labels = {file: f"Cell [{number}]" for file, number in cell_numbers(shell()).items()}
    label = f"Cell [{NUMBER}]"
    recorder = Recorder(chosen, label=label, namespace=names, cell_labels=labels, code=code)
    return outcome_of(code, recorder), recorder.record()


def line_calls(record: Record, cell: str = f"Cell [{NUMBER}]") -> dict[int, int]:
    """How often each line of a cell was entered; later pieces of an execution do not count."""
    counted: dict[int, int] = {}
    for row in line_rows(record):
        if value(record, "cell", row) == cell and not value(record, "resumed", row):
            line = int(value(record, "line", row))
            counted[line] = counted.get(line, 0) + 1
    return dict(sorted(counted.items()))


def line_rows(record: Record) -> list[int]:
    """The rows of the regions of lines."""
    slices = record.trace.slices
    return list(slices.index[slices["category"] == "cell_line"])


def value(record: Record, key: str, row: int) -> Any:
    """An argument of a slice, None where it has none."""
    values = record.trace.args.get(key)
    return None if values is None or row not in values.index else values[row]
