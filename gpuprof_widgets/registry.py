"""`Registry`: the rows of one kind of thing by name: ours, and those of other packages.

Each kind has one literal table of its rows (`ANALYSES`, `FINDINGS`, `READERS`); methods, commands,
tabs and docs come from it. Another package adds a row by an entry point of the table's group.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib.metadata import entry_points
from typing import TypeVar

Row = TypeVar("Row")


class Registry(MutableMapping[str, Row]):
    """The rows of one kind by name: ours in their order, then those of other packages.

    ``group``: the group of entry points in which other packages name theirs. ``checked``: gets the
    name, the loaded entry point and the package's name, and returns the row, or raises a TypeError
    with the reason. ``ours``: our rows alone.

    Other packages are imported when the table is first read, not when it is made, because they may
    import its module themselves. A row that cannot be imported, or whose name is taken, is left out
    with a warning.
    """

    def __init__(
        self, group: str, ours: Mapping[str, Row], checked: Callable[[str, object, str], Row]
    ) -> None:
        self.ours = ours
        self._group = group
        self._checked = checked
        self._rows: dict[str, Row] | None = None
        self._installed: dict[str, Row] = {}
        self._loading = threading.RLock()
        self._is_loading = False

    def __getitem__(self, name: str) -> Row:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __setitem__(self, name: str, row: Row) -> None:
        self._all()[name] = row

    def __delitem__(self, name: str) -> None:
        del self._all()[name]

    @property
    def is_as_installed(self) -> bool:
        """Whether every process of this environment has these rows: none was set by hand."""
        return self._all() == self._installed

    def _all(self) -> dict[str, Row]:
        if self._rows is not None:
            return self._rows
        with self._loading:  # other threads wait; the loading one gets our rows meanwhile
            if self._is_loading:
                return dict(self.ours)
            if self._rows is None:
                self._is_loading = True
                try:
                    self._installed, problems = self._loaded()
                    self._rows = dict(self._installed)
                finally:
                    self._is_loading = False
                for problem in problems:
                    warnings.warn(problem, stacklevel=4)
        return self._rows

    def _loaded(self) -> tuple[dict[str, Row], list[str]]:
        """Return all rows, and a message per row that was left out."""
        rows, problems = dict(self.ours), []
        for point in entry_points(group=self._group):
            package = point.module if point.dist is None else point.dist.name
            try:
                if point.name in rows:
                    raise TypeError(f"the name {point.name} is taken")
                rows[point.name] = self._checked(point.name, point.load(), package)
            except Exception as error:  # other people's code may raise anything
                problems.append(
                    f"the entry point {point.name} of {package} ({point.value}, in {self._group}) "
                    f"was left out: {type(error).__name__}: {error}"
                )
        return rows, problems
