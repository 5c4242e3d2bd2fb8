"""What torch.compile compiled in the run, and why again: torch tells it of the last 64.

Its list is private and has more in it from version to version: what is not there is not told.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from gpuprof_widgets.capture.part import Context, RecordClock
from gpuprof_widgets.trace.model import Trace

LONGEST_REASON = 300
MOST_TOLD = 64
"""torch's DEFAULT_COMPILATION_METRICS_LIMIT."""

_LIMIT = re.compile(r"(?:recompile|cache_size)_limit|(?:Recompile|CacheSize)LimitExceeded")
"""What torch writes where it will not compile a function once more: it runs uncompiled then."""

_CODE = re.compile(r"\s+# ")
"""Behind a guard stands the line of code that it is for, and where that is."""

_ONLY_LAST = (
    f"torch tells the last {MOST_TOLD} compilations alone: of those before, what they were for and "
    "why they had to be done again is not known"
)


class Compilations:
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
        """Begin with nothing, as no window so far is kept."""
        self._clock = RecordClock()
        self._listed: list[dict[str, Any]] = []

    def start(self) -> None:
        self._known, self._running = [], True
        self._before = next(reversed(_metrics()), None)

    def stop(self) -> None:
        if not self._running:
            return
        self._running, told = False, _metrics()
        self._known = [one for one in told if _is_of_a_function(one)]
        self._failures = _first_failures()
        if len(told) >= MOST_TOLD and not any(one is self._before for one in told):
            self._notes = [_ONLY_LAST]

    def refine(self, trace: Trace) -> Trace:
        """List what was compiled in this window; the trace is as it was."""
        window = self._clock.next_window(trace)
        functions = {
            _numbers(one)[0]: one
            for one in self._known
            if getattr(one, "co_name", None) is not None
        }
        inside = [one for one in self._known if _start(one) in window]
        self._listed += [self._described(one, functions.get(_numbers(one)[0])) for one in inside]
        self._known = []
        return trace

    def _described(self, one: Any, function: Any) -> dict[str, Any]:
        file = str(getattr(function, "co_filename", None) or "")
        failed = f"{getattr(one, 'fail_type', None)}: {getattr(one, 'fail_reason', None)}"
        return {
            "function": str(getattr(function, "co_name", None) or ""),
            "file": self._cell_labels.get(file, file),
            "line": int(getattr(function, "co_firstlineno", None) or 0),
            "start_ns": self._clock.in_record(_start(one)),
            "dur_ns": _duration(one),
            "again": _numbers(one)[1] > 0,
            "reason": self._reason(one),
            "gave_up": _LIMIT.search(failed) is not None,
        }

    def _reason(self, one: Any) -> str:
        """Which guard did not hold, without the code behind it."""
        function, number = _numbers(one)
        failure = self._failures.get(f"{function}/{number - 1}", "")
        told = str(getattr(one, "recompile_reason", None) or failure)
        guard = told.partition("\n")[0].partition(": ")[2]
        return _CODE.split(guard)[0].strip()[:LONGEST_REASON]

    def notes(self) -> list[str]:
        return self._notes

    def metadata(self) -> dict[str, Any]:
        """``compilations``, where there were any; see docs/record.md."""
        return {"compilations": self._listed} if self._listed else {}


def _metrics() -> list[Any]:
    """Those that torch still knows, the oldest first; nothing is imported to look."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    told: list[Any] = getattr(utils, "get_compilation_metrics", list)()
    return told


def _is_of_a_function(one: Any) -> bool:
    """Not of a backward that is compiled later, nor of a kernel that is tuned, as it runs."""
    later = getattr(one, "is_forward", None) is False or getattr(one, "is_runtime", None)
    return not later and bool(getattr(one, "compile_id", None)) and _start(one) > 0


def _numbers(one: Any) -> tuple[str, int]:
    """What torch calls the function, and how often it had compiled that: "3/1" is once."""
    function, _, number = str(one.compile_id).rpartition("/")
    return function, int(number) if number.isdecimal() else 0


def _start(one: Any) -> int:
    """In ns since 1970."""
    started = getattr(one, "start_time_us", None)
    return int(started) * 1000 if started else int((getattr(one, "start_time", None) or 0) * 1e9)


def _duration(one: Any) -> int:
    spent = getattr(one, "duration_us", None)
    seconds = getattr(one, "entire_frame_compile_time_s", None) or 0
    return int(spent) * 1000 if spent else int(seconds * 1e9)


def _first_failures() -> dict[str, str]:
    """Of each compilation, by its id, why it was first not used: what torch before 2.7 keeps."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    first: dict[str, str] = {}
    for failures in list(getattr(utils, "guard_failures", {}).values()):
        for failure in failures:
            first.setdefault(str(failure).partition(": ")[0], str(failure))
    return first
