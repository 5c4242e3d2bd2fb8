"""`Analysed`: a record with every analysis as a method, documented with its columns and units.

Each method calls the function of the same name in `analyses`, which is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof_widgets.trace.model import Record

if TYPE_CHECKING:
    import pandas as pd

    from gpuprof_widgets.analyses.findings import Finding


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

    def kernels(self) -> pd.DataFrame:
        """One row per kernel, copy and memset by name, the longest in total first.

        Columns (ns): ``name``, ``category``, ``calls``, ``total_ns``, ``average_ns``, ``min_ns``,
        ``max_ns``, ``covered_ns`` and ``share`` (of the time in which the devices were busy).
        """
        from gpuprof_widgets.analyses.kernels import kernels

        return kernels(self)

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
        ``kernel_ns``, ``copy_ns``, ``slices``.
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
        synchronising, Python, CPU ops, runtime calls, launching, queued, other.
        """
        from gpuprof_widgets.analyses.breakdown import breakdown

        return breakdown(self, by=by)

    def overlaps(self, *, by: str = "device") -> pd.DataFrame:
        """One row per GPU (``by="step"``: and step): how much communication and copying was hidden.

        Columns (ns): ``rank``, ``device``, ``step``, ``span_ns``, ``busy_ns``, ``idle_ns``,
        ``compute_ns``, ``communication_ns``, ``copy_ns``, ``memset_ns`` (totals, that may overlap);
        ``communication_overlapped_ns``, ``copy_overlapped_ns`` (with compute) and as shares.
        """
        from gpuprof_widgets.analyses.breakdown import overlaps

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
        was computed meanwhile), ``algorithm_bytes_per_s``, ``bus_bytes_per_s`` (nccl-tests'
        formulas), ``best_bus_bytes_per_s`` (of the shortest). ``instances``: a row for each one,
        with ``in_bytes``, ``out_bytes``, ``start_ns``, ``end_ns``, ``dur_ns``, ``sequence``,
        ``row`` and ``op``.
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

    def memory_curve(self) -> pd.DataFrame:
        """One row per allocation or release: what the device held after it.

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
