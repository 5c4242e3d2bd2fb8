"""Reading a large trace costs no more than a few times what unpacking and parsing it must cost.

Both are measured side by side in processes of their own, and only their ratio is tested: it says
the same on every machine. `make bench` compares more, more exactly.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.made_traces import SOURCE, make_trace
from benchmarks.routes import LOAD, PYTHON, STREAMED, ZLIB, Route
from gpuprof_widgets.trace.scanned_events import is_compiled

pytestmark = pytest.mark.slow

MILLIONS = 0.2
ROUNDS = 3
SECONDS = 300
MOST = 1.5 if is_compiled() else 4.0
"""It was 0.4 with the compiled scanner when this was written, and 1.0 without it."""

FLOOR = Route(
    PYTHON,
    "gunzip, a byte counted, and `json.loads`",
    f"sum(block.count(b'{{') for block in {ZLIB})\n"
    "json.loads(gzip.decompress(open(FILE, 'rb').read()))",
    f"import gzip, json, zlib\n{STREAMED}",
)


def cpu_seconds(route: Route, trace: Path) -> float:
    """CPU seconds of one run without its imports."""
    folder = trace.parent
    imports = route.usage_of_imports(trace, folder, SECONDS)
    return route.usage(trace, folder, SECONDS).cpu - imports.cpu


def test_loading_costs_a_few_times_the_least_that_it_can(tmp_path: Path) -> None:
    trace = make_trace(SOURCE, MILLIONS, tmp_path)
    ratios = [cpu_seconds(LOAD, trace.file) / cpu_seconds(FLOOR, trace.file) for _ in range(ROUNDS)]
    assert statistics.median(ratios) < MOST, ratios
