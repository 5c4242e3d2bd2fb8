"""Results that one report asks for several times, kept as long as their record lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from gpuprof_widgets.trace.model import Record

Result = TypeVar("Result")


def remembered(analysis: Callable[[Record], Result]) -> Callable[[Record], Result]:
    """The same analysis, done once per record; each caller gets a copy of its own to change."""
    results: WeakKeyDictionary[Record, Any] = WeakKeyDictionary()

    @functools.wraps(analysis)
    def once(record: Record) -> Result:
        if record not in results:
            results[record] = analysis(record)
        copy: Result = results[record].copy()
        return copy

    return once
