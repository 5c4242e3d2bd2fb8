"""How an analysis says what a trace lacks: an empty table with the reason beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

LACKS = "lacks"
"""Key in a table's ``attrs``: one sentence on what the trace does not hold."""


def lacking(columns: Sequence[str], why: str) -> pd.DataFrame:
    """A table with these columns and no rows; ``attrs["lacks"]`` says why, in one sentence."""
    table = pd.DataFrame(columns=list(columns))
    table.attrs[LACKS] = why
    return table


def what_is_lacking(table: pd.DataFrame) -> str:
    """Why a table is empty; "" where nothing is said of it."""
    return str(table.attrs.get(LACKS, ""))
