"""Cache results that a report needs several times, as long as their record or trace lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

COPIES_ON_WRITE = int(pd.__version__.partition(".")[0]) >= 3
"""Whether copies of a table share its columns until one of them is changed."""

Subject = TypeVar("Subject")
Others = TypeVarTuple("Others")
Result = TypeVar("Result")


def remembered(
    analysis: Callable[[Subject, *Others], Result],
) -> Callable[[Subject, *Others], Result]:
    """Run the analysis once per record or trace, and per other arguments if it takes any.

    Every caller gets a copy of a table, list or dictionary and may change it (except by
    `Series.array`, which pandas' copy on write does not see). Arrays are read-only; frozen values
    are handed out as they are.
    """
    results: WeakKeyDictionary[Subject, dict[Any, Any]] = WeakKeyDictionary()

    @functools.wraps(analysis)
    def once(subject: Subject, *others: *Others) -> Result:
        known = results.setdefault(subject, {})
        if others not in known:
            known[others] = analysis(subject, *others)
        result: Result = _protected(known[others])
        return result

    return once


def _protected(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        view = result.view()
        view.flags.writeable = False
        return view
    if isinstance(result, pd.DataFrame):
        return result.copy(deep=not COPIES_ON_WRITE)
    return result.copy() if isinstance(result, list | dict) else result
