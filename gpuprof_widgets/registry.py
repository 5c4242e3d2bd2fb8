"""`Registry`: what there is of one kind of thing, by name: ours, and what other packages add.

Each kind has one literal table of its rows (`ANALYSES`, `FINDINGS`, `READERS`), from which all that
lists or calls them is made. Another package adds a row by an entry point of the table's group.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

Row = TypeVar("Row")


class Registry(MutableMapping[str, Row]):
    """The rows of one kind by name: ours in their order, then those of other packages.

    ``group``: the group of entry points in which other packages name theirs; ``checked``: returns
    what such an entry point names as a row, given the package's name, or raises a TypeError.

    Other packages are imported when the table is first read, not when it is made: they may import
    its module themselves. One that cannot be imported, or whose name is taken, is left out with a
    warning.
    """

    def __init__(
        self,
        group: str,
        rows: Mapping[str, Row],
        checked: Callable[[object, str], Row],
    ) -> None:
        self._group = group
        self._rows = dict(rows)
        self._checked = checked
        self._is_complete = False

    def __getitem__(self, name: str) -> Row:
        return self._complete()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._complete())

    def __len__(self) -> int:
        return len(self._complete())

    def __setitem__(self, name: str, row: Row) -> None:
        self._complete()[name] = row

    def __delitem__(self, name: str) -> None:
        del self._complete()[name]

    def _complete(self) -> dict[str, Row]:
        if not self._is_complete:
            self._is_complete = True  # who reads it while the others are imported gets ours
            rows = dict(self._rows)
            for point in entry_points(group=self._group):
                self._add(point, rows)
            self._rows = rows
        return self._rows

    def _add(self, point: EntryPoint, rows: dict[str, Row]) -> None:
        package = point.module if point.dist is None else point.dist.name
        try:
            if point.name in rows:
                raise TypeError(f"there is a {point.name} already")
            rows[point.name] = self._checked(point.load(), package)
        except Exception as error:  # other people's code may raise anything
            warnings.warn(
                f"{package} adds {point.name} to {self._group} by {point.value}, which is left "
                f"out: {type(error).__name__}: {error}",
                stacklevel=2,
            )
