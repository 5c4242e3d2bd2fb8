"""A record on another clock: every time moved by the same number of nanoseconds."""

from __future__ import annotations

from dataclasses import replace

from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import UNCUT_ARGS


def shifted(record: Record, by_ns: int) -> Record:
    """The record with ``by_ns`` added to all of its times; its metadata stay as they are."""
    return replace(record, trace=_shifted(record.trace, by_ns)) if by_ns else record


def _shifted(trace: Trace, by_ns: int) -> Trace:
    started = UNCUT_ARGS[0]
    uncut = {started: trace.args[started] + by_ns} if started in trace.args else {}
    return replace(
        trace,
        slices=trace.slices.assign(ts=trace.slices["ts"] + by_ns),
        counters=trace.counters.assign(ts=trace.counters["ts"] + by_ns),
        args={**trace.args, **uncut},
        start_ns=trace.start_ns + by_ns,
        end_ns=trace.end_ns + by_ns,
        epoch_ns=trace.epoch_ns - by_ns,
    )
