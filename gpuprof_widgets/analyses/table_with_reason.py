"""`TableWithReason`: a table that says, wherever it is shown, why it has nothing to say."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pandas as pd

from gpuprof_widgets.printable import printable

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Class = TypeVar("Class")

LACKS = "lacks"
"""Key in a table's ``attrs``: one sentence on what the trace does not hold."""


class _LikeAnyTable(type(pd.DataFrame)):  # type: ignore[misc]
    """`pandas.testing` asks whether one table is of the other's class: to it they are all alike."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, pd.DataFrame)


class TableWithReason(pd.DataFrame, metaclass=_LikeAnyTable):
    """A DataFrame that shows ``attrs["lacks"]``, in print and in a notebook.

    What is made of it and has rows is a plain DataFrame.
    """

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return _made_of_it

    def __repr__(self) -> str:
        said = _sentence(self)
        if said and self.empty:
            return f"{said}\nColumns: {', '.join(map(str, self.columns))}"
        return f"{super().__repr__()}\n\n{said}" if said else super().__repr__()

    def _repr_html_(self) -> str | None:
        table = super()._repr_html_()  # type: ignore[misc]  # not in the stubs
        said = _sentence(self)
        return f"<p>{html.escape(said)}</p>\n{table}" if said and table is not None else table


def _made_of_it(*args: Any, **kwargs: Any) -> pd.DataFrame:
    table = pd.DataFrame(*args, **kwargs)
    return table if len(table) else TableWithReason(table)


def _sentence(table: pd.DataFrame) -> str:
    why = printable(what_is_lacking(table)).removesuffix(".")
    return f"{'Note' if len(table) else 'Empty'}: {why}." if why else ""


def what_is_lacking(table: pd.DataFrame) -> str:
    """Why a table is empty; "" where nothing is said of it."""
    return str(table.attrs.get(LACKS, ""))


def with_reason(result: Result) -> Result:
    """The same; a table of which something is said to be lacking shows that."""
    if isinstance(result, pd.DataFrame) and what_is_lacking(result):
        table: Any = TableWithReason(result)
        table.attrs.update(result.attrs)
        return table  # type: ignore[no-any-return]
    return result


def with_reasons(kind: type[Class]) -> type[Class]:
    """The same class, whose own public methods return tables `with_reason`."""
    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("_"):
            setattr(kind, name, _showing(method))
    return kind


def _showing(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    @functools.wraps(method)
    def showing(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return with_reason(method(*args, **kwargs))

    return showing
