"""Selected ranges of a trace, as slices on a track of their own."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.edit import NewSlice, NewTrack, with_slices
from gpuprof_widgets.trace.model import Trace

CATEGORY = "selected_range"
_TRACK = NewTrack(
    "annotation", "selected ranges", process="selected ranges", thread="selected ranges"
)


def with_ranges(trace: Trace, ranges: Mapping[str, tuple[int, int]]) -> Trace:
    """The trace and these ranges, by name (ns on its clock); an `OptionError` outside of it."""
    for name, (start, end) in ranges.items():
        if not trace.start_ns <= start < end <= trace.end_ns:
            raise OptionError(
                f"the range {name!r} from {start:,} to {end:,} ns is none of the trace, which is "
                f"from {trace.start_ns:,} to {trace.end_ns:,} ns"
            )
    if not ranges:
        return trace
    added = [
        NewSlice(start, end - start, name, CATEGORY, track=len(trace.tracks))
        for name, (start, end) in ranges.items()
    ]
    return with_slices(trace, added, [_TRACK])
