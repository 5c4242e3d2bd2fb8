"""What torch.compile compiled in the run, and why it compiled again.

torch keeps `CompilationMetrics` of the last 64 compilations in a private list. Its fields differ
from version to version, so each may be missing.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from gpuprof_widgets.capture.part import Context, Part, RecordClock
from gpuprof_widgets.trace.model import Trace

LONGEST_REASON = 300
MOST_KEPT = 64
"""Compilations that torch keeps: its DEFAULT_COMPILATION_METRICS_LIMIT."""

_LIMIT = re.compile(r"(?:recompile|cache_size)_limit|(?:Recompile|CacheSize)LimitExceeded")
"""torch's words where it will not compile a function once more, and runs it uncompiled."""

_CODE = re.compile(r"\s+# ")
"""Between a guard and the line of code that it is for."""

_ONLY_LAST = (
    f"torch keeps only the last {MOST_KEPT} compilations: the functions and reasons of earlier "
    "compilations are not known"
)


class Compilations(Part):
    """Reads torch's list of compilations after each window."""

    loses = "no compilations"

    def __init__(self, context: Context) -> None:
        self._cell_labels = context.cell_labels
        self._known: list[Any] = []
        self._failures: dict[str, str] = {}
        self._running = False
        self._before: Any = None
        self._notes: list[str] = []
        self.discard()

    def discard(self) -> None:
        self._clock = RecordClock()
        self._listed: list[dict[str, Any]] = []

    def start(self) -> None:
        self._known, self._running = [], True
        self._before = next(reversed(_kept_metrics()), None)

    def stop(self) -> None:
        if not self._running:
            return
        self._running, kept = False, _kept_metrics()
        self._known = [metrics for metrics in kept if _is_of_function(metrics)]
        self._failures = _first_failures()
        if len(kept) >= MOST_KEPT and not any(metrics is self._before for metrics in kept):
            self._notes = [_ONLY_LAST]

    def refine(self, trace: Trace) -> Trace:
        """List the compilations of this window; the trace stays as it is."""
        window = self._clock.next_window(trace)
        with_name = (known for known in self._known if getattr(known, "co_name", None) is not None)
        named = {_function_and_number(known)[0]: known for known in with_name}
        for metrics in self._known:
            if _start_ns(metrics) in window:
                function, _ = _function_and_number(metrics)
                self._listed.append(self._described(metrics, named.get(function)))
        self._known = []
        return trace

    def _described(self, metrics: Any, named: Any) -> dict[str, Any]:
        """Return a compilation; those that failed are ``named`` by an earlier one."""
        file = str(getattr(named, "co_filename", None) or "")
        failed = f"{getattr(metrics, 'fail_type', None)}: {getattr(metrics, 'fail_reason', None)}"
        spent_us = int(getattr(metrics, "duration_us", None) or 0)
        return {
            "function": str(getattr(named, "co_name", None) or ""),
            "file": self._cell_labels.get(file, file),
            "line": int(getattr(named, "co_firstlineno", None) or 0),
            "start_ns": self._clock.in_record(_start_ns(metrics)),
            "dur_ns": spent_us * 1000
            or int((getattr(metrics, "entire_frame_compile_time_s", None) or 0) * 1e9),
            "again": _function_and_number(metrics)[1] > 0,
            "reason": self._reason(metrics),
            "gave_up": _LIMIT.search(failed) is not None,
        }

    def _reason(self, metrics: Any) -> str:
        """Return the guard that failed, without the line of code after it."""
        function, number = _function_and_number(metrics)
        failure = self._failures.get(f"{function}/{number - 1}", "")
        text = str(getattr(metrics, "recompile_reason", None) or failure)
        guard = text.partition("\n")[0].partition(": ")[2]
        return _CODE.split(guard)[0].strip()[:LONGEST_REASON]

    def notes(self) -> list[str]:
        return self._notes

    def metadata(self) -> dict[str, Any]:
        """Return ``compilations``, where there were any; see docs/record.md."""
        return {"compilations": self._listed} if self._listed else {}


def _kept_metrics() -> list[Any]:
    """Return what torch keeps, the oldest first, without importing anything."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    kept: list[Any] = getattr(utils, "get_compilation_metrics", list)()
    return kept


def _is_of_function(metrics: Any) -> bool:
    """Whether a function was compiled: not a backward pass later on, nor a kernel being tuned."""
    later = getattr(metrics, "is_forward", None) is False or getattr(metrics, "is_runtime", None)
    return not later and bool(getattr(metrics, "compile_id", None)) and _start_ns(metrics) > 0


def _function_and_number(metrics: Any) -> tuple[str, int]:
    """Return torch's number of the function, and of its compilation: "3/1" is the second one."""
    function, _, number = str(metrics.compile_id).rpartition("/")
    return function, int(number) if number.isdecimal() else 0


def _start_ns(metrics: Any) -> int:
    """Return when it began, in ns since 1970."""
    started_us = int(getattr(metrics, "start_time_us", None) or 0)
    return started_us * 1000 or int((getattr(metrics, "start_time", None) or 0) * 1e9)


def _first_failures() -> dict[str, str]:
    """Return the first failed guard of each compilation by its id, which torch before 2.7 keeps."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    first: dict[str, str] = {}
    for failures in list(getattr(utils, "guard_failures", {}).values()):
        for failure in failures:
            first.setdefault(str(failure).partition(": ")[0], str(failure))
    return first
