"""Results that one report asks for several times, kept as long as their record or trace lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

COPIES_ON_WRITE = int(pd.__version__.partition(".")[0]) >= 3
"""Whether tables of pandas share their columns until one of them is changed."""

Subject = TypeVar("Subject")
Others = TypeVarTuple("Others")
Result = TypeVar("Result")


def remembered(
    analysis: Callable[[Subject, *Others], Result],
) -> Callable[[Subject, *Others], Result]:
    """The same analysis, done once per record or trace, and per other arguments if it has any.

    A caller may change a table, a list or a dictionary that it gets: these are its own (but for
    what pandas' copy on write does not see: `Series.array`). Arrays cannot be written to, and what
    is frozen is handed out as it is.
    """
    results: WeakKeyDictionary[Subject, dict[Any, Any]] = WeakKeyDictionary()

    @functools.wraps(analysis)
    def once(subject: Subject, *others: *Others) -> Result:
        known = results.setdefault(subject, {})
        if others not in known:
            known[others] = analysis(subject, *others)
        own: Result = _own(known[others])
        return own

    return once


def _own(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        view = result.view()
        view.flags.writeable = False
        return view
    if isinstance(result, pd.DataFrame):
        return result.copy(deep=not COPIES_ON_WRITE)
    return result.copy() if isinstance(result, list | dict) else result
