"""The part of a recording that notes how its process fared: its CPU time, autograd's debugging."""

from __future__ import annotations

import sys
from time import perf_counter_ns
from typing import Any

import torch

from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.trace.model import Trace

Usage = tuple[int, int, int]


def process_state(_: Context) -> ProcessState:
    """The part, whatever the options ask for: it looks twice and costs microseconds."""
    return ProcessState()


class ProcessState:
    """Looks at the process as a window starts and stops."""

    loses = "no CPU time of the process"

    def __init__(self) -> None:
        self._before: Usage | None = None
        self._sums = (0, 0, 0)
        self._anomaly_mode = False

    def start(self) -> None:
        self._look()
        self._before = _usage()

    def stop(self) -> None:
        self._look()
        after = _usage()
        if self._before is not None and after is not None:
            between = zip(self._sums, self._before, after, strict=True)
            wall, cpu, preemptions = (known + new - old for known, old, new in between)
            self._sums = (wall, cpu, preemptions)
        self._before = None

    def _look(self) -> None:
        """Autograd's anomaly mode may have been set before the cell, or be left set by it."""
        self._anomaly_mode |= torch.is_anomaly_enabled()

    def refine(self, trace: Trace) -> Trace:
        return trace

    def notes(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, Any]:
        """``cpu_use`` of all threads: how often the system took a CPU from one that had work."""
        use = dict(zip(("wall_ns", "cpu_ns", "preemptions"), self._sums, strict=True))
        known = {"cpu_use": use} if self._sums[0] else {}
        return {"anomaly_mode": self._anomaly_mode, **known}


def _usage() -> Usage | None:
    """Clock, CPU time (ns) and involuntary context switches; None where they are not counted."""
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return perf_counter_ns(), round((used.ru_utime + used.ru_stime) * 1e9), used.ru_nivcsw
