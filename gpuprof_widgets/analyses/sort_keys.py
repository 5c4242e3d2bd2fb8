"""The keys that sort an op table (ours and torch's) and a table of Python functions (pstats')."""

from __future__ import annotations

import difflib
import re

from gpuprof_widgets.exceptions import OptionError

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
"""Our name of each key and the column that it sorts by, largest first."""

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
"""torch's name of each key and ours; torch also says cuda, xpu or privateuse1 for device."""


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
"""What ``%prun -s`` and pstats take, and the columns that it sorts a table of functions by."""

PLACES = ("file", "line", "name")
"""Columns of a table of functions that rise where pstats sorts by them; its numbers fall."""


def report_keys(key: str) -> tuple[str, str]:
    """What sorts the op table of a report, and its Python functions: "" where nobody asked.

    A key that only pstats has asks for the Python functions, and leaves the ops in their order.
    """
    if key in PSTATS_KEYS and key not in SORT_KEYS:
        return "device_self", key
    sort_column(key)
    return key, ""


def sort_column(key: str) -> str:
    """The column that a key sorts by; an `OptionError` that names the nearest key if unknown."""
    device_key = re.sub("cuda|xpu|privateuse1", "device", key)
    ours = TORCH_KEYS.get(device_key, device_key)
    if ours in SORT_KEYS:
        return SORT_KEYS[ours]
    if ours in SORT_KEYS.values():
        return ours
    raise OptionError(_unknown(key))


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key, [*SORT_KEYS, *TORCH_KEYS, *PSTATS_KEYS], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return (
        f"unknown sort key {key!r}.{hint} Keys are {', '.join(SORT_KEYS)}, "
        f"and torch's: {', '.join(TORCH_KEYS)} (also with cuda or xpu for device); of Python "
        f"functions pstats': {', '.join(PSTATS_KEYS)}."
    )
