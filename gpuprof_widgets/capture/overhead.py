"""What recording itself costs, measured on this machine: an estimate to show with the result."""

from __future__ import annotations

import cProfile
import functools
from collections.abc import Callable, Mapping
from time import thread_time_ns
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from gpuprof_widgets.capture.cprofile import hear_this_thread_only, hook_is_taken
from gpuprof_widgets.capture.lines.regions import LineMark
from gpuprof_widgets.capture.modules import ModuleMarks
from gpuprof_widgets.capture.torch_profiler import profiler_is_running
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, MEMORY_EVENT

REPEATS = 200
_TRIES = 5
_ON_ONE_MACHINE = 740.0, 820.0
_MARKER = "gpuprof:calibration"
_TRACE_KINDS = ("event", "line", "module", "allocation", "frame")
KINDS = (*_TRACE_KINDS, "call")
_NOT_RECORDED = (*GPU_CATEGORIES, "gpu_user_annotation", "module_backward")
"""Categories that cost nothing on the CPU while the code runs."""


def overhead(counts: Mapping[str, int], options: Options) -> dict[str, Any]:
    """Return what recording added to the run in ns: the number of each kind times its cost.

    For each kind of `counted`, such as ``event``, there are ``events`` and ``event_cost_ns``; their
    products add up to ``estimate_ns``. A cost is 0 where nothing of the kind was recorded, and
    where a profiler of the user's runs, which measuring would end.
    """
    costs = dict.fromkeys(counts, 0.0)
    stack_taken = options.stack and hook_is_taken()
    if any(counts[kind] for kind in _TRACE_KINDS) and not profiler_is_running() and not stack_taken:
        costs |= trace_costs(options.shapes or options.flops, options.memory, options.stack)
    if counts["call"] and not hook_is_taken():
        costs["call"] = call_cost_ns()
    costs = {kind: round(cost, 1) if counts[kind] else 0.0 for kind, cost in costs.items()}
    return {
        **{f"{kind}s": number for kind, number in counts.items()},
        **{f"{kind}_cost_ns": cost for kind, cost in costs.items()},
        "estimate_ns": round(sum(counts[kind] * cost for kind, cost in costs.items())),
    }


def counted(trace: Trace, calls: int, *, framed: bool) -> dict[str, int]:
    """Return how many of each kind were recorded; ``calls`` are those that cProfile saw.

    Lines and modules are regions, an allocation is any change of memory, a frame is one of the
    Python stack that torch recorded (``framed``; samples are none), and an event is all else.
    """
    category, name = trace.slices["category"], trace.slices["name"]
    number = category.value_counts()
    counts = {
        "event": 0,
        "line": int(number.get("cell_line", 0)),
        "module": int(number.get("module", 0)),
        "allocation": int((name == MEMORY_EVENT).sum()),
        "frame": int(number.get("python_function", 0)),
        "call": 0,
    }
    free = sum(int(number.get(unrecorded, 0)) for unrecorded in _NOT_RECORDED)
    events = len(trace) - free - sum(counts.values())
    return counts | {"event": events, "call": calls} | ({} if framed else {"frame": 0})


@functools.cache
def trace_costs(shapes: bool, memory: bool, stack: bool) -> dict[str, float]:
    """Return what each kind costs under a torch.profiler with these options, in ns."""
    works: dict[str, Callable[[], None]] = {
        "event": _ops,
        "frame": _calls,
        "allocation": _allocations,
    }
    plain = {kind: _time_of(work) for kind, work in works.items()}
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=shapes,
        profile_memory=memory,
        with_stack=stack,
    ):
        under_profiler = {
            kind: max(0.0, _time_of(work) - plain[kind]) for kind, work in works.items()
        }
        line, module = _line_cost(), _module_cost()
    frame = under_profiler["frame"] if stack else 0.0
    event = max(0.0, under_profiler["event"] - frame)  # its function is a frame as well
    freed_too = 2
    allocation = max(0.0, under_profiler["allocation"] - event - frame) / freed_too
    return {
        "event": event,
        "line": line,
        "module": module,
        "allocation": allocation if memory else 0.0,
        "frame": frame,
    }


@functools.cache
def call_cost_ns() -> float:
    """Return what cProfile adds to one Python call, in ns."""
    plain = _time_of(_calls)
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        hear_this_thread_only(profiler)
        recorded = _time_of(_calls)
    finally:
        profiler.disable()
    return max(0.0, recorded - plain)


def line_and_op_ns() -> tuple[float, float]:
    """Return what a region of a line adds, and what the fastest op takes, under torch.profiler.

    Where a profiler of the user's runs, which measuring would end, they are what one machine had.
    """
    return _ON_ONE_MACHINE if profiler_is_running() else _line_and_op_ns()


@functools.cache
def _line_and_op_ns() -> tuple[float, float]:
    with profile(activities=[ProfilerActivity.CPU]):
        return _line_cost(), _time_of(_ops)


def _line_cost() -> float:
    def regions() -> None:
        for _ in range(REPEATS):
            with mark.next():
                pass

    mark = LineMark(_MARKER, {_MARKER})
    plain = _time_of(regions)
    mark.switch_on()
    return max(0.0, _time_of(regions) - plain)


def _module_cost() -> float:
    def forwards() -> None:
        for module in modules:
            module(None)

    modules: list[nn.Module] = [nn.Identity() for _ in range(REPEATS)]
    plain = _time_of(forwards)
    marks = ModuleMarks()
    try:
        marks.start()
        recorded = _time_of(forwards)
    except RecordingError:  # modules cannot be marked here: none are in the record
        return 0.0
    finally:
        marks.stop()
    return max(0.0, recorded - plain)


def _time_of(work: Callable[[], None]) -> float:
    """Return the average time of one repetition in the work, once warm, in ns.

    Not the best time, which needs no new memory for its events; and the thread's CPU time, because
    other processes may use the CPU meanwhile.
    """
    work()
    began = thread_time_ns()
    for _ in range(_TRIES):
        work()
    return (thread_time_ns() - began) / (_TRIES * REPEATS)


def _ops() -> None:
    tensor = torch.ones(1)
    for _ in range(REPEATS):
        tensor.mul_(tensor)


def _allocations() -> None:
    for _ in range(REPEATS):
        torch.empty(1)


def _calls() -> None:
    for _ in range(REPEATS):
        _nothing()


def _nothing() -> None:
    pass
