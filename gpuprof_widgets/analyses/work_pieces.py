"""Stretches of time with the work done in them: kernels, or on a CPU the ops themselves."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_kinds import COMPUTE, gpu_kinds
from gpuprof_widgets.analyses.op_bytes import NOTHING
from gpuprof_widgets.analyses.op_rows import INSTANTS
from gpuprof_widgets.analyses.op_work import Work, work_of, worker_of
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
"""Kernels that, on fp32 data, multiply in TF32: cuBLAS, cuDNN and CUTLASS write it in the name."""


@remembered
def work_pieces(record: Record) -> pd.DataFrame:
    """One row per compute kernel, without any GPU work one per op whose work is known.

    Columns: ``row`` (slice), ``start_ns``, ``time_ns`` (of an op CPU time with what it calls);
    ``op`` (name, "" for none), ``op_row`` (-1), ``input_shapes``, ``dtype``; ``flops``, ``bytes``:
    its share of the op's work, by time among the op's kernels, and of a slice that a window has cut
    by what is left of it; ``bytes_counted``, ``moves_only`` (see `op_bytes`).
    """
    trace = record.trace
    return _on_gpu(trace) if len(trace.index.gpu) else _on_cpu(trace)


def _on_gpu(trace: Trace) -> pd.DataFrame:
    rows, kind = gpu_kinds(trace)
    rows = rows[kind == COMPUTE]
    dur = trace.index.dur[rows]
    ops, of = _places(worker_of(trace)[rows])
    began, ended = trace.index.uncut
    of_op = np.zeros(len(ops) + 1, np.int64)
    np.add.at(of_op, of, (ended - began)[rows])
    pieces = _pieces(trace, rows, dur, of, work_of(trace, ops), dur / np.maximum(of_op[of], 1))
    in_tf32 = (pieces["dtype"] == "fp32") & _in_tf32(trace, rows)
    return pieces.assign(dtype=pieces["dtype"].mask(in_tf32, "tf32"))


def _on_cpu(trace: Trace) -> pd.DataFrame:
    rows = np.flatnonzero(trace.index.on_tracks("cpu") & ~trace.index.in_category(INSTANTS))
    ts, end = trace.index.ts[rows], trace.index.end[rows]
    parent, _ = links.nest(ts, end, trace.index.track[rows])
    own = np.zeros(len(trace) + 1, np.int64)  # the last one takes what no op does
    np.add.at(own, worker_of(trace)[rows], links.self_times(ts, end, parent))
    ops = np.flatnonzero(trace.index.is_op & (own[:-1] > 0))
    began, ended = trace.index.uncut
    share = trace.index.dur[ops] / np.maximum((ended - began)[ops], 1)
    of = np.arange(len(ops), dtype=np.int32)
    pieces = _pieces(trace, ops, own[ops], of, work_of(trace, ops), share)
    known = (pieces["flops"] > 0) | (pieces["moves_only"] & (pieces["bytes_counted"] != NOTHING))
    return pieces[known].reset_index(drop=True)


def _pieces(
    trace: Trace,
    rows: npt.NDArray[np.intp],
    time: Ints,
    of: Rows,
    work: Work,
    share: npt.NDArray[np.float64],
) -> pd.DataFrame:
    """``of``: per slice the place of its op in ``work``, -1 for none; ``share``: of its work."""
    op = np.append(work.row, NONE)[of]
    columns = {
        "row": rows.astype(np.int32),
        "start_ns": trace.index.ts[rows],
        "time_ns": time,
        "op": trace.index.texts_of(op),
        "op_row": op,
        "input_shapes": np.append(work.shapes, "")[of],
        "dtype": np.append(work.dtype, "")[of],
        "flops": np.append(work.flops, 0)[of] * share,
        "bytes": np.append(work.bytes, 0)[of] * share,
        "bytes_counted": np.append(work.counted, NOTHING)[of],
        "moves_only": np.append(work.moves_only, False)[of],
    }
    return pd.DataFrame(columns)


def _places(worker: Rows) -> tuple[npt.NDArray[np.intp], Rows]:
    """The distinct ops, and per slice the place of its op among them (-1: none)."""
    ops, of = np.unique(worker, return_inverse=True)
    none = int((ops < 0).sum())
    return ops[none:].astype(np.intp), (of.reshape(-1) - none).astype(np.int32)


def _in_tf32(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    return trace.index.named(frozenset(filter(TF32.search, trace.index.names)))[rows]
