"""How an analysis says what a trace lacks: an empty table with the reason beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec

import pandas as pd

Arguments = ParamSpec("Arguments")

LACKS = "lacks"
"""Key in a table's ``attrs``: one sentence on what the trace does not hold."""


def lacking(columns: Sequence[str], why: str) -> pd.DataFrame:
    """A table with these columns and no rows; ``attrs["lacks"]`` says why, in one sentence."""
    table = pd.DataFrame(columns=list(columns))
    table.attrs[LACKS] = why
    return table


def says_if_empty(
    why: str,
) -> Callable[[Callable[Arguments, pd.DataFrame]], Callable[Arguments, pd.DataFrame]]:
    """Of an analysis: where its table has no rows, ``attrs["lacks"]`` says why."""

    def explained(
        analysis: Callable[Arguments, pd.DataFrame],
    ) -> Callable[Arguments, pd.DataFrame]:
        @functools.wraps(analysis)
        def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> pd.DataFrame:
            table = analysis(*args, **kwargs)
            if not len(table):
                table.attrs.setdefault(LACKS, why)
            return table

        return explaining

    return explained


def what_is_lacking(table: pd.DataFrame) -> str:
    """Why a table is empty; "" where nothing is said of it."""
    return str(table.attrs.get(LACKS, ""))
