"""The keywords of an analysis as options of its command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

SHARED = ("sort", "top")
"""Keywords that every command has as options of its own."""


def options_of(function: Callable[..., Any]) -> list[click.Option]:
    """An option per keyword of the analysis; what has no default has to be given."""
    _, *parameters = inspect.signature(function).parameters.values()
    kinds = get_type_hints(function)
    return [
        option_of(parameter, kinds[parameter.name])
        for parameter in parameters
        if parameter.name not in SHARED
    ]


def option_of(parameter: inspect.Parameter, kind: Any) -> click.Option:
    """The option of one keyword, by its type; a `TypeError` where a command line has no such."""
    name = parameter.name
    flag = f"--{name.replace('_', '-')}"
    if parameter.default is parameter.empty:
        return click.Option([flag, name], type=_click_type(kind), required=True)
    default = parameter.default
    if isinstance(default, bool):
        return click.Option([f"{flag}/--no-{flag[2:]}", name], default=default)
    chosen = None if default in (None, "") else str(default)
    said = f"default: {chosen}" if chosen else None
    return click.Option([flag, name], type=_click_type(kind), default=default, help=said)


def _click_type(kind: Any) -> click.ParamType[Any] | type:
    plain = _without_none(kind)
    if get_origin(plain) is Literal:
        return click.Choice([str(choice) for choice in get_args(plain)])
    if plain in (int, float, str):
        return plain  # type: ignore[no-any-return]
    raise TypeError(f"a command line has no option of type {kind}")


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    left = [each for each in get_args(kind) if each is not NoneType]
    return left[0] if len(left) == 1 else kind
