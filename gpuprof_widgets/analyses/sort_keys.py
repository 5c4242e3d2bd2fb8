"""The keys that sort an op table: ours, and every one that torch's own table takes."""

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
    close = difflib.get_close_matches(key, [*SORT_KEYS, *TORCH_KEYS], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return (
        f"unknown sort key {key!r}.{hint} Keys are {', '.join(SORT_KEYS)}, "
        f"and torch's: {', '.join(TORCH_KEYS)} (also with cuda or xpu for device)."
    )
