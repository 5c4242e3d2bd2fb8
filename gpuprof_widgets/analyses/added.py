"""Analyses of other packages: refused where no method or command can be made of them."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from functools import wraps
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pandas as pd

from gpuprof_widgets.analyses.option_types import WORDS, option_kinds
from gpuprof_widgets.exceptions import GpuprofError

TAKEN = frozenset(
    {
        *("calls", "calls_of_workers", "metadata", "trace", "window", "findings", "compare"),
        *("load", "save", "save_pstats", "snakeviz", "export", "redacted", "report", "show"),
        *("convert", "diff", "kernelspec", "ranks", "run", "view", "ops"),
    }
)
"""Names of methods of a profile and of commands that are no analyses."""

TAKEN_OPTIONS = frozenset({"trace", "window", "csv", "json", "parquet"})
"""Options that every command has."""

KNOWN = "bool, int, float, str, tuple[int, int] and Sequence[str], each with or without None"

Function = Callable[..., pd.DataFrame]


def added_analysis(name: str, function: Any, package: str, example: str) -> Function:
    """Return the function so that it names its package where it returns no proper table.

    Raises a TypeError, with the reason, where ``profile.NAME()`` and ``gpuprof NAME`` could not be.
    """
    if not inspect.isfunction(function):
        raise TypeError(f"an analysis is a function, not {function!r:.80}")
    if function.__name__ != name:
        raise TypeError(f"the entry point needs the name of its function, {function.__name__}")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name in TAKEN:
        raise TypeError(f"neither a method nor a command can be called {name}")
    _check_options(function, example)

    @wraps(function)
    def returning_table(*args: Any, **options: Any) -> pd.DataFrame:
        table: pd.DataFrame = function(*args, **options)
        if why := _what_is_wrong(table):
            raise GpuprofError(f"{name} of {package} returned {why}")
        return table

    return returning_table


def _check_options(function: Callable[..., Any], example: str) -> None:
    kinds = option_kinds(function)
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise TypeError("it takes no record")
    for option in parameters[1:]:
        if option.kind in (option.VAR_POSITIONAL, option.VAR_KEYWORD):
            raise TypeError(f"{option} is no option with a name")
        if option.name in TAKEN_OPTIONS:
            raise TypeError(f"every command has an option {option.name} already")
        if not _is_known(kinds[option.name]):
            raise TypeError(f"the type of its option {option} is none of {KNOWN}")
    if bool(example) != any(option.default is option.empty for option in parameters[1:]):
        raise TypeError("its row needs an example if an option has no default, and only then")


def _is_known(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return all(_is_known(part) for part in get_args(kind))
    return kind in WORDS


def _what_is_wrong(table: Any) -> str:
    """Return why this is no table as ours are; "" where it is one."""
    if not isinstance(table, pd.DataFrame):
        return f"a {type(table).__name__}, where a DataFrame is expected"
    if not all(isinstance(name, str) for name in table.columns) or not table.columns.is_unique:
        return "a table whose columns are not texts that differ"
    if any(name is not None for name in table.index.names):
        return "a table with a named index: call reset_index()"
    return ""
