"""`Analysed`: a record with every analysis as a method.

A method is the function of the same name in `analyses`, whose first argument is the record: what it
takes, and its columns with their units, are said there once.
"""

from __future__ import annotations

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
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.gpu_summary import gpu_summary
from gpuprof_widgets.analyses.idle import idle
from gpuprof_widgets.analyses.input_queues import input_queues
from gpuprof_widgets.analyses.iterations import iterations
from gpuprof_widgets.analyses.kernels import kernels
from gpuprof_widgets.analyses.lacking import with_explained_methods
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
from gpuprof_widgets.trace.model import Record


@with_explained_methods
class Analysed(Record):
    """What can be asked of one run; times are ns since the trace's start."""

    findings = findings

    # Ops and Python.
    operators = operators
    analyze = analyze
    roofline = roofline
    call_tree = call_tree
    python_calls = python_calls
    python_time = python_time

    # Who caused it.
    attribution = attribution
    lines = lines
    modules = modules
    annotations = annotation_times
    backward_ops = backward_ops
    owners = owners

    # The GPU's work.
    kernels = kernels
    gpu_summary = gpu_summary
    launches = launches
    queue_length = queue_length
    queues = queues
    input_queues = input_queues
    sequences = sequences
    copies = copies
    copy_bandwidth = copy_bandwidth
    collectives = collectives
    counters = counters

    # Where the time went.
    breakdown = breakdown
    overlaps = overlaps
    device_busy = device_busy
    idle = idle
    streams = streams
    waits = waits
    critical_path = critical_path
    what_if = what_if
    what_ifs = what_ifs

    # The loop and its DataLoader.
    steps = steps
    iterations = iterations
    workers = workers
    worker_calls = worker_calls

    # Memory.
    memory = memory
    memory_curve = memory_curve
    memory_peak = memory_peak
    memory_segments = memory_segments
    allocations = allocations
    allocator_events = allocator_events
