"""``--sort KEY``: a column of the table that is shown, with or without its unit."""

from __future__ import annotations

import difflib

import pandas as pd

from gpuprof_widgets.commands.cells import UNITS
from gpuprof_widgets.exceptions import OptionError


def sort_column(table: pd.DataFrame, key: str) -> str | None:
    """The column that a key names: ``cpu_self`` or ``cpu_self_ns``, after a sign; else None.

    Raises `OptionError` where a key without its unit names two.
    """
    name = key.lstrip("+-")
    if name in table.columns:
        return name
    found = [name + unit for unit in UNITS if name + unit in table.columns]
    if len(found) > 1:
        raise OptionError(f"{name!r} could be {' or '.join(found)}: sort by one of these")
    return found[0] if found else None


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
