"""The tables of the static output: which rows and columns of which analysis are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from gpuprof_widgets.analyses.findings.wording import function_name, run_ns, share_of
from gpuprof_widgets.analyses.lines import lines
from gpuprof_widgets.analyses.operators import operators, self_time_lines
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import has_python_alone, python_time
from gpuprof_widgets.analyses.quantity import format_bytes, format_flops, format_ns, format_share
from gpuprof_widgets.analyses.sort_keys import PLACES, PSTATS_KEYS, sort_column
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES


@dataclass(frozen=True)
class Column:
    """A column of the static op table; with ``share`` the cell holds a bar of that share."""

    heading: str
    key: str
    format: Callable[[float], str]
    share: bool = False


def _short_share(share: float) -> str:
    """A share as a percentage that fits a narrow column."""
    return format_share(share).replace("less than", "<")


def _known(written: Callable[[float], str]) -> Callable[[float], str]:
    """The same where the value is known; else a dash, as on the page."""
    return lambda value: "–" if pd.isna(value) else written(value)


CALLS = Column("Calls", "calls", lambda value: f"{value:,.0f}")
PRIMITIVE_CALLS = Column("Primitive calls", "primitive_calls", CALLS.format)
FUNCTION = (
    Column("Self time", "self_ns", format_ns),
    Column("share", "self_share", _short_share, share=True),
    Column("Total time", "total_ns", format_ns),
)
CPU = (
    Column("CPU self", "cpu_self_ns", format_ns),
    Column("self %", "cpu_self_share", _short_share, share=True),
    Column("CPU total", "cpu_total_ns", format_ns),
    Column("total %", "cpu_total_share", _short_share, share=True),
)
DEVICE = (
    Column("GPU self", "device_self_ns", format_ns),
    Column("self %", "device_self_share", _short_share, share=True),
    Column("GPU total", "device_total_ns", format_ns),
)
AVERAGES = (
    Column("CPU average", "cpu_average_ns", format_ns),
    Column("GPU average", "device_average_ns", format_ns),
)
MEMORY = (
    Column("CPU memory", "cpu_memory_bytes", _known(format_bytes)),
    Column("GPU memory", "device_memory_bytes", _known(format_bytes)),
)
WHERE_RECORDED = (
    Column("CPU self mem", "cpu_self_memory_bytes", _known(format_bytes)),
    Column("GPU self mem", "device_self_memory_bytes", _known(format_bytes)),
    Column("FLOPs", "flops", _known(format_flops)),
)
"""Columns that are shown where any op has a value: --memory or --flops was on."""

LINES = (
    Column("Self", "self_ns", format_ns),
    Column("share", "self_share", _short_share, share=True),
    Column("Wall", "wall_ns", format_ns),
)
LINES_WHERE_RECORDED = (
    Column("GPU", "device_ns", format_ns),
    Column("GPU wait", "wait_ns", format_ns),
)
WAITING_SHARE = Column("share", "waiting_share", _short_share, share=True)
WAITS_MATTER = 0.05  # of the time of all Python functions; below it nobody needs to know
HOTTEST = 5
"""Lines of the cell, and Python functions, that the static output shows."""


@dataclass(frozen=True)
class OpTable:
    """The rows that a static table shows; ``total`` counts those that it could show."""

    columns: tuple[Column, ...]
    rows: pd.DataFrame
    total: int
    sorted_by: str
    noun: str = "Op"

    @property
    def caption(self) -> str:
        return f"{self.noun}s by {self.sorted_by}: {len(self.rows):,} of {self.total:,}"

    @property
    def below(self) -> list[str]:
        """The lines that stand under it."""
        return self_time_lines(self.rows)


def table_rows(record: Record, *, sort: str, top: int) -> OpTable:
    """The ops; where Python alone ran, its functions."""
    rows = function_rows if has_python_alone(record) else op_rows
    return rows(record, sort=sort, top=top)


def function_rows(record: Record, *, sort: str, top: int) -> OpTable:
    """The ``top`` Python functions by a key of pstats, or by what is nearest to one of ops."""
    table = python_time(record)
    own = table["self_ns"].astype(float)
    keys = list(PSTATS_KEYS.get(sort) or [_function_key(sort)])
    rising = [key in PLACES for key in keys]
    table = table.sort_values(keys, ascending=rising, kind="stable")
    table = table.assign(name=function_labels(table), self_share=own / max(own.sum(), 1.0))
    columns: tuple[Column, ...] = (CALLS, *FUNCTION)
    if keys[0] == PRIMITIVE_CALLS.key:
        columns = (PRIMITIVE_CALLS, *columns)
    headings = {column.key: column.heading.lower() for column in columns}
    by = headings.get(keys[0], keys[0])
    return OpTable(columns, table.head(top), len(table), by, "Python function")


def _function_key(sort: str) -> str:
    """Self time, or calls or total time where a key of ops says so."""
    wanted = sort_column(sort).removesuffix("_ns").rsplit("_", 1)[-1]
    return {"calls": "calls", "total": "total_ns"}.get(wanted, "self_ns")


def hottest_lines(record: Record) -> OpTable | None:
    """The lines of the cell that took most time without the lines in them; None without lines.

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
        self_share=[share_of(own, whole) for own in table["self_ns"]],
    )
    recorded = tuple(column for column in LINES_WHERE_RECORDED if table[column.key].any())
    return OpTable((*LINES, *recorded), table.head(HOTTEST), len(table), "self time", "Line")


def waiting_functions(record: Record) -> OpTable | None:
    """The costliest Python functions with what they waited for the GPU; None if that is little."""
    table = python_time(record)
    if table["self_waiting_ns"].sum() <= WAITS_MATTER * table["self_ns"].sum():
        return None
    table = table.assign(
        name=[function_name(label) for label in function_labels(table)],
        waiting_share=table["self_waiting_ns"] / table["self_ns"].clip(lower=1),
    )
    known = bool(table["exact"].all())
    waited = Column("waited" if known else "waited (est.)", "self_waiting_ns", format_ns)
    columns = (CALLS, FUNCTION[0], waited, WAITING_SHARE, FUNCTION[2])
    return OpTable(columns, table.head(HOTTEST), len(table), "self time", "Python function")


def op_rows(record: Record, *, sort: str, top: int) -> OpTable:
    """The ``top`` ops by ``sort``, without the kernels they launched, and the columns to show."""
    table = operators(record, sort=sort)
    table = table[~table["category"].isin(GPU_CATEGORIES)]
    has_device = bool(table["device_total_ns"].any())
    columns: tuple[Column, ...] = (CALLS, *DEVICE, *CPU) if has_device else (CALLS, *CPU)
    columns += tuple(column for column in WHERE_RECORDED if table[column.key].any())
    by = _sorted_by(sort, has_device)
    if by not in columns:
        columns = (*columns, by)
    table = table.sort_values(by.key, ascending=False, kind="stable")
    return OpTable(columns, table.head(top), len(table), by.heading)


def _sorted_by(sort: str, has_device: bool) -> Column:
    """The column of a sort key; CPU time stands in where no op of the table has GPU time."""
    key = sort_column(sort)
    if not has_device and key.startswith("device") and key.endswith("_ns"):
        key = key.replace("device", "cpu")
    columns = (CALLS, *CPU, *DEVICE, *AVERAGES, *MEMORY, *WHERE_RECORDED)
    return next(column for column in columns if column.key == key)
