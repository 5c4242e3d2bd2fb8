"""What the options of an analysis take, by its type hints: any other value is an `OptionError`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from numbers import Integral, Real
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from gpuprof_widgets.exceptions import OptionError

WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "None",
    tuple[int, int]: "a pair of whole numbers",
    Sequence[str]: "a list of texts",
}
"""How each type is called in an error."""

NUMBERS = {int: Integral, float: Real}
"""What counts as one: numpy's numbers as well."""

LEAST = {"top": 1, "stack_depth": 0, "back_to_back_ns": 0}
"""The smallest value of the options of these names, in every analysis that has them."""


def checked_options(
    analysis: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments as the analysis takes them: floats that are whole, as ``1e3``, as integers.

    Raises an `OptionError` where an option (all but the record, which is first) has a wrong type.
    A name that is no option's is left to the call itself, which says so as any function does.
    """
    signature, kinds = _declared(analysis)
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError:
        return args, keywords
    for name, value in list(bound.arguments.items())[1:]:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            for each, limit in value.items():
                _check(each, limit, kinds[name])
        else:
            bound.arguments[name] = _whole(value, kinds[name])
            _check(name, bound.arguments[name], kinds[name])
    return bound.args, bound.kwargs


@cache
def _declared(analysis: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(analysis), option_kinds(analysis)


def option_kinds(analysis: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of each parameter; without a type hint it is that of its default.

    Raises a TypeError where a type hint names what its module does not import.
    """
    try:
        hints = get_type_hints(analysis)
    except NameError as error:
        raise TypeError(f"a type hint of {analysis.__name__} is not known: {error}") from None
    parameters = inspect.signature(analysis).parameters
    return {name: hints.get(name, _kind_of_default(each)) for name, each in parameters.items()}


def _kind_of_default(parameter: inspect.Parameter) -> Any:
    return str | None if parameter.default in (None, parameter.empty) else type(parameter.default)


def _whole(value: Any, kind: Any) -> Any:
    asked = int in (kind, *get_args(kind)) and isinstance(value, float | np.floating)
    return int(value) if asked and value.is_integer() else value


def _check(name: str, value: object, kind: Any) -> None:
    if not _fits(value, kind):
        words = " or ".join(_words(kind))
        raise OptionError(f"{name} takes {words}, not {short(value)}")
    least = LEAST.get(name)
    if least is not None and isinstance(value, Integral) and int(value) < least:
        raise OptionError(f"{name} is at least {least}, not {value}")


def _words(kind: Any) -> list[str]:
    if get_origin(kind) in (Union, UnionType):
        return [words for part in get_args(kind) for words in _words(part)]
    return [WORDS.get(kind, f"a {kind.__name__}")]


def _fits(value: Any, kind: Any) -> bool:
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if get_origin(kind) is tuple:
        pair = isinstance(value, tuple | list) and len(value) == len(parts)
        return pair and all(_fits(each, parts[0]) for each in value)
    if get_origin(kind) is Sequence:
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return several and all(_fits(each, parts[0]) for each in value)
    if kind is bool or isinstance(value, bool | np.bool_):
        return kind is bool and isinstance(value, bool | np.bool_)
    return isinstance(value, NUMBERS.get(kind, kind))
