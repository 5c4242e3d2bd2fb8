"""How close each op and kernel comes to what the device can do: the roofline model.

`work_of` counts the work of ops: floating point operations, bytes and number format. `work_pieces`
divides it among the compute kernels, on a CPU among the ops; `roofline` adds up the pieces and
compares them with the peaks of the device.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM, 2009.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.columns import format_share, group_sums
from gpuprof_widgets.analyses.flops import FORMULAS, flops_of, recorded_work
from gpuprof_widgets.analyses.gpu_peaks import busiest_device, device_name, peaks_of
from gpuprof_widgets.analyses.gpu_work import COMPUTE, gpu_kinds
from gpuprof_widgets.analyses.lines import slice_self_times
from gpuprof_widgets.analyses.op_bytes import BOTH, INPUTS, NOTHING, bytes_of, elements_of
from gpuprof_widgets.analyses.op_calls import SHAPE_KEYS, Call, distinct_calls, of_calls, shape_text
from gpuprof_widgets.analyses.operators import INSTANTS
from gpuprof_widgets.analyses.reasons import NOTE, SHAPES, empty_table
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Floats, Ints, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.known_metadata import Peaks
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import FLOPS, MEMORY_TRAFFIC, NONE

GROUPINGS = ("op", "shape", "kernel")
NUMBERS = (
    *("calls", "time_ns", "flops", "bytes", "bytes_counted", "flops_per_s", "bytes_per_s"),
    *("intensity", "peak_flops_per_s", "peak_bytes_per_s", "bound", "roof_share"),
)
NO_KERNELS = "the trace has no kernels: its GPU work is copies and memsets alone"
NO_WORK = "of no op with input shapes it is known how many FLOPs and bytes it takes"
NO_OPS = "the trace has no ops, whose input shapes tell how much work there was"
COMPUTE_BOUND, MEMORY_BOUND = "compute", "memory"


def roofline(record: Record, *, by: str = "op", peaks: Peaks | None = None) -> pd.DataFrame:
    """One row per op and number format with its work, speed and roof, the longest in total first.

    Work belongs to the outermost op with a formula, else to the innermost op. Among several kernels
    of one call it is divided by their time. On a GPU all compute kernels are in one row each; those
    of no op are in a row without a name. On a CPU only ops whose work is known are listed.

    Formula: ``intensity`` = ``flops`` / ``bytes``. Time at the roof = max(``flops`` /
    ``peak_flops_per_s``, ``bytes`` / ``peak_bytes_per_s``). ``roof_share`` = time at the roof /
    ``time_ns``. An op is bound by compute if ``intensity`` × ``peak_bytes_per_s`` >
    ``peak_flops_per_s``, else by memory.

    Options:

    - ``by``: "op", "shape" (op and input shapes) or "kernel".
    - ``peaks``: of the device; None: those measured in the run, else those of its data sheet.
      Without either, speed and intensity are still known.

    Columns:

    - ``name``: the op, or the kernel with "kernel".
    - ``input_shapes``: with "shape" only.
    - ``op``: with "kernel" only: the op that took most of its time.
    - ``dtype``: "fp16", ...; "tf32" if a kernel's name says so; "" for none of them.
    - ``calls``: of the op, or of the kernel.
    - ``time_ns``: of its compute kernels (several streams add up); without any GPU work, CPU time
      of the op and what it calls.
    - ``flops``: of products of matrices, convolutions, attention and their backward ops, from the
      recorded shapes; of sums, differences, products and quotients one per element of the result.
    - ``bytes``: that have to be moved at least: every input is read once, every output written
      once; -1: unknown.
    - ``bytes_counted``: "inputs and outputs", "inputs", or "" (some calls are unknown).
    - ``flops_per_s``: ``flops`` / ``time_ns``; NaN: unknown.
    - ``bytes_per_s``: ``bytes`` / ``time_ns``; NaN: unknown.
    - ``intensity``: FLOPs per byte; NaN: unknown.
    - ``peak_flops_per_s``: of the device in that format; NaN: unknown.
    - ``peak_bytes_per_s``: of the device; NaN: unknown.
    - ``bound``: "compute" or "memory"; "memory" for ops that only move data or do a few steps per
      number; "" if it cannot be told.
    - ``roof_share``: share of ``time_ns`` that this work would take at the roof. Over one if a
      cache saves accesses to memory, or if indices name the same rows again and again.

    ``attrs["note"]`` says where the peaks come from, how many rows are above the roof, and for what
    share of the time no bytes are known. ``attrs["peaks"]`` has the peaks.

    Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", Communications of the ACM, 2009. Peaks: the makers' data sheets.
    """
    if by not in GROUPINGS:
        raise OptionError(f"a roofline is by one of {', '.join(GROUPINGS)}, not {by!r}.")
    trace = record.trace
    if not len(trace):
        return empty_table(_columns(by), "the trace has neither ops nor kernels")
    on_gpu = bool(len(trace.index.gpu))
    if by == "kernel" and not on_gpu:
        return empty_table(_columns(by), "the trace has no GPU work: there are no kernels")
    if not any(key in trace.args for key in SHAPE_KEYS):
        why = SHAPES if trace.index.is_op.any() else NO_OPS
        return empty_table(_columns(by), why)
    device = busiest_device(record) if on_gpu else None
    roof = peaks or peaks_of(record, device)
    pieces, keys = grouped_pieces(record, by)
    pieces["calls"] = _calls(trace, pieces, by)
    table = _sums(pieces, keys)
    if by == "kernel":
        table["op"] = _mostly(pieces, keys)
    table = _with_roof(table.rename(columns={keys[0]: "name"}), roof)[list(_columns(by))]
    if not len(table):
        return empty_table(_columns(by), NO_KERNELS if on_gpu else NO_WORK)
    note = _note(device_name(record, device), roof, on_gpu)
    table.attrs[NOTE] = "; ".join([note, *_doubts(table)])
    table.attrs["peaks"] = roof.as_dict() if roof else None
    return table


def grouped_pieces(record: Record, by: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the pieces of work and the columns by which to group them."""
    trace, pieces = record.trace, work_pieces(record)
    if by == "shape":
        return pieces, ["op", "dtype", "input_shapes"]
    if by == "kernel":
        pieces["kernel"] = trace.index.names_of(pieces["row"].to_numpy())
        return pieces, ["kernel", "dtype"]
    return pieces, ["op", "dtype"]


def _columns(by: str) -> Sequence[str]:
    labels = {"op": (), "shape": ("input_shapes",), "kernel": ("op",)}[by]
    return ("name", *labels, "dtype", *NUMBERS)


def _calls(trace: Trace, pieces: pd.DataFrame, by: str) -> Ints:
    """Return the calls that each piece adds: those of its op, once, unless a window left it out."""
    count = trace.index.column("count").astype(np.int64)
    if by == "kernel":
        return np.asarray(count[pieces["row"]])
    op = pieces["op_row"].to_numpy()
    first = ~pieces["op_row"].duplicated().to_numpy() & (op >= 0)
    return np.where(first, take(count, op), 0)


def _sums(pieces: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    grouped = pieces.groupby(keys, sort=False)
    table = grouped[["calls", "time_ns", "flops", "bytes"]].sum()
    table["bytes_counted"] = grouped["bytes_counted"].agg(least_counted)
    table["moves_only"] = grouped["moves_only"].all()
    whole = {column: table[column].round().astype(np.int64) for column in ("flops", "bytes")}
    unknown = (table["bytes_counted"] == NOTHING) & (whole["bytes"] == 0)
    return table.assign(
        flops=whole["flops"], bytes=whole["bytes"].mask(unknown, NONE)
    ).reset_index()


def _mostly(pieces: pd.DataFrame, keys: list[str]) -> npt.NDArray[np.object_]:
    """Return per group the op that took most of its time."""
    by_op = pieces.groupby([*keys, "op"], sort=False)["time_ns"].sum().reset_index()
    longest = by_op.sort_values("time_ns", kind="stable").drop_duplicates(keys, keep="last")
    return pieces[keys].drop_duplicates().merge(longest, "left", on=keys)["op"].to_numpy(object)


def _with_roof(table: pd.DataFrame, roof: Peaks | None) -> pd.DataFrame:
    flops, moved = table["flops"].to_numpy(float), table["bytes"].to_numpy(float)
    seconds = table["time_ns"].to_numpy(float) / 1e9
    known = roof.flops_per_s if roof else {}
    peak = np.array([known.get(dtype, np.nan) for dtype in table["dtype"]], float)
    memory = np.full(len(table), roof.bytes_per_s if roof else np.nan)
    moves_only = table["moves_only"].to_numpy(bool)
    intensity = _divided(flops, moved, (flops > 0) | moves_only)
    with np.errstate(invalid="ignore"):
        by_compute = intensity * memory > peak
    known_work = np.isfinite(intensity) & np.isfinite(peak) & (flops > 0)
    by_memory = moves_only & ((flops == 0) | ~by_compute)
    cases = [by_memory, known_work & by_compute, known_work]
    bound = np.select(cases, [MEMORY_BOUND, COMPUTE_BOUND, MEMORY_BOUND], "")
    at_roof = np.fmax(_divided(flops, peak, flops > 0), _divided(moved, memory, moved > 0))
    return table.assign(
        flops_per_s=_divided(flops, seconds, flops > 0),
        bytes_per_s=_divided(moved, seconds, moved > 0),
        intensity=intensity,
        peak_flops_per_s=peak,
        peak_bytes_per_s=memory,
        bound=bound.astype(object),
        roof_share=_divided(at_roof, seconds, np.isfinite(at_roof)),
    ).sort_values("time_ns", ascending=False, kind="stable", ignore_index=True)


def _divided(above: Floats, below: Floats, known: Mask) -> Floats:
    """Return the quotients where known and the divisor is positive; else NaN."""
    quotient = np.full(len(above), np.nan)
    np.divide(above, below, out=quotient, where=known & (below > 0))
    return quotient


def _note(device: str, roof: Peaks | None, on_gpu: bool) -> str:
    if roof:
        return f"peaks of {roof.device}: {roof.source}"
    if not on_gpu:
        return "no peaks of this CPU: measured_peaks() measures them; pass the result as peaks="
    unknown = f"the data sheet of {device!r} is not in the table" if device else "no device's name"
    return f"{unknown}: measured_peaks() measures its peaks; pass the result as peaks="


def _doubts(table: pd.DataFrame) -> list[str]:
    """Return the reasons to doubt single rows."""
    above, unknown = int((table["roof_share"] > 1).sum()), table["bytes"] < 0
    doubts = []
    if above:
        rows = "1 row is" if above == 1 else f"{above} rows are"
        doubts.append(f"{rows} above the roof: data was in a cache, or more is counted than moved")
    if unknown.any():
        share = table["time_ns"][unknown].sum() / max(table["time_ns"].sum(), 1)
        time = format_share(share)
        doubts.append(f"how many bytes were moved is not known for {time} of the time")
    return doubts


ARITHMETIC = frozenset(
    f"aten::{name}{end}" for name in ("add", "sub", "mul", "div") for end in ("", "_")
)
"""Ops with one operation per element of the result. torch's profiler counts ``add`` and ``mul``
only, by their first input, which may be a single number."""


@dataclass(frozen=True)
class Work:
    """What one call of each op does; ``row``: of the ops in the trace."""

    row: Rows
    flops: Ints
    bytes: Ints
    counted: npt.NDArray[np.object_]
    """What the bytes count: "inputs and outputs", "inputs" or ""."""
    dtype: npt.NDArray[np.object_]
    moves_only: Mask
    shapes: npt.NDArray[np.object_]
    """Input shapes as text; "" where none were recorded."""


@remembered
def worker_of(trace: Trace) -> Codes:
    """Return per slice the op whose work it is part of; -1 for none.

    That is the outermost op around it with a formula (`aten::convolution` for all below it), else
    the innermost op around it; an op is around itself. GPU work belongs to the op that launched it.
    """
    index = trace.index
    around = links.outermost(index.parent, index.is_op & index.named(frozenset(FORMULAS)))
    worker = np.where(around >= 0, around, index.op_around)
    launched = take(worker, index.launcher)
    launched = np.where(launched >= 0, launched, take(worker, index.column("op")))
    return np.where(index.launcher >= 0, launched, worker)


WORK_TYPES = (np.int64, np.int64, object, object, bool, object)
"""Types of the columns that `_work` returns."""


def work_of(trace: Trace, row: Rows) -> Work:
    """Return the work of the ops at these rows: as the program recorded it, else by formulas."""
    calls, call = distinct_calls(trace, row)
    columns = zip(*map(_work, calls), strict=True) if calls else [()] * len(WORK_TYPES)
    flops, moved, counted, dtype, moves_only, shapes = (
        np.array(values, kind)[call] for values, kind in zip(columns, WORK_TYPES, strict=True)
    )
    recorded_flops = recorded_work(trace, FLOPS)[row]
    recorded_bytes = recorded_work(trace, MEMORY_TRAFFIC)[row]
    return Work(
        row,
        np.where(recorded_flops >= 0, recorded_flops, flops),
        np.where(recorded_bytes >= 0, recorded_bytes, moved),
        np.where(recorded_bytes >= 0, BOTH, counted),
        dtype,
        moves_only,
        shapes,
    )


def slice_work_flops(trace: Trace) -> Ints:
    """Return the FLOPs of every slice, counted at the outermost op with a formula, else 0.

    Where the program recorded FLOPs, these.
    """
    counted = trace.index.named(frozenset((*FORMULAS, *ARITHMETIC))) & trace.index.is_op
    worker = worker_of(trace)
    row = np.flatnonzero(counted & (worker == np.arange(len(trace))))
    flops = np.zeros(len(trace), np.int64)
    flops[row] = of_calls(trace, row, _flops)
    recorded = recorded_work(trace, FLOPS)
    return np.where(recorded >= 0, recorded, flops)


def _work(call: Call) -> tuple[int, int, str, str, bool, str]:
    moved = bytes_of(call)
    shapes = shape_text(call.dims) if call.dims else ""
    return _flops(call), moved.bytes, moved.counted, call.dtype, moved.moves_only, shapes


def _flops(call: Call) -> int:
    return elements_of(call) if call.name in ARITHMETIC else flops_of(call)


def least_counted(counted: pd.Series) -> str:
    """Return what a sum of bytes counts: no more than the least counted of its parts."""
    kinds = set(counted)
    return next((kind for kind in (NOTHING, INPUTS, BOTH) if kind in kinds), NOTHING)


TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
"""Kernels of cuBLAS, cuDNN and CUTLASS that multiply fp32 data in TF32, by their names."""


@remembered
def work_pieces(record: Record) -> pd.DataFrame:
    """Return one row per compute kernel; without any GPU work, one per op whose work is known.

    Columns: ``row`` (slice), ``start_ns``, ``time_ns`` (of an op, CPU time with what it calls);
    ``op`` (name, "" for none), ``op_row`` (-1: none), ``input_shapes``, ``dtype``; ``flops``,
    ``bytes``: its part of the op's work, by its share of the time of the op's kernels, less what a
    window cut away; ``bytes_counted``, ``moves_only`` (see `op_bytes`).
    """
    trace = record.trace
    return _on_gpu(trace) if len(trace.index.gpu) else _on_cpu(trace)


def _on_gpu(trace: Trace) -> pd.DataFrame:
    rows, kind = gpu_kinds(trace)
    rows = rows[kind == COMPUTE]
    dur = trace.index.dur[rows]
    ops, number = np.unique(worker_of(trace)[rows], return_inverse=True)
    none = int((ops < 0).sum())  # work of no op has the number -1
    ops, number = ops[none:].astype(np.intp), number.reshape(-1) - none
    began, ended = trace.index.uncut
    op_ns = group_sums(number, (ended - began)[rows], len(ops) + 1)
    share = dur / np.maximum(op_ns[number], 1)
    pieces = _pieces(trace, rows, dur, number, work_of(trace, ops), share)
    named = frozenset(filter(TF32.search, trace.index.names))
    in_tf32 = (pieces["dtype"] == "fp32") & trace.index.named(named)[rows]
    return pieces.assign(dtype=pieces["dtype"].mask(in_tf32, "tf32"))


def _on_cpu(trace: Trace) -> pd.DataFrame:
    rows = np.flatnonzero(trace.index.on_tracks("cpu") & ~trace.index.in_category(INSTANTS))
    self_times = slice_self_times(trace, rows)
    op_ns = group_sums(worker_of(trace)[rows], self_times, len(trace) + 1)  # the last is for no op
    ops = np.flatnonzero(trace.index.is_op & (op_ns[:-1] > 0))
    began, ended = trace.index.uncut
    share = trace.index.dur[ops] / np.maximum((ended - began)[ops], 1)
    pieces = _pieces(trace, ops, op_ns[ops], np.arange(len(ops)), work_of(trace, ops), share)
    known = (pieces["flops"] > 0) | (pieces["moves_only"] & (pieces["bytes_counted"] != NOTHING))
    return pieces[known].reset_index(drop=True)


def _pieces(
    trace: Trace, rows: Rows, time: Ints, number: Rows, work: Work, share: Floats
) -> pd.DataFrame:
    """``number``: position of each slice's op in ``work`` (-1: none); ``share`` of that work."""
    op = take(work.row, number)
    columns = {
        "row": rows.astype(np.int32),
        "start_ns": trace.index.ts[rows],
        "time_ns": time,
        "op": trace.index.texts_of(op),
        "op_row": op,
        "input_shapes": take(work.shapes, number, missing=""),
        "dtype": take(work.dtype, number, missing=""),
        "flops": take(work.flops, number, missing=0) * share,
        "bytes": take(work.bytes, number, missing=0) * share,
        "bytes_counted": take(work.counted, number, missing=NOTHING),
        "moves_only": take(work.moves_only, number, missing=False),
    }
    return pd.DataFrame(columns)
