"""Results that one report asks for several times, kept as long as their record or trace lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Subject = TypeVar("Subject")
Result = TypeVar("Result")


def remembered(analysis: Callable[[Subject], Result]) -> Callable[[Subject], Result]:
    """The same analysis, done once per record or trace; each caller gets a copy of its own."""
    results: WeakKeyDictionary[Subject, Any] = WeakKeyDictionary()

    @functools.wraps(analysis)
    def once(subject: Subject) -> Result:
        if subject not in results:
            results[subject] = analysis(subject)
        copy: Result = results[subject].copy()
        return copy

    return once
