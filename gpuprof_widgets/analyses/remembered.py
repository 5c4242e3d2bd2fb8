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

UNKNOWN = object()
"""Stands for an answer that is not remembered: None may be one."""

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
    return _remembering(analysis, most=None)


def remembered_for_ranges(
    analysis: Callable[[Subject, *Others], Result],
) -> Callable[[Subject, *Others], Result]:
    """Do the same for the last two ranges of a record: each answer may be as large as the trace."""
    return _remembering(analysis, most=2)


def _remembering(
    analysis: Callable[[Subject, *Others], Result], most: int | None
) -> Callable[[Subject, *Others], Result]:
    results: WeakKeyDictionary[Subject, dict[Any, Any]] = WeakKeyDictionary()

    @functools.wraps(analysis)
    def once(subject: Subject, *others: *Others) -> Result:
        known = results.setdefault(subject, {})
        answer = known.get(others, UNKNOWN)
        if answer is UNKNOWN:
            answer = known[others] = analysis(subject, *others)
            if most is not None and len(known) > most:
                known.pop(next(iter(known)), None)
        result: Result = _protected(answer)
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
