"""What the recording itself cost."""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.recording_less import what_to_leave_out
from gpuprof_widgets.analyses.findings.step_overhead import ENOUGH
from gpuprof_widgets.analyses.findings.wording import share_of
from gpuprof_widgets.analyses.iterations import usual_steps
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.trace.model import Record

_KINDS = {
    "calls": "Python call",
    "frames": "frame",
    "modules": "module call",
    "lines": "line run",
    "allocations": "memory change",
}
"""What `capture.overhead` counts beside events, and the word for one."""


def overhead(
    record: Record, *, recording_share: float = 0.05, recording_least_ns: int = 1_000_000
) -> list[Finding]:
    """Fires where the recorder estimates its cost at 5 % of the cell's time and 1 ms or more.

    Not where steps were timed with and without recording: `step_overhead` knows better.

    ``recording_share``: Of the cell's time, spent on recording it.
    ``recording_least_ns``: Spent on recording: less is nobody's trouble, whatever its share.
    """
    if min(map(len, usual_steps(record))) >= ENOUGH:
        return []
    noted = record.metadata.get("overhead") or {}
    cost, wall = int(noted.get("estimate_ns") or 0), int(record.metadata.get("wall_ns") or 0)
    share = min(share_of(cost, wall), 1.0)
    if share < recording_share or cost < recording_least_ns:
        return []
    text = (
        f"Recording {_recorded(record, noted)} took about {format_ns(cost)}, "
        f"{format_share(share)} of the cell's {format_ns(wall)}: "
        "short ops look longer here than they are."
    )
    without = what_to_leave_out(record)
    less = f"less (without {without}), or " if without else ""
    remedy = f"Record {less}fewer iterations."
    return [Finding(text, cost, share, remedy=remedy)]


def _recorded(record: Record, noted: dict[str, Any]) -> str:
    """What was counted: "1,200 events, 23,000 Python calls and 4,800 module calls"."""
    counts = {"event": int(noted.get("events") or len(record.trace))}
    counts |= {word: int(noted.get(key) or 0) for key, word in _KINDS.items()}
    first, *more = [format_count(count, word) for word, count in counts.items() if count]
    return f"{', '.join([first, *more[:-1]])} and {more[-1]}" if more else first
