"""Every analysis by name: what it answers, where it is shown, and which peer answered it before.

A new analysis is a function in this package and a row here: the command line, the tests over all
real traces and the table in the documentation take it from there. `Analysed` has a method of the
same name. `ASKED` has those that have to be told of what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from gpuprof_widgets.analyses.allocator import allocator_events
from gpuprof_widgets.analyses.analyze import analyze
from gpuprof_widgets.analyses.annotations import annotations as annotation_times
from gpuprof_widgets.analyses.attribution import attribution
from gpuprof_widgets.analyses.backward_ops import backward_ops
from gpuprof_widgets.analyses.breakdown import breakdown
from gpuprof_widgets.analyses.call_tree import call_tree
from gpuprof_widgets.analyses.collectives import collectives
from gpuprof_widgets.analyses.copies import copies
from gpuprof_widgets.analyses.copy_bandwidth import copy_bandwidth
from gpuprof_widgets.analyses.counters import counters
from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.device_busy import device_busy
from gpuprof_widgets.analyses.gpu_summary import gpu_summary
from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.analyses.input_queues import input_queues
from gpuprof_widgets.analyses.iterations import iterations
from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.lacking import explained
from gpuprof_widgets.analyses.launches import launches
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.analyses.memory import allocations, memory_curve, memory_peak
from gpuprof_widgets.analyses.memory_by_op import memory
from gpuprof_widgets.analyses.memory_segments import memory_segments
from gpuprof_widgets.analyses.modules import modules
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.overlaps import overlaps
from gpuprof_widgets.analyses.owners import owners
from gpuprof_widgets.analyses.python_calls import python_calls
from gpuprof_widgets.analyses.python_time import python_time
from gpuprof_widgets.analyses.queue_length import queue_length, queues
from gpuprof_widgets.analyses.roofline import roofline
from gpuprof_widgets.analyses.sequences import sequences
from gpuprof_widgets.analyses.steps import steps
from gpuprof_widgets.analyses.streams import streams
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.analyses.what_if import what_if, what_ifs
from gpuprof_widgets.analyses.workers import worker_calls, workers


@dataclass(frozen=True)
class Analysis:
    """One question and who answers it.

    ``function``: takes a `Record`, returns a DataFrame; ``question``: as a user would ask it;
    ``view``: where the page shows it, "" where it does not; ``peers``: the tools that answered it;
    ``example``: of what a function takes besides the record and has no default for, as it is typed.
    """

    function: Callable[..., pd.DataFrame]
    question: str
    view: str = ""
    peers: str = ""
    example: str = ""

    def __post_init__(self) -> None:
        """Have it say of a trace of an unknown kind that it is one."""
        object.__setattr__(self, "function", explained(self.function))

    @property
    def name(self) -> str:
        """Of the function, of the method and of the command."""
        return self.function.__name__


ANALYSES = (
    Analysis(
        operators,
        "Which ops take the time, on the CPU and on the GPU?",
        "op table",
        "key_averages(), TensorBoard plugin",
    ),
    Analysis(
        kernels,
        "Which kernels take the GPU's time, and how were they laid out on it?",
        "kernels",
        "TensorBoard plugin, HTA, nsys stats",
    ),
    Analysis(
        gpu_summary,
        "How well was each GPU used: SMs, occupancy, tensor cores?",
        "",
        "TensorBoard plugin",
    ),
    Analysis(
        launches,
        "How long do kernels take to start, and are they longer than their launch?",
        "launches",
        "HTA, TraceLens",
    ),
    Analysis(queue_length, "How much launched work waits, over time?", "launches", "HTA"),
    Analysis(queues, "Which streams have launches waiting, or a full queue?", "launches", "HTA"),
    Analysis(
        sequences,
        "Which kernels follow one another again and again, and could be fused?",
        "sequences",
        "HTA",
    ),
    Analysis(
        copies,
        "What is copied, how fast, who waits for it, and is it needed?",
        "copies",
        "HTA, nsys analyze",
    ),
    Analysis(copy_bandwidth, "How many bytes per second move, over time?", "copies", "HTA"),
    Analysis(
        counters,
        "What else does the trace count: CUPTI metrics, power, utilisation?",
        "counters",
        "HTA, Perfetto",
    ),
    Analysis(
        breakdown,
        "Where did the GPU's time go, and why was it idle?",
        "breakdown",
        "TensorBoard plugin, HTA, TraceLens",
    ),
    Analysis(
        overlaps,
        "How much communication and copying is hidden behind compute?",
        "breakdown",
        "TensorBoard plugin, HTA, TraceLens",
    ),
    Analysis(device_busy, "How busy was each GPU?", "findings", "TensorBoard plugin"),
    Analysis(
        idle,
        "When had the GPU nothing to do, and why?",
        "idle",
        "HTA, nsys analyze",
    ),
    Analysis(
        streams,
        "Do the streams work side by side, and what could but did not?",
        "streams",
        "HTA, nsys analyze",
    ),
    Analysis(
        waits,
        "Where does the CPU wait for the GPU or for data?",
        "findings",
        "nsys analyze",
    ),
    Analysis(
        input_queues,
        "How full were the queues that the input came from?",
        "findings",
        "TensorFlow summaries",
    ),
    Analysis(
        critical_path,
        "Which chain of CPU and GPU work makes the run as long as it is?",
        "critical path",
        "HTA",
    ),
    Analysis(
        what_ifs,
        "How much shorter would the run be without one of its ops or kernels?",
        "critical path",
        "HTA",
    ),
    Analysis(steps, "How long does each step take?", "timeline", "TensorBoard plugin"),
    Analysis(lines, "Which line of the cell takes the time?", "lines", "line_profiler, scalene"),
    Analysis(
        python_time,
        "Which Python functions take time, and which only wait for the GPU?",
        "Python functions, flame graph",
        "cProfile, snakeviz",
    ),
    Analysis(
        modules,
        "Which module takes the time, in the forward and the backward pass?",
        "modules",
        "TensorBoard plugin, TraceLens",
    ),
    Analysis(
        annotation_times,
        "How much GPU time does each annotated region cause?",
        "annotations",
        "HTA, nsys nvtx_gpu_proj_sum",
    ),
    Analysis(
        roofline,
        "How close do ops and kernels come to what the device can do?",
        "roofline",
        "TraceLens, XProf, torch._inductor profile_analysis",
    ),
    Analysis(
        analyze,
        "Which ops take the time, one by one or by kind, with FLOPs, bandwidth and shapes?",
        "",
        "MegEngine profile_analyze",
    ),
    Analysis(memory, "Which op allocates memory, and keeps it?", "memory", "TensorBoard plugin"),
    Analysis(memory_curve, "How much memory was held, over time?", "memory", "TensorBoard plugin"),
    Analysis(memory_peak, "What was alive when memory was fullest?", "memory", "memory snapshot"),
    Analysis(
        memory_segments,
        "How had the allocator laid out the GPU's memory, and how much lay in free pieces?",
        "allocator",
        "memory snapshot",
    ),
    Analysis(
        collectives,
        "Which collectives ran, how large, how fast, and how much of them was not hidden?",
        "collectives",
        "TensorBoard plugin, HTA, TraceLens, nsys nccl_sum",
    ),
    Analysis(
        allocations,
        "Which blocks were allocated, by whom, for how long?",
        "memory",
        "memory snapshot",
    ),
    Analysis(
        allocator_events,
        "When did the allocator ask the driver for memory, retry or fail?",
        "findings",
        "memory snapshot",
    ),
    Analysis(
        call_tree,
        "Which call paths take the time, on the CPU and on the GPU?",
        "flame graph",
        "Perfetto, torch's export_stacks, snakeviz",
    ),
    Analysis(
        python_calls,
        "Which Python functions were called, how often, for how long?",
        "flame graph",
        "cProfile, snakeviz",
    ),
    Analysis(
        backward_ops,
        "Which backward op takes the time, and whose forward op made it necessary?",
        "modules",
        "",
    ),
    Analysis(iterations, "How long did each iteration of the loop take, recorded or not?"),
    Analysis(
        workers,
        "What did the DataLoader's worker processes do?",
        "timeline",
        "TensorBoard plugin (DataLoader time)",
    ),
)

ASKED = (
    Analysis(
        attribution,
        "Which line, module, op or Python function caused it, backward pass included?",
        "lines, flame graph",
        "TraceLens",
        "module",
    ),
    Analysis(
        what_if,
        "How much shorter would the run be if that op or kernel were faster?",
        "critical path",
        "HTA",
        "aten::mm",
    ),
    Analysis(
        owners,
        "Who is responsible for that slice, from the Python frame down to the kernel?",
        "timeline",
        "",
        "1042",
    ),
    Analysis(
        worker_calls,
        "Which Python functions took the time of that worker of the DataLoader?",
        "",
        "",
        "0",
    ),
)
"""Analyses of a level, a name, a row or a worker, which a call has to name."""


def analysis(name: str) -> Analysis:
    """The analysis of that name."""
    return next(one for one in (*ANALYSES, *ASKED) if one.name == name)
