"""Statistics of durations by group, for tables of many events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Groups = npt.NDArray[np.intp]
Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99}


def durations_by_group(groups: Groups, dur: npt.NDArray[np.int64], length: int) -> pd.DataFrame:
    """One row per group: what its durations (ns) are like.

    Columns: ``calls``, ``total_ns``, ``average_ns``, ``min_ns``, ``max_ns``, ``p50_ns``,
    ``p90_ns``, ``p99_ns`` (linear between neighbours, as numpy and pandas have it), ``std_ns``
    (of a sample; 0 for a single call).
    """
    order = np.lexsort((dur, groups))
    ordered, calls = dur[order], np.bincount(groups, minlength=length)
    first = np.cumsum(calls) - calls
    last = np.maximum(first + calls - 1, first)
    total = np.zeros(length, np.int64)
    np.add.at(total, groups, dur)
    average = total / np.maximum(calls, 1)
    squares = np.zeros(length)
    np.add.at(squares, groups, (dur - average[groups]) ** 2)
    columns = {
        "calls": calls.astype(np.int64),
        "total_ns": total,
        "average_ns": average,
        "min_ns": ordered[first],
        "max_ns": ordered[last],
        **{name: _percentile(ordered, first, last, q) for name, q in PERCENTILES.items()},
        "std_ns": np.sqrt(squares / np.maximum(calls - 1, 1)),
    }
    return pd.DataFrame(columns)


def weighted_mean(
    groups: Groups, values: npt.NDArray[np.float64], weight: npt.NDArray[np.int64], length: int
) -> npt.NDArray[np.float64]:
    """Per group the mean of the values that are known, weighted; NaN where none has a weight."""
    known = ~np.isnan(values)
    groups, values, weight = groups[known], values[known], weight[known]
    weights = np.bincount(groups, weight, minlength=length)
    total = np.bincount(groups, values * weight, minlength=length)
    return np.where(weights > 0, total / np.where(weights > 0, weights, 1), np.nan)


def most_of(groups: Groups, code: npt.NDArray[np.int64], weight: Numbers, length: int) -> Groups:
    """Per group the code that has most of its weight, -1 without any; ties: the smallest code."""
    codes = int(code.max(initial=0)) + 1
    pairs, pair = np.unique(groups * codes + code, return_inverse=True)
    share = np.bincount(pair, weight, minlength=len(pairs))
    group = pairs // codes
    order = np.lexsort((-pairs, share, group))
    best = order[np.append(np.diff(group[order]) != 0, True)[: len(order)]]
    found = np.full(length, -1, np.intp)
    found[group[best]] = pairs[best] % codes
    return found


def different(groups: Groups, code: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Per group: how many different codes it has."""
    low = int(code.min(initial=0))
    codes = int(code.max(initial=0)) - low + 1
    pairs = np.unique(groups * codes + code - low)
    return np.bincount(pairs // codes, minlength=length).astype(np.int64)


def group_rows(
    keys: Mapping[str, pd.Series | pd.Index | npt.NDArray[Any]],
) -> tuple[Groups, npt.NDArray[np.intp]]:
    """Per row the number of its group (equal in all keys), and the first row of each group."""
    each = [pd.factorize(key, use_na_sentinel=False) for key in keys.values()]
    groups = np.zeros(len(each[0][0]), np.int64)
    for codes, values in each:
        groups = pd.factorize(groups * max(len(values), 1) + codes)[0].astype(np.int64)
    first = np.empty(int(groups.max(initial=-1)) + 1, np.intp)
    first[groups[::-1]] = np.arange(len(groups))[::-1]  # the last one written is the first
    return groups.astype(np.intp), first


def _percentile(
    ordered: npt.NDArray[np.int64], first: Groups, last: Groups, q: float
) -> npt.NDArray[np.float64]:
    place = np.asarray(first + q * (last - first), np.float64)
    low = np.floor(place).astype(np.intp)
    high = np.minimum(low + 1, last)
    between = ordered[low] + (place - low) * (ordered[high] - ordered[low])
    return np.asarray(between, np.float64)
