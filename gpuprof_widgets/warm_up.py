"""What a process pays once before its first profile: imports, and the first start of profilers.

That takes about two seconds. `%load_ext` does not wait for it: the imports are done while the
kernel waits for a cell, and the rest right before the first profiled cell runs.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.options import Options

IDLE_S = 0.5
"""Seconds without a cell after which the kernel counts as idle: notebooks that run as a whole, and
cells that are pasted, go on sooner."""


def require_torch_profiler() -> None:
    """Import torch, and raise a `RecordingError` where this build of it has no profiler."""
    import torch.profiler

    if not torch.profiler.kineto_available():
        raise RecordingError("this build of torch has no profiler (Kineto); install one that has")


@cache
def import_and_draw() -> None:
    """Import what recording and showing need, and draw a report.

    It leaves torch alone: the user may have a profiler that is about to start, or be about to set a
    variable that torch.compile reads when it is imported.
    """
    with suppress(Exception):  # what fails here fails again in the first profile, which says so
        import gpuprof_widgets.run_history  # noqa: F401
        from gpuprof_widgets.capture import overhead, recorder, torch_profiler  # noqa: F401
        from gpuprof_widgets.trace.assemble import empty_trace
        from gpuprof_widgets.trace.model import Record
        from gpuprof_widgets.views.report import outputs

        empty = Record(empty_trace())
        list(outputs(empty, sort=Options().sort, top=Options().top, embed_runtime=True))


@cache
def warm_up() -> None:
    """Import and start everything once per process, so that the first profile is not slow.

    A Ctrl-C waits for it: Python goes on holding the lock of an import that was interrupted.
    """
    from gpuprof_widgets.capture.interrupts import DeferredSignals

    with DeferredSignals(), suppress(Exception):
        import_and_draw()
        from gpuprof_widgets.capture import overhead, torch_profiler

        torch_profiler.warm_up()
        overhead.overhead(dict.fromkeys(overhead.KINDS, 1), Options())
        overhead.line_and_op_ns()


class IdleImports:
    """Imports and draws once no cell has run for a moment; not in a shell without an event loop."""

    def __init__(self) -> None:
        self._cells = 0  # that run now, one within another
        self._timer: asyncio.TimerHandle | None = None
        self._done = False

    def before_cell(self, info: Any) -> None:
        """Leave the kernel to a cell."""
        self._cells += 1
        self.cancel()

    def after_cell(self, result: Any) -> None:
        """Wait from now on, if no other cell runs."""
        self._cells = max(0, self._cells - 1)
        self.cancel()
        is_main = threading.current_thread() is threading.main_thread()  # not a subshell
        if is_main and not self._cells and not self._done:
            with suppress(RuntimeError):  # there is no loop
                self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._import)

    def cancel(self) -> None:
        """Do nothing before another cell has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _import(self) -> None:
        self._done = True
        import_and_draw()
