"""``--sort KEY``: a column of the table that is shown, with or without its unit."""

from __future__ import annotations

import difflib

import pandas as pd

from gpuprof_widgets.commands.cells import UNITS
from gpuprof_widgets.exceptions import OptionError


def sort_column(table: pd.DataFrame, key: str) -> str | None:
    """The column that a key names: ``cpu_self`` or ``cpu_self_ns``, after a sign; else None."""
    name = key.lstrip("+-")
    names = (name, *(name + unit for unit in UNITS))
    return next((name for name in names if name in table.columns), None)


def sorted_by(table: pd.DataFrame, key: str) -> pd.DataFrame:
    """Its rows by the column of that key: numbers largest first, names from A; ``+`` rising,
    ``-`` falling.
    """
    column = sort_column(table, key)
    if column is None:
        raise OptionError(_unknown(table, key))
    rising = not pd.api.types.is_numeric_dtype(table[column])
    if key[0] in "+-":
        rising = key[0] == "+"
    return table.sort_values(column, ascending=rising, kind="stable", ignore_index=True)


def _unknown(table: pd.DataFrame, key: str) -> str:
    names = list(map(str, table.columns))
    close = difflib.get_close_matches(key.lstrip("+-"), names, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"there is no column {key!r} to sort by.{hint} Columns are {', '.join(names)}."
