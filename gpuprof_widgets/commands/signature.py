"""The keywords of an analysis as options of its command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import click

from gpuprof_widgets.commands.traces import Time

SHARED = ("sort", "top", "step")
"""Keywords that every command has as options of its own."""


def keywords_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What the analysis takes besides the record."""
    _, *parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter for parameter in parameters}


def options_of(function: Callable[..., Any]) -> list[click.Parameter]:
    """An option per keyword of the analysis, but for those that only a program can give.

    What a call has to name first (``attribution(level)``) is an argument here as well.
    """
    from gpuprof_widgets.analyses.option_types import option_kinds  # loads numpy

    kinds = option_kinds(function)
    options = (
        option_of(parameter, kinds[name])
        for name, parameter in keywords_of(function).items()
        if name not in SHARED
    )
    return [option for option in options if option is not None]


def option_of(parameter: inspect.Parameter, kind: Any) -> click.Parameter | None:
    """The option or argument of one keyword, by its type; None where its values cannot be typed.

    A `TypeError` where it cannot be left out either.
    """
    name, default = parameter.name, parameter.default
    flag = f"--{name.replace('_', '-')}"
    plain: Any = Time() if name.endswith("_ns") else _typed(kind)
    if default is parameter.empty:
        if plain is None:
            raise TypeError(f"a command line has no option of type {kind} for {name}")
        return click.Argument([name], type=plain)
    if isinstance(default, bool):
        return click.Option([f"{flag}/--no-{flag[2:]}", name], default=default)
    said = None if default in (None, "") else f"default: {default}"
    if plain is None:
        return None
    return click.Option([flag, name], type=plain, default=default, help=said)


def _typed(kind: Any) -> Any:
    """The type of what is typed for such a keyword: of several the text; None for none of them."""
    if get_origin(kind) in (Union, UnionType):
        parts = [_typed(part) for part in get_args(kind) if part is not NoneType]
        return next((part for part in (str, float, int) if part in parts), None)
    return kind if kind in (int, float, str) else None
