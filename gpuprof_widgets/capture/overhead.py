"""What recording itself costs, measured on this machine: an estimate to show beside the result."""

from __future__ import annotations

import cProfile
import functools
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gpuprof_widgets.capture.cprofile import hook_is_taken
from gpuprof_widgets.capture.giving_way import profiler_is_running
from gpuprof_widgets.capture.one_thread import hear_this_thread_only

REPEATS = 200


def overhead(events: int, calls: int) -> dict[str, Any]:
    """What recording added to the run (ns): torch's events and cProfile's calls at their cost."""
    # Measuring means profiling, which would end a profiler that the user left running.
    event_cost = event_cost_ns() if events and not profiler_is_running() else 0.0
    call_cost = call_cost_ns() if calls and not hook_is_taken() else 0.0
    return {
        "events": events,
        "event_cost_ns": round(event_cost, 1),
        "calls": calls,
        "call_cost_ns": round(call_cost, 1),
        "estimate_ns": round(events * event_cost + calls * call_cost),
    }


@functools.cache
def event_cost_ns() -> float:
    """What one CPU op costs more under torch.profiler than without it."""
    plain = _best_of(_ops)
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        recorded = _best_of(_ops)
    results: Any = recording.profiler
    events = len(results.kineto_results.events()) / _TRIES
    return max(0.0, (recorded - plain) / max(events, 1))


@functools.cache
def call_cost_ns() -> float:
    """What one Python call costs more under cProfile than without it."""
    plain = _best_of(_calls)
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        hear_this_thread_only(profiler)
        recorded = _best_of(_calls)
    finally:
        profiler.disable()
    return max(0.0, (recorded - plain) / REPEATS)


_TRIES = 3


def _best_of(work: Any) -> int:
    times = []
    for _ in range(_TRIES):
        began = perf_counter_ns()
        work()
        times.append(perf_counter_ns() - began)
    return min(times)


def _ops() -> None:
    for _ in range(REPEATS):
        torch.empty(0)


def _calls() -> None:
    for _ in range(REPEATS):
        _nothing()


def _nothing() -> None:
    pass
