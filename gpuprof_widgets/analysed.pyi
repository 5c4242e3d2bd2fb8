# Written by scripts/make_docs.py from ANALYSES: do not edit.
from gpuprof_widgets.analyses.allocator import allocator_events as _allocator_events
from gpuprof_widgets.analyses.allocator import memory_segments as _memory_segments
from gpuprof_widgets.analyses.analyze import analyze as _analyze
from gpuprof_widgets.analyses.attribution import attribution as _attribution
from gpuprof_widgets.analyses.backward import backward_ops as _backward_ops
from gpuprof_widgets.analyses.breakdown import breakdown as _breakdown
from gpuprof_widgets.analyses.call_tree import call_tree as _call_tree
from gpuprof_widgets.analyses.collectives import collectives as _collectives
from gpuprof_widgets.analyses.copies import copies as _copies
from gpuprof_widgets.analyses.copies import copy_bandwidth as _copy_bandwidth
from gpuprof_widgets.analyses.counters import counters as _counters
from gpuprof_widgets.analyses.critical_path import critical_path as _critical_path
from gpuprof_widgets.analyses.findings import findings as _findings
from gpuprof_widgets.analyses.gpu_use import gpu_summary as _gpu_summary
from gpuprof_widgets.analyses.gpu_work import device_busy as _device_busy
from gpuprof_widgets.analyses.idle import idle as _idle
from gpuprof_widgets.analyses.kernels import kernels as _kernels
from gpuprof_widgets.analyses.launches import launches as _launches
from gpuprof_widgets.analyses.launches import queue_length as _queue_length
from gpuprof_widgets.analyses.launches import queues as _queues
from gpuprof_widgets.analyses.lines import lines as _lines
from gpuprof_widgets.analyses.memory import allocations as _allocations
from gpuprof_widgets.analyses.memory import memory as _memory
from gpuprof_widgets.analyses.memory import memory_curve as _memory_curve
from gpuprof_widgets.analyses.memory import memory_peak as _memory_peak
from gpuprof_widgets.analyses.modules import modules as _modules
from gpuprof_widgets.analyses.operators import operators as _operators
from gpuprof_widgets.analyses.owners import owners as _owners
from gpuprof_widgets.analyses.python_calls import python_calls as _python_calls
from gpuprof_widgets.analyses.python_time import python_time as _python_time
from gpuprof_widgets.analyses.regions import annotations as _annotations
from gpuprof_widgets.analyses.regions import iterations as _iterations
from gpuprof_widgets.analyses.regions import steps as _steps
from gpuprof_widgets.analyses.roofline import roofline as _roofline
from gpuprof_widgets.analyses.sampled_lines import sampled_lines as _sampled_lines
from gpuprof_widgets.analyses.sequences import sequences as _sequences
from gpuprof_widgets.analyses.streams import overlaps as _overlaps
from gpuprof_widgets.analyses.streams import streams as _streams
from gpuprof_widgets.analyses.waits import waits as _waits
from gpuprof_widgets.analyses.what_if import what_if as _what_if
from gpuprof_widgets.analyses.what_if import what_ifs as _what_ifs
from gpuprof_widgets.analyses.workers import input_queues as _input_queues
from gpuprof_widgets.analyses.workers import worker_calls as _worker_calls
from gpuprof_widgets.analyses.workers import workers as _workers
from gpuprof_widgets.trace.model import Record

class Analysed(Record):
    findings = _findings
    operators = _operators
    kernels = _kernels
    gpu_summary = _gpu_summary
    launches = _launches
    queue_length = _queue_length
    queues = _queues
    sequences = _sequences
    copies = _copies
    copy_bandwidth = _copy_bandwidth
    counters = _counters
    breakdown = _breakdown
    overlaps = _overlaps
    device_busy = _device_busy
    idle = _idle
    streams = _streams
    waits = _waits
    input_queues = _input_queues
    critical_path = _critical_path
    what_ifs = _what_ifs
    steps = _steps
    lines = _lines
    python_time = _python_time
    sampled_lines = _sampled_lines
    modules = _modules
    annotations = _annotations
    roofline = _roofline
    analyze = _analyze
    memory = _memory
    memory_curve = _memory_curve
    memory_peak = _memory_peak
    memory_segments = _memory_segments
    collectives = _collectives
    allocations = _allocations
    allocator_events = _allocator_events
    call_tree = _call_tree
    python_calls = _python_calls
    backward_ops = _backward_ops
    iterations = _iterations
    workers = _workers
    attribution = _attribution
    what_if = _what_if
    owners = _owners
    worker_calls = _worker_calls
