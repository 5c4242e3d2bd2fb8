"""Plain tables of an SQLite file of unknown origin, read from its bytes.

Nothing in the file runs: views, virtual tables and generated columns are ignored, its functions and
triggers are never reached, and a query ends after as many steps as a file of that size can need (in
a damaged file pages may point in circles).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.arrays import Ints, Mask

Texts = NDArray[np.object_]

MAGIC = b"SQLite format 3\x00"
MISSING = int(np.iinfo(np.int64).min)
"""The value in integer columns for NULL, for a column that the file lacks, and for other types."""

_HEADER = 100
_STEPS_PER_BYTE = 16
_FEWEST_STEPS = 1_000_000
_STEPS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Table:
    """Columns of one table in the order of its rows: integers, and texts where asked for."""

    rows: int
    ints: Mapping[str, Ints]
    texts: Mapping[str, Texts]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, column: str) -> Ints:
        return self.ints[column]

    def with_ints(self, **columns: Ints) -> Table:
        """Return the table with these columns added or replaced."""
        return Table(self.rows, {**self.ints, **columns}, self.texts)

    def chosen(self, rows: Mask) -> Table:
        """Return the table with these rows."""
        ints = {name: values[rows] for name, values in self.ints.items()}
        texts = {name: values[rows] for name, values in self.texts.items()}
        return Table(int(np.count_nonzero(rows)), ints, texts)


class Database:
    """The plain tables of a file; errors are `TraceError`s that name the file and the table."""

    def __init__(self, connection: sqlite3.Connection, path: Path, size: int) -> None:
        self.path = path
        self._connection = connection
        self._budget = max(size * _STEPS_PER_BYTE, _FEWEST_STEPS) // _STEPS_AT_ONCE
        self._left = self._budget
        connection.set_progress_handler(self._step, _STEPS_AT_ONCE)
        made = self._rows(
            "the list of tables", "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        )
        self._columns = {
            _text(name): frozenset(
                _text(row[1]).lower()
                for row in self._rows(_text(name), f"PRAGMA table_xinfo({_quoted(_text(name))})")
                if row[6] == 0  # generated columns would run their expressions
            )
            for name, sql in made
            if not _text(sql).lstrip().upper().startswith("CREATE VIRTUAL")
        }

    @property
    def tables(self) -> list[str]:
        """The sorted names of the tables."""
        return sorted(self._columns)

    def has(self, table: str) -> bool:
        """Return whether there is a table of this name."""
        return table in self._columns

    def has_column(self, table: str, *names: str) -> bool:
        """Return whether the table exists and has one of these columns, in any case."""
        return bool(self._columns.get(table, frozenset()) & {name.lower() for name in names})

    def count(self, table: str) -> int:
        """Return the number of rows; 0 where there is no such table."""
        if table not in self._columns:
            return 0
        return int(self._rows(table, f"SELECT COUNT(*) FROM {_quoted(table)}")[0][0])

    def read(self, table: str, ints: Sequence[str], texts: Sequence[str] = ()) -> Table:
        """Return columns of a table; `MISSING` and None for those that it lacks.

        Text that is not valid UTF-8 keeps its valid part; a blob is None.
        """
        present = [name for name in ints if self.has_column(table, name)]
        numbers = self._integers(table, present)
        rows = len(numbers)
        nothing = np.full(rows, MISSING, np.int64)
        return Table(
            rows,
            {name: numbers[name].copy() if name in present else nothing for name in ints},
            {name: self._texts(table, name, rows) for name in texts},
        )

    def blobs(self, table: str, column: str) -> list[bytes]:
        """Return a column of blobs; b"" for other values."""
        if not self.has_column(table, column):
            return [b""] * self.count(table)
        rows = self._rows(table, f"SELECT {_quoted(column)} FROM {_quoted(table)}")
        return [value if isinstance(value, bytes) else b"" for (value,) in rows]

    def texts_by_id(self, table: str, key: str, value: str) -> dict[int, str]:
        """Return the texts of a table by their number."""
        rows = self.read(table, [key], [value])
        pairs = zip(rows[key].tolist(), rows.texts[value].tolist(), strict=True)
        return {number: text for number, text in pairs if text is not None}

    def _integers(self, table: str, names: Sequence[str]) -> NDArray[Any]:
        kinds = np.dtype([("rows", np.int64), *((name, np.int64) for name in names)])
        if table not in self._columns:
            return np.empty(0, kinds)
        integers = [
            f"CASE typeof({_quoted(name)}) WHEN 'integer' THEN {_quoted(name)} "
            f"WHEN 'real' THEN CAST({_quoted(name)} AS INTEGER) ELSE ?1 END"
            for name in names
        ]
        query = f"SELECT {', '.join(['?1', *integers])} FROM {_quoted(table)}"
        with self._errors(table):
            return np.fromiter(self._connection.execute(query, (MISSING,)), kinds)

    def _texts(self, table: str, name: str, rows: int) -> Texts:
        texts: Texts = np.full(rows, None, object)
        if not self.has_column(table, name):
            return texts
        query = (
            f"SELECT CASE typeof({_quoted(name)}) WHEN 'text' THEN {_quoted(name)} END "
            f"FROM {_quoted(table)}"
        )
        values = self._rows(table, query)
        texts[:] = [None if value is None else _text(value) for (value,) in values]
        return texts

    def _rows(self, table: str, query: str) -> list[Any]:
        with self._errors(table):
            return self._connection.execute(query).fetchall()

    @contextmanager
    def _errors(self, table: str) -> Iterator[None]:
        self._left = self._budget
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError, OverflowError, ValueError) as error:
            reason = error if self._left >= 0 else "its pages point in circles"
            raise TraceError(
                f"{self.path}: an SQLite file that is damaged: {table} cannot be read ({reason}). "
                "Copy the file again, or export it again from the profiler's own report."
            ) from error

    def _step(self) -> bool:
        self._left -= 1
        return self._left < 0


@contextmanager
def opened(data: bytes, path: Path) -> Iterator[Database]:
    """Open the database in these bytes; ``path`` is named in errors."""
    # The header has the page size at byte 16 (1: 65,536), the number of pages at byte 28.
    page = int.from_bytes(data[16:18], "big")
    page = 65_536 if page == 1 else page
    expected = max(page * int.from_bytes(data[28:32], "big"), _HEADER)
    if len(data) < expected:
        raise TraceError(
            f"{path}: the SQLite file ends at byte {len(data):,}, but its header says "
            f"{expected:,} bytes: it was cut off while it was written or copied. "
            "Copy it again, or export it again."
        )
    if data[18:20] == b"\x02\x02":  # write-ahead mode needs a log file, which is not here
        data = data[:18] + b"\x01\x01" + data[20:]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = bytes
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        try:
            connection.deserialize(data)
        except sqlite3.Error as error:
            raise TraceError(
                f"{path}: starts as an SQLite file but cannot be opened ({error}); "
                "copy the file again."
            ) from error
        yield Database(connection, path, len(data))


def is_sqlite(data: bytes) -> bool:
    """Return whether these bytes start like an SQLite file."""
    return data.startswith(MAGIC)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
