"""Readings of Python's clock on the clock of a trace."""

from __future__ import annotations

from time import perf_counter_ns, time_ns

from gpuprof_widgets.trace.model import Trace

Reading = tuple[int, int]
"""The processes' common clock and the time of day at one moment (ns)."""


def both_clocks() -> Reading:
    """The tightest of a few readings of both clocks."""
    readings = []
    for _ in range(5):
        before, day, after = perf_counter_ns(), time_ns(), perf_counter_ns()
        readings.append((after - before, (before + after) // 2, day))
    _, clock, day = min(readings)
    return clock, day


def time_of_day(moment: int, *, began: Reading, ended: Reading) -> int:
    """A reading of the common clock as ns since 1970: the two clocks may drift meanwhile."""
    drift = (ended[1] - began[1]) - (ended[0] - began[0])
    share = (moment - began[0]) / max(ended[0] - began[0], 1)
    return began[1] + (moment - began[0]) + round(drift * share)


class RecordClock:
    """Where moments of a window lie in the record, in which windows follow without gaps."""

    def __init__(self) -> None:
        self._before = 0

    def next_window(self, trace: Trace) -> range:
        """The moments (ns since 1970) of the next window; see `trace.join.joined`."""
        start = trace.epoch_ns + trace.start_ns
        self._offset = self._before - start
        self._before += trace.span_ns
        return range(start, start + trace.span_ns)

    def in_record(self, moment: int) -> int:
        """A moment of the latest window as ns on the record's clock."""
        return moment + self._offset
