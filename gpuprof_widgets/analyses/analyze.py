"""Calls of ops with their work and speed, filtered and grouped: MegEngine's ``profile_analyze``.

It differs on purpose: times are exact integers, shares are of all time of that side (not only of
what passes the filters), and the work of a group is unknown if that of one of its calls is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import group_rows, group_sums
from gpuprof_widgets.analyses.flops import recorded_work
from gpuprof_widgets.analyses.op_bytes import NOTHING, output_shape
from gpuprof_widgets.analyses.op_calls import FORMATS, distinct_calls, shape_codes, shape_text
from gpuprof_widgets.analyses.operators import cpu_self, op_rows
from gpuprof_widgets.analyses.owners import region_behind
from gpuprof_widgets.analyses.reasons import empty_table
from gpuprof_widgets.analyses.regions import names_with_steps_merged
from gpuprof_widgets.analyses.roofline import slice_work_flops, work_of, worker_of
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import FLOPS, FRAMEWORK, GPU_CATEGORIES, NODE, OUTPUT_SHAPES

SIDES = ("device", "host")
GROUPINGS = ("call", "name", "type")
AGGREGATES = ("sum", "mean", "max", "min")
WORK = ("computation_flops", "memory_bytes")
RATES = {"flops_per_s": "computation_flops", "bandwidth_bytes_per_s": "memory_bytes"}
"""Speeds, and the work of which each is the rate."""

TEXTS = ("in_shapes", "out_shapes", "in_dtypes")
LABELS = ("name", "type")

DTYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "c10::Half",
    "half": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
}
"""Python's names of types, and C++'s names, which a trace has; torch's short ones are `FORMATS`."""


def analyze(
    record: Record,
    *,
    side: str = "device",
    by: str = "call",
    aggregate: str = "sum",
    types: Sequence[str] = (),
    op_name: str | None = None,
    input_dtype: str | None = None,
    min_ns: int | None = None,
    max_ns: int | None = None,
    order_by: str = "time",
    top: int | None = None,
) -> pd.DataFrame:
    """One row per call of an op, or per name or type of op, with its work and its speed.

    Time and work belong to the outermost op with a formula, else to the innermost op (see
    `roofline`), so that they are of the same call. GPU work that no op of the trace launched, and
    host time outside of any op, have separate rows, so that the shares of all calls add up to one.

    Options:

    - ``side``: whose time counts: "device" (the GPU work that the op launched) or "host".
    - ``by``: "call", "name" (the op at its place in the model) or "type" (the op).
    - ``aggregate``: "sum", "mean", "max" or "min" of a group's times and work.
    - ``types``: only calls of these types.
    - ``op_name``: only calls whose name begins with what this regular expression matches.
    - ``input_dtype``: only calls with an input of that format ("float", "fp16", "float32", ...).
    - ``min_ns``, ``max_ns``: only calls that take from ``min_ns`` to ``max_ns``.
    - ``order_by``: a column, with or without its unit, or "time"; the largest first, or with a
      ``+`` the smallest first.
    - ``top``: rows to keep; None: all.

    Columns:

    - ``name``: ``layer1.conv1/aten::convolution``; for TensorFlow and MegEngine the node of the
      graph, if recorded.
    - ``type``: the op.
    - ``row``: the call, with "call" only.
    - ``calls``: number of calls.
    - ``device_self_ns``, ``host_self_ns``: its time on the ``side`` that was chosen.
    - ``share``: of all such time of the trace.
    - ``cumulative_ns``: of this row and those above it.
    - ``cumulative_share``: the same as a share; with "sum" alone and nothing left out it ends at 1.
    - ``computation_flops``: FLOPs; ``<NA>`` if unknown (of a group: of any of its calls), and for
      the host where a GPU did the work.
    - ``flops_per_s``: ``computation_flops`` divided by the time; NaN: unknown. With "max" and "min"
      of the calls' own.
    - ``memory_bytes``: bytes that have to be moved at least; ``<NA>`` as above.
    - ``bandwidth_bytes_per_s``: ``memory_bytes`` divided by the time; NaN: unknown. With "max" and
      "min" of the calls' own.
    - ``in_shapes``, ``out_shapes``, ``in_dtypes``: of the first call; output shapes as recorded,
      else worked out from the inputs; "": unknown.

    Source: MegEngine's ``profile_analyze``; work as in `roofline`.
    """
    for name, value, known in (
        ("side", side, SIDES),
        ("by", by, GROUPINGS),
        ("aggregate", aggregate, AGGREGATES),
    ):
        if value not in known:
            raise OptionError(f"{name} is one of {', '.join(known)}, not {value!r}")
    self_ns = f"{side}_self_ns"
    columns = _columns(self_ns, by)
    calls = _calls(record, side, self_ns)
    whole = int(calls[self_ns].sum())
    if not whole:
        has_ops = bool(record.trace.index.is_op.any())
        hint = "; those of its CPU ops are of the side 'host'" if has_ops else ""
        why = f"the trace has no GPU work: device times are those of kernels and copies{hint}"
        if side == "host":
            why = "the trace has no ops: host times are those of CPU ops and calls"
        return empty_table(columns, why)
    if side == "host" and len(record.trace.index.gpu):
        calls[list(WORK)] = pd.NA  # the work was the GPU's: by host time it would have no meaning
        calls = calls.astype(dict.fromkeys(WORK, "Int64"))
    kept = calls[_chosen(calls, self_ns, types, op_name, input_dtype, min_ns, max_ns)]
    table = _with_rates(kept, self_ns) if by == "call" else _grouped(kept, by, aggregate, self_ns)
    table["share"] = table[self_ns] / whole
    if not len(table):
        return empty_table(columns, f"none of the {len(calls):,} calls passes the filters")
    table = _ordered(table, order_by, self_ns, columns)
    table = table if top is None else table.head(top)
    cumulative = table[self_ns].cumsum()
    table = table.assign(cumulative_ns=cumulative, cumulative_share=cumulative / whole)
    return table[list(columns)]


def op_totals(record: Record) -> pd.DataFrame:
    """What a run took in all: a row per kind of time, in this order.

    ``what``: "total device time" (of all GPU work, streams added up), "total host time" (CPU self
    time of ops and calls), "copy time" (of the copies among the GPU work), "copy wait time" (the
    CPU's in calls that wait for one). Columns: ``what``, ``calls``, ``total_ns``, ``average_ns``
    (NaN of none).
    """
    trace, waited = record.trace, waits(record)
    parts = {
        "total device time": trace.index.dur[trace.index.gpu],
        "total host time": cpu_self(trace, op_rows(trace)),
        "copy time": trace.index.dur[trace.index.in_category("gpu_memcpy")],
        "copy wait time": waited["dur_ns"][waited["copy"] >= 0].to_numpy(np.int64),
    }
    rows = [(what, len(times), int(times.sum())) for what, times in parts.items()]
    table = pd.DataFrame(rows, columns=["what", "calls", "total_ns"])
    return table.assign(average_ns=table["total_ns"] / table["calls"].where(table["calls"] > 0))


def _columns(self_ns: str, by: str) -> tuple[str, ...]:
    row = ("row",) if by == "call" else ()
    times = (self_ns, "share", "cumulative_ns", "cumulative_share")
    work = ("computation_flops", "flops_per_s", "memory_bytes", "bandwidth_bytes_per_s")
    return (*LABELS, *row, "calls", *times, *work, *TEXTS)


def _calls(record: Record, side: str, self_ns: str) -> pd.DataFrame:
    """Return one row per call that has any time on that side."""
    trace = record.trace
    row, time = trace.index.gpu, trace.index.dur[trace.index.gpu]
    if side == "host":
        listed = op_rows(trace)
        row, time = listed.row, cpu_self(trace, listed)
    worker = worker_of(trace)[row]
    units, inverse = np.unique(np.where(worker >= 0, worker, row), return_inverse=True)
    total = group_sums(inverse.reshape(-1), time, len(units))
    row, time = units[total > 0], total[total > 0]
    codes, names = names_with_steps_merged(trace)
    kinds = pd.Index(names).take(codes[row])
    ops = np.flatnonzero(trace.index.is_op[row])
    work = work_of(trace, row[ops])
    moved, is_known = np.zeros(len(row), np.int64), np.zeros(len(row), bool)
    moved[ops], is_known[ops] = work.bytes, work.counted != NOTHING
    flops, counted = slice_work_flops(trace)[row], recorded_work(trace, FLOPS)[row]
    outputs = np.full(len(row), "", object)
    distinct, call = distinct_calls(trace, row[ops])
    shapes = (output_shape(op) for op in distinct)
    texts_of_op = ["" if shape is None else str([list(shape)]) for shape in shapes]
    outputs[ops] = np.array(texts_of_op, object)[call]
    recorded = trace.args.get(OUTPUT_SHAPES, pd.Series(dtype=object)).reindex(row)
    is_recorded = recorded.notna().to_numpy()
    outputs[is_recorded] = [shape_text(dims) for dims in recorded[is_recorded]]
    dtypes = np.full(len(row), "", object)
    types = [", ".join(op.types[at] for at in op.tensors()) for op in distinct]
    dtypes[ops] = np.array(types, object)[call]
    shape, texts = shape_codes(trace)
    return pd.DataFrame(
        {
            "name": _places(record, row, kinds),
            "type": kinds,
            "row": row,
            "calls": trace.index.column("count")[row].astype(np.int64),
            self_ns: time,
            "computation_flops": _known(flops, (flops > 0) | (counted >= 0)),
            "memory_bytes": _known(moved, is_known),
            "in_shapes": pd.Index([*texts, ""]).take(shape[row]),
            "out_shapes": outputs,
            "in_dtypes": dtypes,
        }
    )


def _known(values: Ints, is_known: Mask) -> pd.Series:
    """Return whole numbers, <NA> where they are not known."""
    return pd.Series(pd.array(values, dtype="Int64")).where(is_known)


def _places(record: Record, row: Rows, kinds: pd.Index) -> Sequence[str] | pd.Index:
    """Return ``module/op``, by the module of the op or its forward op; of a graph's op its node."""
    trace = record.trace
    if FRAMEWORK in record.metadata and NODE in trace.args:
        nodes = trace.args[NODE].reindex(row).fillna("").astype(str)
        nodes = nodes.where(trace.index.in_category("cpu_op", *GPU_CATEGORIES)[row], "")
        return [node or str(kind) for node, kind in zip(nodes, kinds, strict=True)]
    module = region_behind(trace, "module")[row]
    place, first = group_rows({"module": module, "kind": kinds})
    module, inside = module[first], trace.index.names_of(module[first])
    paths = zip(np.where(module >= 0, inside + "/", ""), kinds[first], strict=True)
    return pd.Index(["".join(path) for path in paths]).take(place)


def _chosen(
    calls: pd.DataFrame,
    self_ns: str,
    types: Sequence[str],
    op_name: str | None,
    input_dtype: str | None,
    min_ns: int | None,
    max_ns: int | None,
) -> Mask:
    """Return which calls pass all filters."""
    time = calls[self_ns].to_numpy()
    kept = np.ones(len(calls), bool)
    if types:
        kept &= calls["type"].isin(list(types)).to_numpy()
    if op_name is not None:
        try:
            pattern = re.compile(op_name)
        except re.error as error:
            why = f"op_name is a regular expression, which {op_name!r} is not: {error}"
            raise OptionError(why) from error
        kept &= [pattern.match(name) is not None for name in calls["name"]]
    if input_dtype is not None:
        name = input_dtype.removeprefix("torch.")
        by_format = {spelling for spelling, (short, _) in FORMATS.items() if short == name}
        spellings = by_format or {DTYPES.get(name.lower(), name)}
        texts = calls["in_dtypes"].unique()
        passing = [text for text in texts if spellings & set(str(text).split(", "))]
        kept &= calls["in_dtypes"].isin(passing).to_numpy()
    if min_ns is not None:
        kept &= time >= min_ns
    if max_ns is not None:
        kept &= time <= max_ns
    return kept


def _with_rates(table: pd.DataFrame, self_ns: str) -> pd.DataFrame:
    """Add the speeds of work that is known, per second of that time."""
    seconds = (table[self_ns] / 1e9).to_numpy(float)
    seconds = np.where(seconds > 0, seconds, np.nan)
    speeds = {}
    for rate, column in RATES.items():
        work = table[column].to_numpy(float, na_value=np.nan)
        speeds[rate] = np.where(work > 0, work, np.nan) / seconds
    return table.assign(**speeds)


def _grouped(calls: pd.DataFrame, by: str, aggregate: str, self_ns: str) -> pd.DataFrame:
    """Return one row per group, with the shapes of its first call."""
    groups = _with_rates(calls, self_ns).groupby(by, sort=False)
    numbers = groups[[self_ns, *WORK]].agg(aggregate)
    for work in WORK:
        numbers[work] = numbers[work].where(groups[work].count() == groups.size())
    if aggregate in ("max", "min"):
        numbers = numbers.join(groups[list(RATES)].agg(aggregate))
    else:
        numbers = _with_rates(numbers, self_ns)
    labels = [label for label in (*LABELS, *TEXTS) if label != by]
    table = groups[labels].first().join(groups["calls"].sum()).join(numbers).reset_index()
    return table.assign(name=table["type"]) if by == "type" else table


def _ordered(
    table: pd.DataFrame, order_by: str, self_ns: str, columns: Sequence[str]
) -> pd.DataFrame:
    """Return the rows sorted by a column, unknown values last."""
    key = order_by.removeprefix("+").removeprefix("-")
    key = self_ns if key == "time" else key
    ends = ("", "_ns", "_bytes", "_flops", "_bytes_per_s", "_per_s")
    column = next((key + end for end in ends if key + end in table.columns), None)
    if column is None:
        known = ", ".join(name for name in columns if not name.startswith("cumulative"))
        raise OptionError(f"there is no column {order_by!r} to order by; columns are time, {known}")
    rising = order_by.startswith("+")
    return table.sort_values(column, ascending=rising, kind="stable", ignore_index=True)
