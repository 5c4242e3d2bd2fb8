"""How close each op and kernel comes to what the device can do: the roofline model.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_peaks import busiest_device, device_name, peaks_of
from gpuprof_widgets.analyses.lacking import SHAPES, lacking, not_recorded
from gpuprof_widgets.analyses.op_bytes import NOTHING
from gpuprof_widgets.analyses.op_work import least_counted
from gpuprof_widgets.analyses.quantity import format_share
from gpuprof_widgets.analyses.shapes import SHAPE_KEYS
from gpuprof_widgets.analyses.work_pieces import work_pieces
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.peaks import Peaks
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

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
NO_KERNELS = "the trace has no kernels: its GPU work is copies and memsets alone"
NO_WORK = "of no op with input shapes it is known how many FLOPs and bytes it takes"
NO_OPS = "the trace has no ops, whose input shapes tell how much work there was"
COMPUTE_BOUND, MEMORY_BOUND = "compute", "memory"


def roofline(record: Record, *, by: str = "op", peaks: Peaks | None = None) -> pd.DataFrame:
    """One row per op and number format with its work, speed and roof, the longest in total first.

    ``by``: "op", "shape" (op and input shapes) or "kernel". ``peaks``: of the device; without,
    those measured in the run, else the data sheet's of its GPU. Of an unknown device speed and
    intensity are given all the same, and ``attrs["note"]`` says so, how many rows are above the
    roof, and of how much of the time no bytes are known; ``attrs["peaks"]`` has what was compared
    with. Columns:

    - ``name``; with "shape" ``input_shapes``; with "kernel" ``op`` (the one that took most of it);
      ``dtype`` ("fp16", ...; "tf32" where a kernel's name says so; "" for none of them);
    - ``calls`` of the op, or of the kernel; ``time_ns``: of its compute kernels (several streams
      add up), on a record without any GPU work CPU time of the op and what it calls;
    - ``flops`` (`flop_formulas`; of sums, differences, products and quotients one per element of
      the result), ``bytes`` that have to be moved at least (`op_bytes`; -1 where that is unknown)
      and ``bytes_counted``: "inputs and outputs", "inputs" or "" (some calls are unknown);
    - ``flops_per_s``, ``bytes_per_s``: of that time; ``intensity``: FLOPs per byte (NaN: unknown);
    - ``peak_flops_per_s`` of the format and ``peak_bytes_per_s`` of the device (NaN: unknown);
    - ``bound``: "compute" or "memory", by the roof above the intensity; "memory" for ops that only
      move data or do a few steps per number; "" where it cannot be told;
    - ``roof_share``: of the time how much the roof would take for this work; over one where a cache
      saves memory the trip, or where indices name the same rows again and again.

    Work belongs to the outermost op with a formula, else to the innermost op; among several kernels
    of one call it is divided by their time. On a GPU all compute kernels are in one row; those of
    no op in one without a name. On a CPU only ops whose work is known are listed.
    """
    if by not in GROUPINGS:
        raise OptionError(f"a roofline is by one of {', '.join(GROUPINGS)}, not {by!r}.")
    trace = record.trace
    if not len(trace):
        return lacking(_columns(by), "the trace has neither ops nor kernels")
    on_gpu = bool(len(trace.index.gpu))
    if by == "kernel" and not on_gpu:
        return lacking(_columns(by), "the trace has no GPU work: there are no kernels")
    if not any(key in trace.args for key in SHAPE_KEYS):
        why = not_recorded(record, SHAPES) if trace.index.is_op.any() else NO_OPS
        return lacking(_columns(by), why)
    device = busiest_device(record) if on_gpu else None
    roof = peaks or peaks_of(record, device)
    table = _table(record, by, roof)
    if not len(table):
        return lacking(_columns(by), NO_KERNELS if on_gpu else NO_WORK)
    table.attrs["note"] = "; ".join(
        [_note(device_name(record, device), roof, on_gpu), *_doubts(table)]
    )
    table.attrs["peaks"] = roof.as_dict() if roof else None
    return table


def grouped_pieces(record: Record, by: str) -> tuple[pd.DataFrame, list[str]]:
    """The pieces of work with the columns by which they are grouped, and those columns."""
    trace, pieces = record.trace, work_pieces(record)
    if by == "shape":
        return pieces, ["op", "dtype", "input_shapes"]
    if by == "kernel":
        pieces["kernel"] = trace.slices["name"].to_numpy(object)[pieces["row"]]
        return pieces, ["kernel", "dtype"]
    return pieces, ["op", "dtype"]


def _table(record: Record, by: str, roof: Peaks | None) -> pd.DataFrame:
    pieces, keys = grouped_pieces(record, by)
    pieces["calls"] = _calls(record.trace, pieces, by)
    table = _sums(pieces, keys)
    if by == "kernel":
        table["op"] = _mostly(pieces, keys)
    return _with_roof(table.rename(columns={keys[0]: "name"}), roof)[list(_columns(by))]


def _columns(by: str) -> Sequence[str]:
    beside = {"op": (), "shape": ("input_shapes",), "kernel": ("op",)}[by]
    return ("name", *beside, "dtype", *NUMBERS)


def _calls(trace: Trace, pieces: pd.DataFrame, by: str) -> Ints:
    """Per piece 1 for the first one of its op's call, unless a window has left the op out."""
    count = trace.slices["count"].to_numpy().astype(np.int64)
    if by == "kernel":
        return np.asarray(count[pieces["row"]])
    op = pieces["op_row"].to_numpy()
    first = ~pieces["op_row"].duplicated().to_numpy() & (op >= 0)
    return np.where(first, np.append(count, 0)[op], 0)


def _sums(pieces: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    grouped = pieces.groupby(keys, sort=False)
    table = grouped[["calls", "time_ns", "flops", "bytes"]].sum()
    table["bytes_counted"] = grouped["bytes_counted"].agg(
        lambda kinds: least_counted(kinds.to_numpy(object))
    )
    table["moves_only"] = grouped["moves_only"].all()
    whole = {column: table[column].round().astype(np.int64) for column in ("flops", "bytes")}
    unknown = (table["bytes_counted"] == NOTHING) & (whole["bytes"] == 0)
    return table.assign(
        flops=whole["flops"], bytes=whole["bytes"].mask(unknown, NONE)
    ).reset_index()


def _mostly(pieces: pd.DataFrame, keys: list[str]) -> npt.NDArray[np.object_]:
    """Per group the op that took most of its time."""
    by_op = pieces.groupby([*keys, "op"], sort=False)["time_ns"].sum().reset_index()
    longest = by_op.sort_values("time_ns", kind="stable").drop_duplicates(keys, keep="last")
    return pieces[keys].drop_duplicates().merge(longest, "left", on=keys)["op"].to_numpy(object)


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


def _note(device: str, roof: Peaks | None, on_gpu: bool) -> str:
    if roof:
        return f"peaks of {roof.device}: {roof.source}"
    if not on_gpu:
        return "no peaks of this CPU: measured_peaks() measures them; pass the result as peaks="
    unknown = f"the data sheet of {device!r} is not in the table" if device else "no device's name"
    return f"{unknown}: measured_peaks() measures its peaks; pass the result as peaks="


def _doubts(table: pd.DataFrame) -> list[str]:
    """What a reader has to know before trusting single rows."""
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
