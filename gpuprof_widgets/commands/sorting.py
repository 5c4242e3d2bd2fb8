"""``--sort KEY``: a column of the table that is shown, with or without its unit."""

from __future__ import annotations

import difflib

import pandas as pd

from gpuprof_widgets.analyses.columns import UNITS
from gpuprof_widgets.analyses.sort_keys import PLACES, PSTATS_KEYS
from gpuprof_widgets.exceptions import OptionError


def sort_columns(table: pd.DataFrame, key: str) -> list[str]:
    """The column that a key names: ``cpu_self`` or ``cpu_self_ns``, after a sign; none if unknown.

    A table of Python functions takes pstats' keys as well, of which some name several columns.
    Raises `OptionError` where a key without its unit names two.
    """
    name = key.lstrip("+-")
    if name in table.columns:
        return [name]
    found = [name + unit for unit in UNITS if name + unit in table.columns]
    if len(found) > 1:
        raise OptionError(f"{name!r} could be {' or '.join(found)}: sort by one of these")
    return found or list(_pstats_keys(table).get(name, ()))


def _pstats_keys(table: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Those that a table of Python functions has the columns of; none of any other table."""
    if not set(PLACES) <= set(table.columns):
        return {}
    return {key: names for key, names in PSTATS_KEYS.items() if set(names) <= set(table.columns)}


def sorted_by(table: pd.DataFrame, key: str) -> pd.DataFrame:
    """Its rows by the column of that key: numbers largest first, names from A, lines of a file from
    the first; ``+`` rising, ``-`` falling.
    """
    columns = sort_columns(table, key)
    if not columns:
        raise OptionError(_unknown(table, key))
    rising = [
        column in PLACES or not pd.api.types.is_numeric_dtype(table[column]) for column in columns
    ]
    if key[0] in "+-":
        rising = [key[0] == "+"] * len(columns)
    return table.sort_values(columns, ascending=rising, kind="stable", ignore_index=True)


def _unknown(table: pd.DataFrame, key: str) -> str:
    names = list(map(str, table.columns))
    pstats = list(_pstats_keys(table))
    close = difflib.get_close_matches(key.lstrip("+-"), names + pstats, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"there is no column {key!r} to sort by.{hint} Columns are {', '.join(names)}" + (
        f"; pstats' keys: {', '.join(pstats)}." if pstats else "."
    )
