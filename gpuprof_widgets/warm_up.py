"""What a process pays once before its first profile: imports, and the first start of profilers.

That takes about two seconds. `%load_ext` does not wait for it: it is done while the kernel waits
for the next cell, and at the latest right before the first profiled cell runs, never within it.
"""

from __future__ import annotations

import asyncio
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
def warm_up() -> None:
    """Import, start and draw everything once per process, so that the first profile is not slow.

    What fails here fails again in the first profile, which says so.
    """
    with suppress(Exception):
        import gpuprof_widgets.run_history  # noqa: F401
        from gpuprof_widgets.capture import overhead, recorder, torch_profiler  # noqa: F401
        from gpuprof_widgets.views.report import outputs

        record = torch_profiler.warm_up()
        overhead.overhead(dict.fromkeys(overhead.KINDS, 1), Options())
        overhead.line_and_op_ns()
        list(outputs(record, sort=Options().sort, top=Options().top, embed_runtime=True))


class IdleWarmUp:
    """Warms up once no cell has run for a moment; a shell without an event loop does not."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def after_cell(self, result: Any) -> None:
        """Wait from now on; IPython calls this on the kernel's loop, in its main thread."""
        self.cancel()
        with suppress(RuntimeError):  # there is no loop
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, warm_up)

    def cancel(self) -> None:
        """Do not warm up before another cell has ended."""
        if self._timer is not None:
            self._timer.cancel()
