"""Tracebacks without our frames: an error reads as it would had nobody recorded."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from gpuprof_widgets.capture.modules.calls import FILE, LINE, NAME

_PACKAGE = str(Path(__file__).parent.parent) + os.sep


def below_ours(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not ours."""
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    return traceback


def leave_out_ours(error: BaseException | None) -> None:
    """Take our frames out of the tracebacks of an error and of those that it came from."""
    _leave_out(error, set())


def _leave_out(error: BaseException | None, seen: set[int]) -> None:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _without_ours(error.__traceback__)
    _leave_out(error.__cause__, seen)
    _leave_out(error.__context__, seen)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        if not _is_ours(traceback):
            entries.append(traceback)
        traceback = traceback.tb_next
    rest = None
    for entry in reversed(entries):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _is_ours(entry: TracebackType) -> bool:
    code = entry.tb_frame.f_code
    if (code.co_filename, code.co_firstlineno, code.co_name) == (FILE, LINE, NAME):
        return True
    return code.co_filename.startswith(_PACKAGE)
