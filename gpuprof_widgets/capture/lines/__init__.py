"""The lines of a cell: statements marked while they run, and nothing of it left behind.

`lines` marks functions by hand. It stands apart from the rest because user modules import it at
their top: it must load neither torch nor pandas.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakSet

from gpuprof_widgets.exceptions import OptionError

Function = TypeVar("Function", bound=Callable[..., Any])

chosen: WeakSet[FunctionType] = WeakSet()
"""The functions that users have marked by `lines`."""


def lines(function: Function) -> Function:
    """Show the lines of a function in profiles, even if an earlier cell or a module defines it.

    Use it as a decorator: ``@gpuprof_widgets.lines``. It returns the function itself, whose code is
    changed only while a profile is recorded. Raises an `OptionError` for anything but a function
    that was written in Python with ``def``.
    """
    inner: Any = getattr(function, "__func__", function)  # of classmethod and staticmethod
    inner = inspect.unwrap(inner) if callable(inner) else inner
    if not isinstance(inner, FunctionType) or inner.__name__ == "<lambda>":
        raise OptionError(
            f"lines marks a function written in Python with def, not {function!r}; "
            "to see the lines of a class, mark its methods"
        )
    chosen.add(inner)
    return function
