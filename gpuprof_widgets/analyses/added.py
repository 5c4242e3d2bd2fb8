"""What a function declares as an analysis: its name and the types of its options.

`added_analysis` refuses a function of another package that cannot become a method and a command;
`checked_options` checks the arguments of each call against the type hints.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd

from gpuprof_widgets.exceptions import GpuprofError, OptionError

TAKEN = frozenset(
    {
        *("calls", "calls_of_workers", "metadata", "trace", "window", "findings", "compare"),
        *("load", "save", "save_pstats", "snakeviz", "export", "redacted"),
        *("report", "show", "explore", "note", "focus"),
        *("convert", "diff", "kernelspec", "ranks", "run", "view", "ops"),
    }
)
"""Names of a profile's methods and of commands that are not analyses."""

TAKEN_OPTIONS = frozenset({"trace", "window", "csv", "json", "parquet"})
"""Options that every command has."""

KNOWN = "bool, int, float, str, tuple[int, int] and Sequence[str], each with or without None"

WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "None",
    tuple[int, int]: "a pair of whole numbers",
    Sequence[str]: "a list of texts",
}
"""How an error names each type."""

NUMBERS = {int: Integral, float: Real}
"""The types of numbers, so that numpy's count as well."""

LEAST = {"top": 1, "stack_depth": 0, "back_to_back_ns": 0}
"""The smallest value of options with these names, in every analysis."""

Function = Callable[..., pd.DataFrame]


def added_analysis(name: str, function: Any, package: str, example: str) -> Function:
    """Return the function with a check of its table, whose error names the package.

    Raises a TypeError, with the reason, if it cannot be ``profile.NAME()`` and ``gpuprof NAME``.
    """
    if not inspect.isfunction(function):
        raise TypeError(f"an analysis is a function, not {function!r:.80}")
    if function.__name__ != name:
        raise TypeError(f"the entry point needs the name of its function, {function.__name__}")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name in TAKEN:
        raise TypeError(f"neither a method nor a command can be called {name}")
    kinds = option_kinds(function)
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise TypeError("it takes no record")
    for option in parameters[1:]:
        if option.kind in (option.VAR_POSITIONAL, option.VAR_KEYWORD):
            raise TypeError(f"{option} is no option with a name")
        if option.name in TAKEN_OPTIONS:
            raise TypeError(f"every command has an option {option.name} already")
        if not all(kind in WORDS for kind in _alternatives(kinds[option.name])):
            raise TypeError(f"the type of its option {option} is none of {KNOWN}")
    if bool(example) != any(option.default is option.empty for option in parameters[1:]):
        raise TypeError("its row needs an example if an option has no default, and only then")

    @wraps(function)
    def returning_table(*args: Any, **options: Any) -> pd.DataFrame:
        table: pd.DataFrame = function(*args, **options)
        if problem := _table_problem(table):
            raise GpuprofError(f"{name} of {package} returned {problem}")
        return table

    return returning_table


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _table_problem(table: Any) -> str:
    """Return what this has instead of a proper table; "" if it is one."""
    if not isinstance(table, pd.DataFrame):
        return f"a {type(table).__name__}, where a DataFrame is expected"
    if not all(isinstance(name, str) for name in table.columns) or not table.columns.is_unique:
        return "a table whose columns are not texts that differ"
    if any(name is not None for name in table.index.names):
        return "a table with a named index: call reset_index()"
    return ""


def checked_options(
    analysis: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments for the analysis, with whole floats such as ``1e3`` as integers.

    Raises an `OptionError` where an option (all but the record, which is first) has a wrong type.
    Unknown names are left to the call itself, which raises as any function does.
    """
    signature, kinds = _declared(analysis)
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError:
        return args, keywords
    for name, value in list(bound.arguments.items())[1:]:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            for keyword_name, keyword_value in value.items():
                _check(keyword_name, keyword_value, kinds[name])
        else:
            may_be_whole = int in (kinds[name], *get_args(kinds[name]))
            if may_be_whole and isinstance(value, float | np.floating) and value.is_integer():
                bound.arguments[name] = int(value)
            _check(name, bound.arguments[name], kinds[name])
    return bound.args, bound.kwargs


@cache
def _declared(analysis: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(analysis), option_kinds(analysis)


def option_kinds(analysis: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of each parameter, by its type hint, else by its default.

    Raises a TypeError if a type hint uses a name that its module does not import.
    """
    try:
        hints = get_type_hints(analysis)
    except NameError as error:
        raise TypeError(f"a type hint of {analysis.__name__} is not known: {error}") from None
    parameters = inspect.signature(analysis).parameters
    kinds = {}
    for name, parameter in parameters.items():
        default = parameter.default
        by_default = str | None if default in (None, parameter.empty) else type(default)
        kinds[name] = hints.get(name, by_default)
    return kinds


def _check(name: str, value: object, kind: Any) -> None:
    alternatives = _alternatives(kind)
    if not any(_fits(value, each) for each in alternatives):
        words = " or ".join(WORDS.get(each, f"a {each.__name__}") for each in alternatives)
        raise OptionError(f"{name} takes {words}, not {short(value)}")
    least = LEAST.get(name)
    if least is not None and isinstance(value, Integral) and int(value) < least:
        raise OptionError(f"{name} is at least {least}, not {value}")


def _fits(value: Any, kind: Any) -> bool:
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        pair = isinstance(value, tuple | list) and len(value) == len(parts)
        return pair and all(_fits(each, parts[0]) for each in value)
    if get_origin(kind) is Sequence:
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return several and all(_fits(each, parts[0]) for each in value)
    if kind is bool or isinstance(value, bool | np.bool_):
        return kind is bool and isinstance(value, bool | np.bool_)
    return isinstance(value, NUMBERS.get(kind, kind))
