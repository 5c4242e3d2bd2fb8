"""`Analysed`: a record with every analysis as a method, documented with its columns and units.

Each method calls the function of the same name in `analyses`, which is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof_widgets.analyses.lacking import with_explained_methods
from gpuprof_widgets.trace.model import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from gpuprof_widgets.analyses.findings import Finding
    from gpuprof_widgets.trace.peaks import Peaks


@with_explained_methods
class Analysed(Record):
    """What can be asked of one run; times are ns since the trace's start."""

    def operators(
        self,
        *,
        by_shape: bool = False,
        stack_depth: int = 0,
        sort: str = "device_self",
        top: int | None = None,
    ) -> pd.DataFrame:
        """One row per op, annotation, runtime call, kernel and copy, the costliest first.

        Also grouped by input shapes (``by_shape``) and by the innermost Python frames
        (``stack_depth``). Columns: ``name``, ``category``, ``calls``; ``cpu_`` and ``device_``
        ``total_ns``, ``self_ns``, ``average_ns``, ``self_share``; ``cpu_`` and ``device_``
        ``memory_bytes`` and ``self_memory_bytes``; ``flops``.
        """
        from gpuprof_widgets.analyses.operators import operators

        return operators(self, by_shape=by_shape, stack_depth=stack_depth, sort=sort, top=top)

    def analyze(
        self,
        *,
        side: str = "device",
        by: str = "call",
        aggregate: str = "sum",
        types: Sequence[str] = (),
        input_dtype: str | None = None,
        min_ns: int | None = None,
        max_ns: int | None = None,
        order_by: str = "time",
        top: int | None = None,
    ) -> pd.DataFrame:
        """One row per call of an op (or per "name" or "type"), with its work and its speed.

        ``side``: "device" or "host"; of ``aggregate`` "sum", "mean", "max", "min". Columns:
        ``name``, ``type``, ``row`` (of a call), ``calls``; ``device_self_ns`` or ``host_self_ns``,
        ``share``, ``cumulative_ns``, ``cumulative_share``; ``computation_flops``, ``flops_per_s``,
        ``memory_bytes``, ``bandwidth_bytes_per_s``; ``in_shapes``, ``out_shapes``, ``in_dtypes``.
        """
        from gpuprof_widgets.analyses.analyze import analyze

        return analyze(
            self,
            side=side,
            by=by,
            aggregate=aggregate,
            types=types,
            input_dtype=input_dtype,
            min_ns=min_ns,
            max_ns=max_ns,
            order_by=order_by,
            top=top,
        )

    def kernels(self, *, by: str = "name") -> pd.DataFrame:
        """One row per kernel, copy and memset by name, the longest in total first.

        ``by``: "name", "geometry" (also by op, grid, block, registers and shared memory), "kind".
        Columns (times in ns): ``name``, ``category``, ``kind`` (compute, communication, copy,
        memset), ``calls``, ``total_ns``, ``average_ns``, ``min_ns``, ``max_ns``, ``p50_ns``,
        ``p90_ns``, ``p99_ns``, ``std_ns``, ``covered_ns`` and ``share`` (of the time in which the
        devices were busy); ``op_name`` (launched most of it), ``ops`` (how many did),
        ``eligible_share`` (launched by ops that tensor cores can do); ``grid``, ``block``,
        ``registers``, ``shared_memory`` (bytes), ``blocks_per_sm``, ``occupancy`` (of one; means
        weighted by duration), ``tensor_cores`` (by the name).
        """
        from gpuprof_widgets.analyses.kernels import kernels

        return kernels(self, by=by)

    def gpu_summary(self) -> pd.DataFrame:
        """One row per GPU that ran kernels: the figures of the TensorBoard plugin's GPU summary.

        Columns: ``device``, ``device_name``, ``memory_bytes``, ``compute_capability``; ``span_ns``
        (of the steps, else the whole), ``kernel_ns``, ``utilisation``, ``sm_efficiency``,
        ``occupancy``, ``tensor_core_share`` (of one; NaN where the trace does not tell).
        """
        from gpuprof_widgets.analyses.gpu_summary import gpu_summary

        return gpu_summary(self)

    def launches(self) -> pd.DataFrame:
        """One row per kernel, copy and memset with its launch, in order of the launch calls.

        Columns (times in ns): ``row``, ``name``, ``category``, ``kind``, ``device``, ``stream``,
        ``start_ns``, ``dur_ns``; ``launch`` (row), ``launch_name``, ``thread``, ``call_start_ns``,
        ``call_ns``, ``launched`` (slices by this call); ``from_call_ns``, ``latency_ns`` (from the
        call's end) = ``queue_ns`` (behind its stream) + ``pure_latency_ns``; ``op``, ``op_name``;
        ``short`` (shorter than its launch), ``slow_call`` (over 50 µs), ``late`` (over 100 µs).
        ``attrs["unlinked"]``: GPU slices without a launch.
        """
        from gpuprof_widgets.analyses.launches import launches

        return launches(self)

    def queue_length(self) -> pd.DataFrame:
        """One row per change of a stream's queue of launched work that has not started.

        Columns: ``device``, ``stream``, ``ts_ns``, ``length`` (from then on).
        """
        from gpuprof_widgets.analyses.queue_length import queue_length

        return queue_length(self)

    def queues(self) -> pd.DataFrame:
        """One row per stream on which work was launched: its queue and its launches.

        Columns (times in ns): ``device``, ``stream``, ``launches``, ``longest``, ``average`` (queue
        length), ``waiting_ns`` (it was not empty), ``full_ns``, ``full_share`` (1,024 or more),
        ``latency_p50_ns``, ``latency_p99_ns``, ``queue_ns``, ``pure_latency_ns`` (sums), ``short``,
        ``slow_calls``, ``late`` (how many; see `launches`).
        """
        from gpuprof_widgets.analyses.queue_length import queues

        return queues(self)

    def sequences(self, *, op: str | None = None, length: int = 3, top: int = 50) -> pd.DataFrame:
        """One row per op and sequence of kernels that its calls launched, the most time first.

        ``op``: a part of the ops' names (else the outermost ops); ``length``: kernels at least.
        Columns: ``op_name``, ``sequence`` (names with arrows between), ``kernels``, ``calls``,
        ``total_ns``, ``average_ns`` (GPU), ``launching_ns`` (in launch calls), ``op_ns`` (CPU),
        ``average_until_launch_ns`` (from the op's start to its first launch) and
        ``average_until_start_ns`` (on to the GPU's start), ``first`` (row of the first call),
        ``short_kernels`` (share).
        """
        from gpuprof_widgets.analyses.sequences import sequences

        return sequences(self, op=op, length=length, top=top)

    def copies(self, *, by: str = "copy") -> pd.DataFrame:
        """One row per copy in order of time; or per kind of copy, or per op that issued them.

        ``by``: "copy", "kind", "op". Columns: ``row``, ``name``, ``device``, ``stream``,
        ``direction``, ``source``, ``target`` (memory), ``bytes`` (-1 unknown), ``start_ns``,
        ``dur_ns``, ``bytes_per_s``, ``launch``, ``launch_name``, ``call_ns`` (CPU in the call),
        ``wait_ns`` (CPU waiting afterwards), ``blocking``, ``op``, ``op_name``, ``module``,
        ``line``, ``python``, ``needless`` ("", "there and back", "every step"). Grouped: sums,
        ``copies`` and ``sizes``.
        """
        from gpuprof_widgets.analyses.copies import copies

        return copies(self, by=by)

    def copy_bandwidth(self) -> pd.DataFrame:
        """One row per change of the bytes per second that a device moves in one direction.

        Columns: ``device``, ``direction``, ``ts_ns``, ``bytes_per_s`` (from then on), ``copies``.
        """
        from gpuprof_widgets.analyses.copy_bandwidth import copy_bandwidth

        return copy_bandwidth(self)

    def counters(self, *, derived: bool = True) -> pd.DataFrame:
        """One row per change of whatever the trace counts, and of the curves that follow from it.

        Columns: ``ts_ns``, ``name``, ``series``, ``value`` (from then on), ``unit``, ``derived``
        (queue length, copy bandwidth, utilisation and SM efficiency, worked out here;
        ``derived=False`` leaves them out).
        """
        from gpuprof_widgets.analyses.counters import counters

        return counters(self, derived=derived)

    def call_tree(self, *, source: str = "ops") -> pd.DataFrame:
        """One row per path of names, parents first: what the flame graph draws.

        ``source``: "ops", "merged" (with Python frames) or "cprofile" (an estimate). Columns:
        ``node``, ``parent``, ``depth``, ``name``, ``category``, ``calls``, ``total_ns``,
        ``self_ns``, ``device_ns``.
        """
        from gpuprof_widgets.analyses.call_tree import call_tree

        return call_tree(self, source=source)

    def python_calls(self) -> pd.DataFrame:
        """One row per Python function as cProfile counted it, the largest self time first.

        Columns: ``file``, ``line``, ``name``, ``calls``, ``primitive_calls``, ``self_ns``,
        ``self_per_call_ns``, ``total_ns``, ``total_per_call_ns``.
        """
        from gpuprof_widgets.analyses.python_calls import python_calls

        return python_calls(self)

    def python_time(self) -> pd.DataFrame:
        """One row per Python function: its time, and how much of it waited for the GPU.

        Columns (times in ns): ``file``, ``line``, ``name``, ``calls``, ``primitive_calls``;
        ``self_ns`` (cProfile's tottime) = ``self_waiting_ns`` + ``self_python_ns``; ``total_ns``
        (its cumtime) = ``total_waiting_ns`` + ``total_python_ns``; ``waited_for`` (kernel or copy),
        ``launched_by`` (op), ``launched_at`` (cell line); ``exact``: known from recorded frames,
        not estimated from cProfile.
        """
        from gpuprof_widgets.analyses.python_time import python_time

        return python_time(self)

    def device_busy(self) -> pd.DataFrame:
        """One row per GPU: busy and idle time, which add up to the span exactly.

        Columns (ns): ``device``, ``span_ns``, ``busy_ns``, ``idle_ns``, ``busy_share``,
        ``kernel_ns``, ``copy_ns``, ``memset_ns``, ``slices``.
        """
        from gpuprof_widgets.analyses.device_busy import device_busy

        return device_busy(self)

    def idle(self, *, by: str = "device", back_to_back_ns: int = 10_000) -> pd.DataFrame:
        """One row per gap of each GPU or stream, the longest first, with its cause.

        Columns: ``device``, ``stream`` (-1 by device), ``start_ns``, ``end_ns``, ``dur_ns``, the
        slices ``before`` and ``after`` with their names, ``launch_ns``; what the CPU ``thread``
        did meanwhile: ``cpu``, ``cpu_name``, ``cpu_share``, ``line``, ``module``; ``cause``
        ("dataloader", "synchronise", "host", "device", "start", "end", "unknown"; of streams also
        "stream": it waited for another one, and "back to back": shorter than ``back_to_back_ns``).
        """
        from gpuprof_widgets.analyses.idle import idle

        return idle(self, by=by, back_to_back_ns=back_to_back_ns)

    def breakdown(self, *, by: str = "device") -> pd.DataFrame:
        """One row per GPU and class (``by="step"``: and step); classes add up to the span exactly.

        Columns: ``rank``, ``device`` (-1: no GPU, the host), ``step`` (-1: the whole), ``state``
        ("busy", "idle" or "host"), ``class``, ``time_ns``, ``share``, ``span_ns``. Classes:
        compute, exposed communication, exposed copy, memset; of idle time input pipeline,
        synchronising, Python, CPU ops, runtime calls, launching, queued, other; of the host
        exposed communication (of gloo) and those of idle time but for queued.
        """
        from gpuprof_widgets.analyses.breakdown import breakdown

        return breakdown(self, by=by)

    def overlaps(self, *, by: str = "device") -> pd.DataFrame:
        """One row per GPU (``by="step"``: and step): how much communication and copying was hidden.

        Columns (ns): ``rank``, ``device``, ``step``, ``span_ns``, ``busy_ns``, ``idle_ns``,
        ``compute_ns``, ``communication_ns``, ``copy_ns``, ``memset_ns`` (totals, that may overlap);
        ``communication_overlapped_ns``, ``copy_overlapped_ns`` (with compute) and as shares.
        """
        from gpuprof_widgets.analyses.overlaps import overlaps

        return overlaps(self, by=by)

    def streams(self, *, by: str = "stream") -> pd.DataFrame:
        """One row per stream: busy, alone and beside others; the busiest first.

        Columns (ns): ``device``, ``stream``, ``calls``, ``busy_ns``, ``busy_share``;
        ``compute_ns``, ``communication_ns``, ``copy_ns``, ``memset_ns``; ``alone_ns``,
        ``shared_ns``; ``serialised_ns`` (communication and copies exposed on a stream that computes
        as well); ``start_ns``, ``end_ns``. ``by="pair"``: ``stream``, ``other``, ``overlap_ns``,
        ``share``; ``by="concurrency"``: ``active`` streams, ``time_ns``, ``share``.
        """
        from gpuprof_widgets.analyses.streams import streams

        return streams(self, by=by)

    def collectives(self, *, instances: bool = False) -> pd.DataFrame:
        """One row per collective by operation, size and group, the longest in total first.

        Columns (ns, bytes, bytes per s): ``name``, ``backend``, ``dtype``, ``bytes`` (of one
        message, -1: unknown), ``group``, ``ranks``, ``device`` (-1: the CPU), ``count``,
        ``total_bytes``, ``total_ns``, ``mean_ns``, ``min_ns``, ``max_ns``, ``exposed_ns`` (nothing
        was computed meanwhile; of several at a time that of the first, so that they add up),
        ``algorithm_bytes_per_s``, ``bus_bytes_per_s`` (nccl-tests' formulas),
        ``best_bus_bytes_per_s`` (of the shortest); unknown: -1 or NaN. ``instances``: a row for
        each one, with ``in_bytes``, ``out_bytes``, ``start_ns``, ``end_ns``, ``dur_ns``,
        ``sequence``, ``row`` and ``op``.
        """
        from gpuprof_widgets.analyses.collectives import collectives

        return collectives(self, instances=instances)

    def waits(self) -> pd.DataFrame:
        """One row per call that waited for the GPU or for the DataLoader, the longest first.

        Columns (times in ns): ``kind`` ("synchronise" or "dataloader"), ``row``, ``name``,
        ``start_ns``, ``dur_ns``; the op that made the call (``op``, ``op_name``);
        ``gpu_busy_ns`` (how much of the wait some GPU was busy); the GPU slice after which it ended
        (``gpu``, ``gpu_name``); the copy that it was for (``copy``, ``copy_name``). Of slices the
        row is given, -1 and "" where there is none.
        """
        from gpuprof_widgets.analyses.waits import waits

        return waits(self)

    def lines(self) -> pd.DataFrame:
        """One row per line of the cell in which a statement begins, whether it ran or not.

        Columns (times in ns): ``cell``, ``line``, ``code``; ``calls`` (statements begun on it);
        ``wall_ns`` (open, less the time in which ``await`` or ``yield`` suspended its function),
        ``self_ns`` (without the lines that ran within it), ``cpu_self_ns`` (of that, ops);
        ``device_ns`` (GPU time that it launched), ``wait_ns`` (waited for the GPU),
        ``allocated_bytes``; ``backward_cpu_ns`` and ``backward_device_ns`` (of the backward ops
        whose forward op ran in it); ``complete`` (False where a line ran more than 10,000 times,
        and for the line around it, for which its time counts beyond that).
        """
        from gpuprof_widgets.analyses.lines import lines

        return lines(self)

    def steps(self) -> pd.DataFrame:
        """One row per step that the profiler's schedule marked, in order of time.

        Columns (times in ns): ``step`` (its number), ``row``, ``start_ns``, ``end_ns``,
        ``dur_ns``, ``gpu_busy_ns`` (any GPU busy between start and end).
        """
        from gpuprof_widgets.analyses.steps import steps

        return steps(self)

    def critical_path(
        self,
        *,
        step: int | None = None,
        region: str | tuple[int, int] | None = None,
        by: str | None = None,
    ) -> pd.DataFrame:
        """One row per segment of the longest chain through CPU and GPU work, in order of time.

        Of the run, a ``step`` or a ``region`` (name or pair of ns), which the segments tile
        exactly. Columns (times in ns): ``start_ns``, ``end_ns``, ``dur_ns``, ``kind`` ("python",
        "cpu op", "runtime", "data loading", "synchronisation", "compute", "communication", "copy",
        "memset", "launch delay", "kernel-to-kernel delay", "stream wait (inferred)", "unknown"),
        ``row``, ``name``, ``track``, ``thread``; ``op``, ``module``, ``line`` (rows) and their
        ``_name``. ``by`` ("kind", "op", "name", "module", "line"): added up, with ``dur_ns``,
        ``share``, ``segments``, ``cpu_ns``, ``gpu_ns``, ``delay_ns``.
        """
        from gpuprof_widgets.analyses.critical_path import critical_path

        return critical_path(self, step=step, region=region, by=by)

    def what_if(
        self,
        name: str,
        *,
        scale: float = 0.0,
        step: int | None = None,
        region: str | tuple[int, int] | None = None,
    ) -> pd.DataFrame:
        """How long the run would take if an op or kernel took ``scale`` times as long: one row.

        All that waits for what still does (see `critical_path`). Columns (times in ns): ``name``,
        ``what`` ("op" or "kernel"), ``scale``, ``calls``, ``time_ns``, ``path_ns`` (on the critical
        path), ``span_ns``, ``new_span_ns``, ``saved_ns``, ``saved_share``.
        """
        from gpuprof_widgets.analyses.what_if import what_if

        return what_if(self, name, scale=scale, step=step, region=region)

    def what_ifs(
        self, *, step: int | None = None, region: str | tuple[int, int] | None = None
    ) -> pd.DataFrame:
        """What each of the likeliest ops and kernels would save if it cost nothing, the most first.

        Columns as in `what_if`.
        """
        from gpuprof_widgets.analyses.what_if import what_ifs

        return what_ifs(self, step=step, region=region)

    def iterations(self) -> pd.DataFrame:
        """One row per iteration of the loop that was bounded (see `steps`), recorded or not.

        Columns: ``step``, ``kind`` ("wait", "warmup", "recorded", or "cprofile" where only cProfile
        still ran), ``dur_ns``, ``complete`` (False where the loop was left in the middle of it).
        """
        from gpuprof_widgets.analyses.iterations import iterations

        return iterations(self)

    def allocations(self) -> pd.DataFrame:
        """One row per block of memory with its life, category and owners, in order of time.

        Columns: ``device``, ``start_ns`` (-1: from before the record), ``end_ns`` (-1: not
        released in it), ``bytes``, ``category`` ("parameters", "gradients", "optimizer state",
        "inputs", "activations", "autograd detail", "temporaries", "other", "before the record"),
        ``classified_by`` ("torch" or "rules"), ``tensor``; ``op``, ``module``, ``line`` (rows) and
        ``op_name``, ``module_name``, ``line_name``; ``address``, ``row``, ``release``.
        """
        from gpuprof_widgets.analyses.memory import allocations

        return allocations(self)

    def memory(self) -> pd.DataFrame:
        """One row per device and op that allocated or released memory, the largest first.

        Columns (bytes): ``device``, ``name``, ``calls``; ``size_increase_bytes`` (allocated less
        released), ``allocations`` (their number), ``allocation_bytes``, with what the op calls, and
        as ``self_...`` without. See also `memory_curve`, `allocations` and `memory_peak`.
        """
        from gpuprof_widgets.analyses.memory_by_op import memory

        return memory(self)

    def memory_curve(self) -> pd.DataFrame:
        """One row per allocation or release, or change of what is reserved: what the device held.

        Columns: ``device``, ``ts_ns``, ``allocated_bytes``, ``reserved_bytes`` (-1: not known).
        """
        from gpuprof_widgets.analyses.memory import memory_curve

        return memory_curve(self)

    def memory_peak(self) -> pd.DataFrame:
        """What was alive when each device held most: a row per category and owner, biggest first.

        Columns: ``device``, ``ts_ns``, ``allocated_bytes``, ``reserved_bytes`` (the moment),
        ``category``, ``line_name``, ``module_name``, ``op_name``, ``bytes``, ``share``, ``blocks``.
        """
        from gpuprof_widgets.analyses.memory import memory_peak

        return memory_peak(self)

    def memory_segments(self) -> pd.DataFrame:
        """One row per segment that the allocator held of a GPU's memory (of a memory snapshot).

        Columns: ``device``, ``stream``, ``pool``, ``kind`` ("small", "large"), ``expandable``,
        ``address``; ``bytes`` = ``allocated_bytes`` + ``awaiting_bytes`` (other streams) +
        ``free_bytes``; ``largest_free_bytes``, ``rounding_bytes`` (allocated, not asked for),
        ``blocks``, ``free_blocks``; ``line_name`` (holds most of it).
        """
        from gpuprof_widgets.analyses.memory_segments import memory_segments

        return memory_segments(self)

    def allocator_events(self) -> pd.DataFrame:
        """One row per out-of-memory error, allocator retry, cudaMalloc and cudaFree, by time.

        Columns: ``kind`` ("out of memory", "retry", "malloc", "free"), ``row``, ``name``,
        ``start_ns``, ``dur_ns``, ``device``, ``bytes``, ``op``, ``op_name``, ``module_name``,
        ``line_name``.
        """
        from gpuprof_widgets.analyses.allocator import allocator_events

        return allocator_events(self)

    def workers(self) -> pd.DataFrame:
        """One row per recorded worker process of a DataLoader (see ``--workers``).

        Columns (times in ns): ``worker`` (its number in its loader), ``pid``, ``batches``,
        ``items``, ``fetch_ns`` (making batches: ``item_ns`` getting items, ``collate_ns`` putting
        them together), ``put_ns`` (pickling and sending, beside the next fetch), ``idle_ns``.
        """
        from gpuprof_widgets.analyses.workers import workers

        return workers(self)

    def worker_calls(self, worker: int) -> pd.DataFrame:
        """One row per Python function that cProfile counted in that worker of the DataLoader.

        Columns as in `python_calls`. Workers that a loader started anew, with the same number, are
        added up.
        """
        from gpuprof_widgets.analyses.workers import worker_calls

        return worker_calls(self, worker)

    def attribution(self, level: str) -> pd.DataFrame:
        """One row per owner at that level ("line", "module", "op", "python"), costliest first.

        What runs in the backward pass is its forward op's owner's. Columns (times in ns): ``name``,
        ``detail`` (the cell of a line, the class of a module), ``calls``; ``cpu_self_ns``,
        ``device_ns`` and, of the backward pass, ``backward_cpu_ns``, ``backward_device_ns``;
        ``wait_ns`` (for the GPU), ``allocated_bytes``: these add up to all that was recorded, what
        belongs to nobody in the last row; ``cpu_total_ns``, ``device_total_ns`` with what ran
        inside.
        """
        from gpuprof_widgets.analyses.attribution import attribution

        return attribution(self, level)

    def backward_ops(self) -> pd.DataFrame:
        """One row per backward op, forward op, module and line, the longest on the CPU first.

        Columns (times in ns): ``name``, ``forward``, ``module``, ``line``, ``cell`` (of the forward
        op; "" and -1 where unknown), ``calls``, ``cpu_ns``, ``forward_cpu_ns``, ``device_ns``,
        ``wait_ns`` (for the GPU), ``row`` (of the longest call).
        """
        from gpuprof_widgets.analyses.backward_ops import backward_ops

        return backward_ops(self)

    def modules(self) -> pd.DataFrame:
        """One row per module, as a tree: parents before their children, as they first ran.

        From recorded modules, else from the ``nn.Module`` frames of a trace with stacks. Columns
        (times in ns): ``name``, ``class``, ``parent`` (row of this table, -1), ``depth``,
        ``calls``; ``cpu_self_ns``, ``cpu_total_ns``, ``device_self_ns``, ``device_total_ns`` of the
        forward pass and the same with ``backward_``; ``wait_ns``; ``flops``, ``backward_flops``
        (with the modules within); ``allocated_bytes``, ``allocated_total_bytes``; ``row``. The last
        row, without a name, has what belongs to no module.
        """
        from gpuprof_widgets.analyses.modules import modules

        return modules(self)

    def annotations(self) -> pd.DataFrame:
        """One row per `record_function` annotation: CPU and GPU time, each call counted once.

        Columns (times in ns): ``name``, ``calls``, ``cpu_total_ns``, ``cpu_self_ns``;
        ``device_busy_ns`` (the GPU ran anything that it launched) and ``kernel_ns`` (their sum),
        both with and, as ``device_self_busy_ns`` and ``kernel_self_ns``, without the annotations
        within; ``kernels`` (their number); ``gpu_span_ns`` (first to last on each stream, as Kineto
        wrote it); ``row``.
        """
        from gpuprof_widgets.analyses.annotations import annotations

        return annotations(self)

    def roofline(self, *, by: str = "op", peaks: Peaks | None = None) -> pd.DataFrame:
        """One row per op and number format: its work, its speed, and the device's roof.

        ``by``: "op", "shape" or "kernel"; ``peaks``: other than the data sheet's (see
        `measured_peaks`). Columns: ``name``, ``dtype``, ``calls``, ``time_ns`` (GPU; without any
        GPU work CPU), ``flops``, ``bytes``, ``bytes_counted`` ("inputs and outputs", "inputs" or
        ""), ``flops_per_s``, ``bytes_per_s``, ``intensity`` (FLOPs per byte), ``peak_flops_per_s``,
        ``peak_bytes_per_s``, ``bound`` ("compute", "memory" or ""), ``roof_share``. ``attrs`` says
        what it was compared with.
        """
        from gpuprof_widgets.analyses.roofline import roofline

        return roofline(self, by=by, peaks=peaks)

    def owners(self, row: int) -> pd.DataFrame:
        """Who is responsible for one slice: a row per owner, the outermost first, itself last.

        ``row`` is the slice's row in ``trace.slices``, as findings and the other tables name it.
        Columns: ``role`` (python, line, module, annotation, forward, op, launch, gpu or the
        slice's category), ``row``, ``name``. A backward op has its forward op's owners as well.
        """
        from gpuprof_widgets.analyses.owners import owners

        return owners(self, row)

    def findings(self, **limits: float) -> list[Finding]:
        """Why it is slow, in sentences with numbers, the costliest first.

        ``limits``: thresholds of the rules, as ``dataloader_share=0.1``; `Limits` lists them.
        """
        from gpuprof_widgets.analyses.findings import findings

        return findings(self, **limits)
