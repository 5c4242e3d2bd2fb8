"""The search for the least merging with which a page fits into its budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, isqrt, log
from typing import TypeVar

Page = TypeVar("Page")

TRIES = 12
"""Most pages that are made in a search; most searches take three to five."""

ENOUGH = 0.85
"""Share of the budget from which on a page is large enough."""


@dataclass(frozen=True)
class Sized:
    """The size of the page on which events of at most ``longest_ns`` are merged."""

    longest_ns: int
    size: int


def least_merged(
    merged: Callable[[int], Page],
    size_of: Callable[[Page], int],
    *,
    span_ns: int,
    unmerged_size: int,
    budget: int,
) -> Page:
    """Return the page with the least merging that fits; if none fits, the one with the most.

    ``merged`` makes the page on which events of up to the given ns are merged; ``unmerged_size`` is
    above the budget. The page takes `ENOUGH` of the budget, unless `TRIES` do not find such a page.
    """
    large, small = Sized(1, unmerged_size), None
    longest_ns = isqrt(span_ns)
    for number in range(TRIES):
        page = merged(longest_ns)
        tried = Sized(longest_ns, size_of(page))
        if tried.size <= budget:
            best, small = page, tried
        elif longest_ns < span_ns:
            large = tried
        else:
            return page
        if small is None:
            longest_ns = span_ns
        elif small.size >= ENOUGH * budget or small.longest_ns <= large.longest_ns + 1:
            break
        else:
            share = _likely_share(large, small, budget) if number % 2 else 0.5
            longest_ns = _between(large, small, share)
    return best


def _likely_share(large: Sized, small: Sized, budget: int) -> float:
    """Return the share of the way from one to the other after which a power law of sizes fits."""
    wanted = budget * (1 + ENOUGH) / 2
    share = log(large.size / wanted) / log(large.size / small.size)
    return min(max(share, 0.1), 0.9)


def _between(large: Sized, small: Sized, share: float) -> int:
    """Return a length between these two, after such a share of the way on a scale of powers."""
    ratio = small.longest_ns / large.longest_ns
    length = round(large.longest_ns * exp(share * log(ratio)))
    return min(max(length, large.longest_ns + 1), small.longest_ns - 1)
