"""The tables of the static output: which rows and columns of which analysis are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import (
    PLACES,
    PSTATS_KEYS,
    format_bytes,
    format_ns,
    report_keys,
    sort_column,
)
from gpuprof_widgets.analyses.findings.finding import function_name, run_ns, share_of
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.analyses.memory import fullest, memory_peak
from gpuprof_widgets.analyses.operators import operators, self_time_lines
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import has_python_alone, python_time
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from gpuprof_widgets.views.page_panels import panels
from gpuprof_widgets.views.page_rows import (
    ABOUT,
    AT_LEAST,
    AT_MOST,
    IncompleteRuns,
    incomplete_lines,
)
from gpuprof_widgets.views.table import Column, Panel, Table

NAME_WIDTH = 20

CALLS = Column("calls", "Calls", "count")
PRIMITIVE_CALLS = Column("primitive_calls", "Primitive calls", "count")
FUNCTION = (
    Column("self_ns", "Self time", "ns"),
    Column("self_share", "share", "share"),
    Column("total_ns", "Total time", "ns"),
)
CPU = (
    Column("cpu_self_ns", "CPU self", "ns"),
    Column("cpu_self_share", "self %", "share"),
    Column("cpu_total_ns", "CPU total", "ns"),
    Column("cpu_total_share", "total %", "share"),
)
DEVICE = (
    Column("device_self_ns", "GPU self", "ns"),
    Column("device_self_share", "self %", "share"),
    Column("device_total_ns", "GPU total", "ns"),
)
AVERAGES = (
    Column("cpu_average_ns", "CPU average", "ns"),
    Column("device_average_ns", "GPU average", "ns"),
)
MEMORY = (
    Column("cpu_memory_bytes", "CPU memory", "bytes"),
    Column("device_memory_bytes", "GPU memory", "bytes"),
)
WHERE_RECORDED = (
    Column("cpu_self_memory_bytes", "CPU self mem", "bytes"),
    Column("device_self_memory_bytes", "GPU self mem", "bytes"),
    Column("flops", "FLOPs", "flop"),
)
"""Columns that are shown where any op has a value: --memory or --flops was on."""

EXPENDABLE = (
    *("cpu_self_share", "cpu_total_share", "cpu_total_ns"),
    *("device_self_share", "device_total_ns", "cpu_self_ns"),
)
"""Columns of the ops that a text gives up, in this order, but for the one that sorts them."""

LINES = (
    Column("self_ns", "Self", "ns"),
    Column("self_share", "share", "share"),
    Column("wall_ns", "Wall", "ns"),
)
LINES_WHERE_RECORDED = (Column("device_ns", "GPU", "ns"), Column("wait_ns", "GPU wait", "ns"))
SIGNS = {
    AT_LEAST: f"{AT_LEAST}: of its first runs only, because it ran more often than is recorded.",
    AT_MOST: f"{AT_MOST}: with further runs of lines within it, which are not recorded one by one.",
    ABOUT: f"{ABOUT}: of its first runs only, with further runs of lines within it.",
}
"""What the signs before numbers of lines mean."""
WAITING_SHARE = Column("waiting_share", "share", "share")
WAITS_MATTER = 0.05  # of the time of all Python functions; shorter waits are not shown
HOTTEST = 5
"""Lines of the cell, and Python functions, that the static output shows."""

PEAK = (
    Column("bytes", "Size", "bytes"),
    Column("share", "share", "share"),
    Column("blocks", "Blocks", "count"),
)
WORTH_A_TABLE = 2**20  # bytes

STATIC_PANELS = ("breakdown", "idle", "critical_path")
MOST_ROWS = 6
MOST_NUMBERS = 4


def static_tables(record: Record, *, sort: str, top: int) -> list[Table]:
    """Return the tables of lines, of Python functions, of peak memory and of ops.

    Python functions are there if they waited, or if ``sort`` asks for them.
    """
    ops, functions = report_keys(sort)
    if has_python_alone(record):
        ops, functions = functions or ops, ""
    of_python = (
        function_rows(record, sort=functions, top=top) if functions else waiting_functions(record)
    )
    tables = (hottest_lines(record), of_python, peak_memory(record))
    rows = function_rows if has_python_alone(record) else op_rows
    return [*(t for t in tables if t is not None), rows(record, sort=ops, top=top)]


def _ranking(
    noun: str, columns: Sequence[Column], rows: pd.DataFrame, *, by: str, top: int
) -> Table:
    """Return the first rows, with a title that says how they are sorted and how many there are."""
    shown = rows.head(top)
    return Table(
        f"{noun}s by {by}: {len(shown):,} of {len(rows):,}",
        (Column("name", noun), *columns),
        shown,
        notes=tuple(self_time_lines(shown)),
        narrowest=NAME_WIDTH,
    )


def function_rows(record: Record, *, sort: str, top: int) -> Table:
    """Return the ``top`` Python functions by a pstats key, or by the nearest to a key of ops."""
    table = python_time(record)
    self_ns = table["self_ns"].astype(float)
    keys = list(PSTATS_KEYS.get(sort) or [_function_key(sort)])
    rising = [key in PLACES for key in keys]
    table = table.sort_values(keys, ascending=rising, kind="stable")
    table = table.assign(name=function_labels(table), self_share=self_ns / max(self_ns.sum(), 1.0))
    columns: tuple[Column, ...] = (CALLS, *FUNCTION)
    if keys[0] == PRIMITIVE_CALLS.key:
        columns = (PRIMITIVE_CALLS, *columns)
    labels = {column.key: column.label.lower() for column in columns}
    by = labels.get(keys[0], keys[0])
    return _ranking("Python function", columns, table, by=by, top=top)


def _function_key(sort: str) -> str:
    """Return calls or total time where a key of ops asks for them, else self time."""
    wanted = sort_column(sort).removesuffix("_ns").rsplit("_", 1)[-1]
    return {"calls": "calls", "total": "total_ns"}.get(wanted, "self_ns")


def hottest_lines(record: Record) -> Table | None:
    """Return the cell's lines with the most self time; None without lines.

    The shares are of the run, as in the findings.
    """
    table = lines(record)
    table = table[table["wall_ns"] > 0].sort_values("self_ns", ascending=False, kind="stable")
    if not len(table):
        return None
    cell = table["cell"] + " " if table["cell"].nunique() > 1 else ""
    code = table["code"].str.split().str.join(" ")
    whole = run_ns(record)
    table = table.assign(
        name=cell + table["line"].astype(str) + ": " + code,
        self_share=[share_of(self_ns, whole) for self_ns in table["self_ns"]],
    )
    recorded = tuple(column for column in LINES_WHERE_RECORDED if table[column.key].any())
    shown, signs = _signed(record, table)
    ranking = _ranking("Line", (*LINES, *recorded), shown, by="self time", top=HOTTEST)
    return replace(ranking, notes=tuple(text for sign, text in SIGNS.items() if sign in signs))


def _signed(record: Record, table: pd.DataFrame) -> tuple[pd.DataFrame, set[str]]:
    """Return the lines with signs before the times that are not exact, and the hottest's signs."""
    exact = IncompleteRuns(is_cut=False, others=())
    incomplete = incomplete_lines(record)
    runs = [incomplete.get(line, exact) for line in zip(table["cell"], table["line"], strict=True)]
    times = [column.key for column in (*LINES, *LINES_WHERE_RECORDED) if column.unit == "ns"]
    texts = {
        key: [
            f"{sign} {format_ns(ns)}" if ns and (sign := each.sign(key)) else ns
            for each, ns in zip(runs, table[key], strict=True)
        ]
        for key in times
    }
    signs = {
        each.sign(key)
        for key in times
        for each, ns in zip(runs[:HOTTEST], table[key], strict=False)
        if ns
    }
    return table.assign(**texts), signs


def waiting_functions(record: Record) -> Table | None:
    """Return the costliest Python functions with their waits for the GPU, None if those are few."""
    table = python_time(record)
    if table["self_waiting_ns"].sum() <= WAITS_MATTER * table["self_ns"].sum():
        return None
    table = table.assign(
        name=[function_name(label) for label in function_labels(table)],
        waiting_share=table["self_waiting_ns"] / table["self_ns"].clip(lower=1),
    )
    known = bool(table["exact"].all())
    waited = Column("self_waiting_ns", "waited" if known else "waited (est.)", "ns")
    columns = (CALLS, FUNCTION[0], waited, WAITING_SHARE, FUNCTION[2])
    return _ranking("Python function", columns, table, by="self time", top=HOTTEST)


def op_rows(record: Record, *, sort: str, top: int) -> Table:
    """Return the ``top`` ops by ``sort``, without the kernels that they launched."""
    table = operators(record, sort=sort)
    table = table[~table["category"].isin(GPU_CATEGORIES)]
    has_device = bool(table["device_total_ns"].any())
    columns: tuple[Column, ...] = (CALLS, *DEVICE, *CPU) if has_device else (CALLS, *CPU)
    columns += tuple(column for column in WHERE_RECORDED if table[column.key].any())
    by = _sorted_by(sort, has_device)
    if by not in columns:
        columns = (*columns, by)
    table = table.sort_values(by.key, ascending=False, kind="stable")
    expendable = tuple(key for key in EXPENDABLE if key != by.key)
    return replace(_ranking("Op", columns, table, by=by.label, top=top), expendable=expendable)


def _sorted_by(sort: str, has_device: bool) -> Column:
    """Return the column of a sort key; CPU time stands in where no op has GPU time."""
    key = sort_column(sort)
    if not has_device and key.startswith("device") and key.endswith("_ns"):
        key = key.replace("device", "cpu")
    columns = (CALLS, *CPU, *DEVICE, *AVERAGES, *MEMORY, *WHERE_RECORDED)
    return next(column for column in columns if column.key == key)


def peak_memory(record: Record) -> Table | None:
    """Return the fullest device's peak by category; None where little or no memory was recorded."""
    rows = fullest(memory_peak(record))
    if not len(rows) or rows["allocated_bytes"].iloc[0] < WORTH_A_TABLE:
        return None
    first = rows.iloc[0]
    table = rows.groupby("category", as_index=False)[["bytes", "share", "blocks"]].sum()
    table = table.sort_values("bytes", ascending=False, kind="stable")
    table = table.assign(name=table["category"], blocks=table["blocks"].replace(0, np.nan))
    title = (
        f"Peak memory of {first['device']}: {format_bytes(first['allocated_bytes'])} "
        f"at {format_ns(first['ts_ns'])}"
    )
    if first["reserved_bytes"] >= first["allocated_bytes"]:
        title += f", {format_bytes(first['reserved_bytes'])} reserved"
    return Table(title, (Column("name", "Memory"), *PEAK), table)


def static_panels(record: Record) -> list[Table]:
    """Return the first rows of the panels that say where the time went, if they have several."""
    shown = panels(record)
    time_panels = [shown[name] for name in STATIC_PANELS if name in shown]
    return [_first_of_panel(panel) for panel in time_panels if len(panel.rows) > 1]


def _first_of_panel(panel: Panel) -> Table:
    """Return a row's texts, joined as its name, and its first numbers."""
    by = panel.sort or ("" if panel.bars is None else panel.bars.value)
    rows = panel.rows
    if by:
        rows = rows.sort_values(by, ascending=False, kind="stable")
    texts = [column.key for column in panel.columns if column.is_text]
    numbers = [column for column in panel.columns if not column.is_text][:MOST_NUMBERS]
    first = rows.head(MOST_ROWS)
    names = [
        " · ".join(text for text in map(str, row) if text)
        for row in first[texts].itertuples(index=False, name=None)
    ]
    title = panel.title
    if len(rows) > len(first):
        title += f": {len(first)} of {len(rows):,} rows"
    table = first.assign(name=pd.Series(names, first.index, dtype=object))
    return Table(title, (Column("name", panel.columns[0].label), *numbers), table)
