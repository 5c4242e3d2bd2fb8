"""Columns of tables: their units, how values are written, sort keys, and sums by group.

A column's name says its unit (``_ns``, ``bytes``, ``share``), so that the op table, the Python
functions and every view write and sort its values alike. The last part has the sums, percentiles
and means per group that the tables are made of.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import infer_dtype, is_integer_dtype

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.arrays import Floats, Ints, Rows

Unit = Literal[
    "text", "count", "number", "ns", "bytes", "flop", "share", "bytes/s", "flop/s",
    "moment", "change", "ratio", "address",
]  # fmt: skip
"""The unit of a column: ``moment`` is a time of the trace (ns), ``change`` a difference of times
(ns), ``ratio`` one time as a share of another."""

MOMENTS = ("start_ns", "end_ns", "ts_ns", "launch_ns", "first_ns", "last_ns")
"""Columns of moments of the trace; they are written so that ``--window`` takes them."""

ENDINGS: tuple[tuple[str, Unit], ...] = (
    ("delta_ns", "change"),
    ("bytes_per_s", "bytes/s"),
    ("flops_per_s", "flop/s"),
    ("_ns", "ns"),
    ("bytes", "bytes"),
    ("share", "share"),
    ("utilisation", "share"),
    ("efficiency", "share"),
    ("occupancy", "share"),
    ("flops", "flop"),
    ("address", "address"),
)
"""Units by the end of a column's name; the first match counts."""

UNITS = ("_ns", "_bytes_per_s", "_bytes", "_flops")
"""Ends of column names that a heading, and a sort key, may leave out."""

LINKS = (
    *("row", "before", "after", "op", "gpu", "copy", "cpu", "launch", "module", "forward"),
    *("release", "kernel", "parent", "node", "address", "track"),
)
"""Columns that refer to rows of the trace where they hold whole numbers."""

SIGNED = ("delta", "offset", "shift", "_memory", "increase")
"""Name parts of whole-number columns in which -1 is a value; elsewhere -1 means no value."""

WHOLE, FRACTIONS = "integer", ("floating", "mixed-integer-float")
"""What `infer_dtype` of pandas calls columns of numbers."""


def unit_of(table: pd.DataFrame, column: str) -> Unit:
    """Return the unit of a column: by its name for numbers, else "count", "number" or "text"."""
    kind = infer_dtype(table[column], skipna=True)
    if kind not in (WHOLE, *FRACTIONS):
        return "text"
    if column in MOMENTS:
        return "moment"
    plain: Unit = "count" if kind == WHOLE else "number"
    return next((unit for end, unit in ENDINGS if column.endswith(end)), plain)


def heading(column: str) -> str:
    """Return the name of a column without its unit, which every cell shows."""
    unit = next((unit for unit in UNITS if column.endswith(unit)), "")
    return column.removesuffix(unit)


def is_link(table: pd.DataFrame, column: str) -> bool:
    """Return whether a column refers to rows of the trace; readers need no such numbers."""
    return column in LINKS and is_integer_dtype(table[column])


def is_missing(value: Any) -> bool:
    """Return whether a cell is None, NaN, NA or NaT."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or value is pd.NA or value is pd.NaT or is_nan


def is_none(column: str, value: Any) -> bool:
    """Return whether a cell has no value: -1 is none in whole numbers that cannot be negative."""
    is_signed = any(part in column for part in SIGNED)
    return is_missing(value) or (isinstance(value, int) and value == -1 and not is_signed)


_TIMES = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))
_SIZES = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))
_RATES = ((1, "B/s"), (10**3, "kB/s"), (10**6, "MB/s"), (10**9, "GB/s"), (10**12, "TB/s"))
_FLOPS = ((1, "FLOP"), (10**3, "kFLOP"), (10**6, "MFLOP"), (10**9, "GFLOP"), (10**12, "TFLOP"))


def format_ns(ns: float) -> str:
    """Write a time in ns, as ``12.3 ms``; whole nanoseconds below one microsecond."""
    return _format(ns, _TIMES)


def format_bytes(size: float) -> str:
    """Write a size in bytes, as ``1.50 GiB``."""
    return _format(size, _SIZES)


def format_bandwidth(bytes_per_s: float) -> str:
    """Write bytes per second, as ``450 GB/s``: decimal, as in data sheets and nccl-tests."""
    return _format(bytes_per_s, _RATES)


def format_flops(flops: float) -> str:
    """Write a number of floating point operations, as ``2.71 MFLOP``."""
    return _format(flops, _FLOPS)


def format_share(share: float) -> str:
    """Write a share of one as a percentage, as ``38 %``; one decimal below ten percent."""
    percent = 100 * share
    if 0 < percent < 0.05:
        return "less than 0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def format_ratio(ratio: float) -> str:
    """Write one time as a share of another, as ``38 %``; from ten times on as ``434x``."""
    return format_share(ratio) if ratio < 10 else f"{ratio:,.0f}x"


def signed_ns(ns: float) -> str:
    """Write a difference of times with its sign: ``−61.0 ms``."""
    return f"{'−' if ns < 0 else '+' if ns > 0 else ''}{format_ns(abs(ns))}"


def format_count(count: int, noun: str) -> str:
    """Write a count with its noun: ``1 call``, ``320 calls``, ``12,345 calls``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _format(value: float, units: Sequence[tuple[int, str]]) -> str:
    """Write a value in the largest unit in which it is at least one after rounding."""
    fitting = [(size, unit) for size, unit in units if abs(value) / size >= 0.9995]
    size, unit = fitting[-1] if fitting else units[0]
    scaled = value / size
    magnitude = abs(scaled)
    is_whole = size == 1 and scaled == round(scaled)
    # Three significant digits.
    decimals = 0 if is_whole or magnitude >= 99.95 else 2 if magnitude < 9.995 else 1
    return f"{scaled:.{decimals}f} {unit}"


SORT_KEYS = {
    "calls": "calls",
    "cpu_total": "cpu_total_ns",
    "cpu_self": "cpu_self_ns",
    "cpu_average": "cpu_average_ns",
    "device_total": "device_total_ns",
    "device_self": "device_self_ns",
    "device_average": "device_average_ns",
    "cpu_memory": "cpu_memory_bytes",
    "cpu_self_memory": "cpu_self_memory_bytes",
    "device_memory": "device_memory_bytes",
    "device_self_memory": "device_self_memory_bytes",
    "flops": "flops",
}
"""Our sort keys, and the column that each sorts by, largest first."""

TORCH_KEYS = {
    "count": "calls",
    "cpu_time": "cpu_average",
    "cpu_time_total": "cpu_total",
    "self_cpu_time_total": "cpu_self",
    "cpu_memory_usage": "cpu_memory",
    "self_cpu_memory_usage": "cpu_self_memory",
    "device_time": "device_average",
    "device_time_total": "device_total",
    "self_device_time_total": "device_self",
    "device_memory_usage": "device_memory",
    "self_device_memory_usage": "device_self_memory",
}
"""torch's sort keys and ours; torch also has cuda, xpu or privateuse1 in place of device."""

PSTATS_KEYS = {
    "tottime": ("self_ns",),
    "cumtime": ("total_ns",),
    "cumulative": ("total_ns",),
    "time": ("self_ns",),
    "ncalls": ("calls",),
    "calls": ("calls",),
    "pcalls": ("primitive_calls",),
    "name": ("name",),
    "filename": ("file",),
    "module": ("file",),
    "line": ("line",),
    "nfl": ("name", "file", "line"),
    "stdname": ("file", "line", "name"),
}
"""Sort keys of pstats and ``%prun -s``, and the columns of a table of functions for each."""

PLACES = ("file", "line", "name")
"""Columns that pstats sorts in ascending order; all its numbers are in descending order."""


def report_keys(key: str) -> tuple[str, str]:
    """Return the sort keys of a report's op table and of its Python functions ("" for no key).

    A key of pstats alone sorts the Python functions and leaves the ops in their default order.
    """
    if key in PSTATS_KEYS and key not in SORT_KEYS:
        return "device_self", key
    sort_column(key)
    return key, ""


def sort_column(key: str) -> str:
    """Return the column that a key sorts by; raise an `OptionError` with the nearest known key."""
    device_key = re.sub("cuda|xpu|privateuse1", "device", key)
    ours = TORCH_KEYS.get(device_key, device_key)
    if ours in SORT_KEYS:
        return SORT_KEYS[ours]
    if ours in SORT_KEYS.values():
        return ours
    close = difflib.get_close_matches(key, [*SORT_KEYS, *TORCH_KEYS, *PSTATS_KEYS], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise OptionError(
        f"unknown sort key {key!r}.{hint} Keys are {', '.join(SORT_KEYS)}, "
        f"and torch's: {', '.join(TORCH_KEYS)} (also with cuda or xpu for device); of Python "
        f"functions pstats': {', '.join(PSTATS_KEYS)}."
    )


def sort_key(key: str) -> str:
    """Return our name of a sort key, as torch's "self_cpu_time_total" is our "cpu_self"."""
    column = sort_column(key)
    return next(ours for ours, name in SORT_KEYS.items() if name == column)


Numbers = Ints | Floats

PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99}


def group_rows(keys: Mapping[str, pd.Series | pd.Index | npt.NDArray[Any]]) -> tuple[Rows, Rows]:
    """Return per row the number of its group (equal in all keys), and each group's first row."""
    groups = np.zeros(1, np.intp)
    for key in keys.values():
        codes, values = pd.factorize(key, use_na_sentinel=False)
        groups, _ = pd.factorize(groups * len(values) + codes)
    return groups, np.flatnonzero(~pd.Series(groups).duplicated())


def group_sums(groups: npt.NDArray[np.integer], values: npt.ArrayLike, length: int) -> Ints:
    """Return per group the sum of its whole numbers, exactly; -1 means the last group."""
    sums = np.zeros(length, np.int64)
    np.add.at(sums, groups, np.asarray(values, np.int64))  # add.at is slow for other types
    return sums


def durations_by_group(groups: Rows, dur: Ints, length: int) -> pd.DataFrame:
    """Return one row per group with the distribution of its durations (ns).

    Columns: ``calls``, ``total_ns``, ``average_ns``, ``min_ns``, ``max_ns``, ``p50_ns``,
    ``p90_ns``, ``p99_ns`` (linear between neighbours, as in numpy and pandas), ``std_ns`` (of a
    sample; 0 for a single call).
    """
    order = np.lexsort((dur, groups))
    ordered, calls = dur[order], np.bincount(groups, minlength=length)
    first = np.cumsum(calls) - calls
    last = np.maximum(first + calls - 1, first)
    total = group_sums(groups, dur, length)
    average = total / np.maximum(calls, 1)
    percentiles = {}
    for name, q in PERCENTILES.items():
        place = np.asarray(first + q * (last - first), np.float64)
        low = np.floor(place).astype(np.intp)
        high = np.minimum(low + 1, last)
        percentiles[name] = ordered[low] + (place - low) * (ordered[high] - ordered[low])
    squares = np.zeros(length)
    np.add.at(squares, groups, (dur - average[groups]) ** 2)
    columns = {
        "calls": calls.astype(np.int64),
        "total_ns": total,
        "average_ns": average,
        "min_ns": ordered[first],
        "max_ns": ordered[last],
        **percentiles,
        "std_ns": np.sqrt(squares / np.maximum(calls - 1, 1)),
    }
    return pd.DataFrame(columns)


def weighted_mean(groups: Rows, values: Floats, weight: Ints, length: int) -> Floats:
    """Return per group the weighted mean of its known values; NaN where none has a weight."""
    known = ~np.isnan(values)
    groups, values, weight = groups[known], values[known], weight[known]
    weights = np.bincount(groups, weight, minlength=length)
    total = np.bincount(groups, values * weight, minlength=length)
    return np.asarray(total / np.where(weights > 0, weights, np.nan))


def most_of(groups: Rows, code: Ints, weight: Numbers, length: int) -> Rows:
    """Return per group the code with the most weight, -1 for none; of equals the smallest code."""
    codes = int(code.max(initial=0)) + 1
    pairs, pair = np.unique(groups * codes + code, return_inverse=True)
    share = np.bincount(pair, weight, minlength=len(pairs))
    group = pairs // codes
    order = np.lexsort((-pairs, share, group))
    best = order[np.append(np.diff(group[order]) != 0, True)[: len(order)]]
    heaviest = np.full(length, -1, np.intp)
    heaviest[group[best]] = pairs[best] % codes
    return heaviest


def different(groups: Rows, code: Ints, length: int) -> Ints:
    """Return per group the number of its different codes."""
    low = int(code.min(initial=0))
    codes = int(code.max(initial=0)) - low + 1
    pairs = np.unique(groups * codes + code - low)
    return np.bincount(pairs // codes, minlength=length).astype(np.int64)
