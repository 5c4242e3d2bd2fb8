"""When a thread of Python stood still for the GPU, and for what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.line_owners import line_of
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace.callers import BACKWARD
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

REASONS = ("waited_for", "launched_by", "launched_at")


@dataclass(frozen=True)
class ThreadWaits:
    """The waits of a run for the GPU, cut so that no moment of a thread counts twice.

    ``table``: ``start_ns``, ``end_ns``, ``lane``, ``row`` (of the call), ``name``, ``op_name``,
    ``line`` (row of the cell line, -1), ``backward`` (made by a thread of the backward pass, on
    which no Python runs: whoever called it waits), ``reason`` (row of ``reasons``).
    ``reasons``: ``waited_for`` (the kernel or copy), ``launched_by`` (its op), ``launched_at`` (its
    cell line as "Cell [3]:12"); "" for what is not known.
    """

    table: pd.DataFrame
    reasons: pd.DataFrame

    @property
    def length_ns(self) -> Ints:
        return np.asarray(self.table["end_ns"] - self.table["start_ns"], np.int64)


def thread_waits(record: Record) -> ThreadWaits:
    """The synchronising calls of all threads."""
    trace = record.trace
    with_python = [run_lane(record), *python_lanes(record)]
    table = waits(record)
    table = table[table["kind"] == "synchronise"].sort_values("start_ns", kind="stable")
    rows = table["row"].to_numpy(np.intp)
    table = table.assign(
        end_ns=table["start_ns"] + table["dur_ns"],
        lane=(lane := _lanes(trace)[rows]),
        backward=table["op_name"].str.startswith(BACKWARD) & ~np.isin(lane, with_python),
        line=line_of(trace)[rows],
        **_reasons(trace, table),
    )
    table["start_ns"] = _after_the_others(table)
    table = table[table["end_ns"] > table["start_ns"]].reset_index(drop=True)
    reason = table.groupby(list(REASONS), sort=False).ngroup().to_numpy(np.int64)
    reasons = table[list(REASONS)].drop_duplicates(ignore_index=True)
    columns = ["start_ns", "end_ns", "lane", "row", "name", "op_name", "line", "backward"]
    return ThreadWaits(table[columns].assign(reason=reason), reasons)


def _after_the_others(table: pd.DataFrame) -> Ints:
    """Where each wait begins that others of the same thread had not covered: they may nest.

    The threads of a backward pass count as one: their caller waits once.
    """
    group = table["lane"].where(~table["backward"], NONE)
    ends = table["end_ns"].groupby(group).cummax()
    before = ends.groupby(group).shift().fillna(-1).astype(np.int64)
    return np.asarray(np.maximum(table["start_ns"], before), np.int64)


def run_lane(record: Record) -> int:
    """The thread of the run: that of the label's region, else of the first CPU slice; else -1."""
    rows = _label_rows(record)
    rows = rows if len(rows) else np.flatnonzero(record.trace.index.on_tracks("cpu"))
    return int(_lanes(record.trace)[rows[0]]) if len(rows) else NONE


def python_lanes(record: Record) -> Ints:
    """The threads whose Python frames count: the run's, or all of them without a label's region."""
    lanes = np.unique(_lanes(record.trace)[record.trace.index.on_tracks("python")])
    return lanes[lanes == run_lane(record)] if len(_label_rows(record)) else lanes


def _label_rows(record: Record) -> npt.NDArray[np.intp]:
    slices = record.trace.slices
    region = (slices["name"] == record.metadata.get("label")).to_numpy(bool)
    return np.flatnonzero(region & (slices["category"] == "user_annotation").to_numpy())


def _lanes(trace: Trace) -> Ints:
    """Per slice the number of its thread."""
    lane = trace.tracks["lane"].to_numpy()[trace.slices["track"].to_numpy()]
    return np.asarray(lane, np.int64)


def _reasons(trace: Trace, table: pd.DataFrame) -> dict[str, npt.NDArray[np.object_]]:
    """What each call waited for: the GPU work that ended last, else the copy that it asked for."""
    gpu = np.where(table["gpu"] >= 0, table["gpu"], table["copy"]).astype(np.int64)
    op = np.append(trace.slices["op"].to_numpy(), NONE)[gpu]
    line = np.append(line_of(trace), NONE)[gpu]
    columns = (
        trace.index.names_of(gpu),
        trace.index.names_of(op),
        np.array([_place(trace, int(row)) for row in line], object),
    )
    return dict(zip(REASONS, columns, strict=True))


def _place(trace: Trace, line: int) -> str:
    """A cell line as ``Cell [3]:12``."""
    known = line >= 0 and {"cell", "line"} <= set(trace.args)
    if not known or line not in trace.args["line"].index:
        return ""
    return f"{trace.args['cell'].get(line, '')}:{int(trace.args['line'][line])}"
