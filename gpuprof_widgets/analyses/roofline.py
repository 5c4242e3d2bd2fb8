"""How close each op and kernel comes to what the device can do: the roofline model.

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

from gpuprof_widgets.analyses.gpu_kinds import COMPUTE, gpu_kinds
from gpuprof_widgets.analyses.gpu_peaks import device_name, peaks_of
from gpuprof_widgets.analyses.kernels import device_of
from gpuprof_widgets.analyses.lacking import lacking
from gpuprof_widgets.analyses.op_bytes import NOTHING
from gpuprof_widgets.analyses.op_rows import INSTANTS, are_ops, gpu_rows, in_category, on_tracks
from gpuprof_widgets.analyses.op_work import Work, least_counted, work_of, worker_of
from gpuprof_widgets.analyses.shapes import SHAPE_KEYS, shape_codes
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.peaks import Peaks
from gpuprof_widgets.trace.window import uncut_times

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

GROUPINGS = ("op", "shape", "kernel")
NUMBERS = (
    "calls",
    "time_ns",
    "flops",
    "bytes",
    "bytes_counted",
    "flops_per_s",
    "bytes_per_s",
    "intensity",
    "peak_flops_per_s",
    "peak_bytes_per_s",
    "bound",
    "roof_share",
)
COMPUTE_BOUND, MEMORY_BOUND = "compute", "memory"

TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
"""Kernels that, on fp32 data, multiply in TF32: cuBLAS, cuDNN and CUTLASS write it in the name."""


def roofline(record: Record, *, by: str = "op", peaks: Peaks | None = None) -> pd.DataFrame:
    """One row per op and number format with its work, speed and roof, the longest in total first.

    ``by``: "op", "shape" (op and input shapes) or "kernel". ``peaks``: of the device; without,
    those measured in the run, else the data sheet's of its GPU. Of an unknown device speed and
    intensity are given all the same, and ``attrs["note"]`` says so; ``attrs["peaks"]`` has what was
    compared with. Columns:

    - ``name``; with "shape" ``input_shapes``; with "kernel" ``op`` (the one that took most of it);
      ``dtype`` ("fp16", ...; "tf32" where a kernel's name says so; "" for none of them);
    - ``calls`` of the op, or of the kernel; ``time_ns``: of its compute kernels (several streams
      add up), on a record without any GPU work CPU time of the op and what it calls;
    - ``flops`` (`flop_formulas`, and torch's counts of ``add`` and ``mul``), ``bytes`` that have to
      be moved at least (`op_bytes`) and ``bytes_counted``: "inputs and outputs", "inputs" or "";
    - ``flops_per_s``, ``bytes_per_s``: of that time; ``intensity``: FLOPs per byte (NaN: unknown);
    - ``peak_flops_per_s`` of the format and ``peak_bytes_per_s`` of the device (NaN: unknown);
    - ``bound``: "compute" or "memory", by the roof above the intensity; "memory" for ops that only
      move data or do a few steps per number; "" where it cannot be told;
    - ``roof_share``: of the time how much the roof would take for this work; over one where a cache
      saves memory the trip.

    Work belongs to the outermost op with a formula, else to the innermost op; among several kernels
    of one call it is divided by their time. On a GPU all compute kernels are in one row; those of
    no op in one without a name. On a CPU only ops whose work is known are listed.
    """
    if by not in GROUPINGS:
        raise OptionError(f"a roofline is by one of {', '.join(GROUPINGS)}, not {by!r}.")
    trace = record.trace
    if not len(trace):
        return lacking(_columns(by), "the trace is empty")
    on_gpu = bool(len(gpu_rows(trace)))
    if by == "kernel" and not on_gpu:
        return lacking(_columns(by), "the trace has no GPU work: there are no kernels")
    if not any(key in trace.args for key in SHAPE_KEYS):
        return lacking(
            _columns(by), "the trace has no input shapes (record_shapes): no work can be counted"
        )
    pieces = _on_gpu(trace) if on_gpu else _on_cpu(trace)
    device = _busiest(trace) if on_gpu else None
    roof = peaks or peaks_of(record, device)
    table = _table(trace, pieces, by, roof)
    table.attrs["note"] = _note(device_name(record, device), roof, on_gpu)
    table.attrs["peaks"] = roof.as_dict() if roof else None
    return table


@dataclass(frozen=True)
class _Pieces:
    """Stretches of time and whose work they are: kernels, or on a CPU the ops themselves.

    ``of``: per piece its place in ``work``, -1 for none; ``share``: of that op's work.
    """

    row: npt.NDArray[np.intp]
    time: Ints
    of: Rows
    share: npt.NDArray[np.float64]
    dtype: npt.NDArray[np.object_]
    work: Work


def _on_gpu(trace: Trace) -> _Pieces:
    rows, kind = gpu_kinds(trace)
    rows = rows[kind == COMPUTE]
    dur = trace.slices["dur"].to_numpy()[rows]
    worker = worker_of(trace)[rows]
    ops, of = _places(worker)
    began, ended = uncut_times(trace)
    whole = (ended - began)[rows]
    of_op = np.zeros(len(ops) + 1, np.int64)
    np.add.at(of_op, of, whole)
    work = work_of(trace, ops)
    dtype = np.append(work.dtype, "")[of]
    dtype = np.where((dtype == "fp32") & _in_tf32(trace, rows), "tf32", dtype)
    return _Pieces(rows, dur, of, dur / np.maximum(of_op[of], 1), dtype, work)


def _in_tf32(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    names = trace.slices["name"].cat
    says_so = [bool(TF32.search(str(name))) for name in names.categories]
    return np.array([*says_so, False], bool)[names.codes.to_numpy()[rows]]


def _on_cpu(trace: Trace) -> _Pieces:
    """CPU time of every op whose work is known, with what it calls."""
    slices = trace.slices
    rows = np.flatnonzero(on_tracks(trace, "cpu") & ~in_category(trace, INSTANTS))
    ts = slices["ts"].to_numpy()[rows]
    end = ts + slices["dur"].to_numpy()[rows]
    parent, _ = links.nest(ts, end, slices["track"].to_numpy()[rows])
    own = np.zeros(len(trace) + 1, np.int64)
    np.add.at(own, worker_of(trace)[rows], links.self_times(ts, end, parent))
    ops = np.flatnonzero(are_ops(trace) & (own[:-1] > 0))
    work = work_of(trace, ops)
    known = (work.flops > 0) | (work.moves_only & (work.counted != NOTHING))
    ops = ops[known]
    work = Work(
        ops,
        work.flops[known],
        work.bytes[known],
        work.counted[known],
        work.dtype[known],
        work.moves_only[known],
    )
    began, ended = uncut_times(trace)
    whole = (ended - began)[ops]
    share = slices["dur"].to_numpy()[ops] / np.maximum(whole, 1)
    return _Pieces(ops, own[ops], np.arange(len(ops), dtype=np.int32), share, work.dtype, work)


def _places(worker: Rows) -> tuple[npt.NDArray[np.intp], Rows]:
    """The distinct ops, and per piece the place of its op among them (-1: none)."""
    ops, of = np.unique(worker, return_inverse=True)
    none = int((ops < 0).sum())
    return ops[none:].astype(np.intp), (of.reshape(-1) - none).astype(np.int32)


def _table(trace: Trace, pieces: _Pieces, by: str, roof: Peaks | None) -> pd.DataFrame:
    work = pieces.work
    names = np.append(trace.slices["name"].to_numpy(object)[work.row], "")
    frame = pd.DataFrame(
        {
            "op": names[pieces.of],
            "dtype": pieces.dtype,
            "time_ns": pieces.time,
            "flops": np.append(work.flops, 0)[pieces.of] * pieces.share,
            "bytes": np.append(work.bytes, 0)[pieces.of] * pieces.share,
            "bytes_counted": np.append(work.counted, NOTHING)[pieces.of],
            "moves_only": np.append(work.moves_only, False)[pieces.of],
            "call": pieces.of,
        }
    )
    frame["calls"] = _calls(trace, pieces, by)
    keys = ["op", "dtype"]
    if by == "shape":
        codes, texts = shape_codes(trace)
        frame["input_shapes"] = np.array([*texts, ""], object)[np.append(codes[work.row], -1)][
            pieces.of
        ]
        keys.append("input_shapes")
    elif by == "kernel":
        frame["kernel"] = trace.slices["name"].to_numpy(object)[pieces.row]
        keys = ["kernel", "dtype"]
    table = _grouped(frame, keys)
    if by == "kernel":
        table["op"] = _mostly(frame, keys)
    return _with_roof(table.rename(columns={_subject(by): "name"}), roof)[list(_columns(by))]


def _subject(by: str) -> str:
    return "kernel" if by == "kernel" else "op"


def _columns(by: str) -> Sequence[str]:
    beside = {"op": (), "shape": ("input_shapes",), "kernel": ("op",)}[by]
    return ("name", *beside, "dtype", *NUMBERS)


def _calls(trace: Trace, pieces: _Pieces, by: str) -> Ints:
    """Per piece 1 for the first one of its op's call, unless a window has left the op out."""
    count = trace.slices["count"].to_numpy()
    if by == "kernel":
        return count[pieces.row].astype(np.int64)
    first = np.zeros(len(pieces.of), np.int64)
    ops, at = np.unique(pieces.of, return_index=True)
    first[at[ops >= 0]] = np.minimum(count[pieces.work.row[ops[ops >= 0]]], 1)
    return first


def _grouped(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    grouped = frame.groupby(keys, sort=False)
    table = grouped[["calls", "time_ns", "flops", "bytes"]].sum()
    table["bytes_counted"] = grouped["bytes_counted"].agg(
        lambda kinds: least_counted(kinds.to_numpy(object))
    )
    table["moves_only"] = grouped["moves_only"].all()
    table = table.astype({"calls": np.int64, "time_ns": np.int64})
    for column in ("flops", "bytes"):
        table[column] = table[column].round().astype(np.int64)
    return table.reset_index()


def _mostly(frame: pd.DataFrame, keys: list[str]) -> npt.NDArray[np.object_]:
    """Per group the op that took most of its time."""
    by_op = frame.groupby([*keys, "op"], sort=False)["time_ns"].sum().reset_index()
    longest = by_op.sort_values("time_ns", kind="stable").drop_duplicates(keys, keep="last")
    order = frame[keys].drop_duplicates()
    return order.merge(longest, on=keys, how="left")["op"].to_numpy(object)


def _with_roof(table: pd.DataFrame, roof: Peaks | None) -> pd.DataFrame:
    flops, moved = table["flops"].to_numpy(float), table["bytes"].to_numpy(float)
    seconds = table["time_ns"].to_numpy(float) / 1e9
    known = roof.flops_per_s if roof else {}
    peak = np.array([known.get(dtype, np.nan) for dtype in table["dtype"]], float)
    memory = np.full(len(table), roof.bytes_per_s if roof else np.nan)
    intensity = _divided(flops, moved, (flops > 0) | table["moves_only"].to_numpy(bool))
    with np.errstate(invalid="ignore"):
        by_compute = intensity * memory > peak
    bound = np.select(
        [
            table["moves_only"].to_numpy(bool) & ((flops == 0) | ~by_compute),
            np.isfinite(intensity) & np.isfinite(peak) & (flops > 0) & by_compute,
            np.isfinite(intensity) & np.isfinite(peak) & (flops > 0),
        ],
        [MEMORY_BOUND, COMPUTE_BOUND, MEMORY_BOUND],
        "",
    )
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


def _divided(
    above: npt.NDArray[np.float64],
    below: npt.NDArray[np.float64],
    known: npt.NDArray[np.bool_],
) -> npt.NDArray[np.float64]:
    """The quotient where it is known and there is something to divide by; else NaN."""
    found = np.full(len(above), np.nan)
    np.divide(above, below, out=found, where=known & (below > 0))
    return found


def _busiest(trace: Trace) -> int:
    """The GPU with most time in kernels: several of one run are of one kind."""
    rows = gpu_rows(trace)
    device = device_of(trace, rows)
    busy = np.zeros(int(device.max(initial=0)) + 1, np.int64)
    np.add.at(busy, np.maximum(device, 0), trace.slices["dur"].to_numpy()[rows])
    return int(busy.argmax())


def _note(device: str, roof: Peaks | None, on_gpu: bool) -> str:
    if roof:
        return f"peaks of {roof.device}: {roof.source}"
    if not on_gpu:
        return "no peaks of this CPU: measured_peaks() measures them; pass the result as peaks="
    unknown = f"the data sheet of {device!r} is not in the table" if device else "no device's name"
    return f"{unknown}: measured_peaks() measures its peaks; pass the result as peaks="
