"""Which tables are of the whole run: what they are made of has no times that a range could cut."""

from __future__ import annotations

import pandas as pd

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import WINDOW

WHOLE = "whole"
"""Key in a table's ``attrs``: why a range of time cannot be cut out of it, in a few words."""

NO_TIMES = "cProfile counts calls and notes no times of them"


def of_the_whole_run(table: pd.DataFrame, why: str) -> pd.DataFrame:
    """The same table, whose ``attrs["whole"]`` says why it follows no range of time."""
    table.attrs[WHOLE] = why
    return table


def is_beyond_the_range(record: Record, table: pd.DataFrame) -> bool:
    """Whether the record is of a range of time, and the table of the whole run nonetheless."""
    return WINDOW in record.metadata and WHOLE in table.attrs


def what_follows_no_range(table: pd.DataFrame) -> str:
    """What to say of it where a range was asked for; "" if it follows ranges or has no rows."""
    if WHOLE not in table.attrs or not len(table):
        return ""
    return f"these rows are of the whole run, not of that range: {table.attrs[WHOLE]}"
