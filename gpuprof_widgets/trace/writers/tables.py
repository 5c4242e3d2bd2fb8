"""A table as CSV, JSON or Parquet: whole, in full precision, times in ns.

Names of ops are other people's text, and a spreadsheet runs a cell that begins as a formula. In CSV
such a cell gets an apostrophe in front, which makes it text everywhere; so does one that begins
with an apostrophe, so that removing one restores the text (`without_marks`). JSON and Parquet hold
the text as it is.
"""

from __future__ import annotations

import csv
import io
import json
import math
import unicodedata
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gpuprof_widgets.exceptions import OptionError

if TYPE_CHECKING:  # the help of every command lists the formats, and is to be fast
    import pandas as pd

MARK = "'"
FORMULA_SIGNS = "=+-@"
"""First characters of cells that a spreadsheet may run (OWASP, "CSV Injection")."""

_CONTROLS = ("\t", "\r", "\n")
_FILLERS = "\u115f\u1160\u3164\uffa0"
"""Hangul fillers: blanks that Unicode counts as letters."""


def csv_bytes(table: pd.DataFrame) -> bytes:
    """Return a header line and a line per row, in UTF-8; text is quoted and never a formula."""
    import pandas as pd

    columns = [_marked_column(table.iloc[:, place]) for place in range(table.shape[1])]
    marked = pd.concat(columns, axis=1) if columns else table
    # Every text in quotes, as before Python 3.13 csv leaves a lone carriage return without any.
    text: str = marked.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return text.encode("utf-8", "backslashreplace")


def without_marks(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table read back from our CSV without the apostrophes that kept its text text."""
    return table.map(_unmarked).rename(columns=_unmarked)


def _marked_column(values: pd.Series) -> pd.Series:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(values):
        return values.rename(_marked(values.name))
    # Not as pandas' own text, which cannot hold half of a surrogate pair.
    cells = [_marked(cell) for cell in values]
    return pd.Series(cells, index=values.index, dtype=object, name=_marked(values.name))


def _marked(cell: Any) -> Any:
    """Return text so that a spreadsheet takes it as text; numbers stay."""
    if not isinstance(cell, str | list | tuple | dict):
        return cell
    text = cell if isinstance(cell, str) else str(cell)
    return MARK + text if text.startswith((MARK, *_CONTROLS)) or _is_formula(text) else text


def _is_formula(text: str) -> bool:
    """Return whether the first surely visible character is one of `FORMULA_SIGNS`, of any width.

    Programs trim what they import: a blank or an invisible character before it does not protect.
    """
    for sign in text:
        if unicodedata.normalize("NFKC", sign) in (*FORMULA_SIGNS,):
            return True
        is_written = unicodedata.category(sign)[0] in "LN" and sign not in _FILLERS
        if is_written or "!" <= sign <= "~":  # of others it is unknown whether they are visible
            break
    return False


def _unmarked(cell: Any) -> Any:
    return cell.removeprefix(MARK) if isinstance(cell, str) else cell


def json_bytes(table: pd.DataFrame) -> bytes:
    """Return a list with an object per row, each on a line; missing values are null."""
    columns = [_plain_values(table[name]) for name in table.columns]
    names = [str(name) for name in table.columns]
    rows = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
    lines = ",\n".join(json.dumps(row, allow_nan=False, default=_plain) for row in rows)
    return f"[\n{lines}\n]\n".encode() if lines else b"[]\n"


def parquet_bytes(table: pd.DataFrame) -> bytes:
    """Return Parquet with the types of the columns; columns of mixed types become JSON text."""
    plain = table.copy(deep=False)
    plain.attrs = {}  # words for people, which need not be JSON
    try:
        try:
            return _parquet(plain)
        except (ValueError, TypeError, OverflowError):  # pyarrow's errors are of these
            for name in [each for each in plain.columns if plain[each].dtype == object]:
                values = _plain_values(plain[name])
                texts = (
                    each if isinstance(each, str | None) else json.dumps(each, default=_plain)
                    for each in values
                )
                plain[name] = [
                    text and text.encode("utf-8", "backslashreplace").decode() for text in texts
                ]
            return _parquet(plain)
    except ImportError as error:
        raise OptionError(
            "writing Parquet needs pyarrow: pip install 'gpuprof-widgets[parquet]'"
        ) from error


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _plain_values(values: pd.Series) -> Iterable[Any]:
    """Return the values for JSON: None for missing values and those that JSON has no number for."""
    missing = values.isin((math.inf, -math.inf)).to_numpy() | values.isna().to_numpy()
    return [
        None if gone else value
        for value, gone in zip(values.tolist(), missing.tolist(), strict=True)
    ]


def _plain(value: Any) -> Any:
    """Return a value of numpy as Python's, anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


TABLE_FORMATS: dict[str, Callable[[pd.DataFrame], bytes]] = {
    "csv": csv_bytes,
    "json": json_bytes,
    "parquet": parquet_bytes,
}
"""The formats of tables, by the ending of the file's name."""
