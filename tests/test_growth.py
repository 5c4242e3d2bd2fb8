"""No line of an analysis works with a square of events, nesting depth, threads, names or streams.

What each line of the package does is counted, on degenerate traces of a size and of four times it:
how often it runs, and how many bytes are allocated meanwhile, which is what one call of numpy or
pandas works on. A pass over all events takes four times as much then, or a little more where it
sorts; a pass per event, per level or per thread sixteen times.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses import plain_analyses
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.commands.printing import DEEPEST, INDENT, with_paths
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.writers.stacks import collapsed_stacks
from gpuprof_widgets.views.encoding import encode
from gpuprof_widgets.views.panels import regions as modules_shown
from gpuprof_widgets.views.panels.regions import modules_panel
from tests.traces import (
    MAIN_THREAD,
    Row,
    annotation,
    backward_op,
    block,
    cell_line,
    copy,
    gpu_annotation,
    kernel,
    memory,
    module,
    op,
    python,
    runtime,
    trace_of,
)

pytestmark = pytest.mark.slow

PACKAGE = str(Path(gpuprof_widgets.__file__).parent)

SIZE, TIMES = 40, 4
MOST = 6.5
"""How many times as much a line may do; sorting adds to the four, a square makes it sixteen."""

CONSIDERED_BYTES = 100_000
"""Lines that do less than this on the larger trace are left out: chance makes them differ."""

Line = tuple[str, int]


def work_of(job: Callable[[], object]) -> Counter[Line]:
    """Per line of the package the bytes that were allocated while it ran, and 64 for each run.

    What other packages do counts for the line that called them.
    """
    work: Counter[Line] = Counter()
    running: Line = ("", 0)
    before = 0

    def count(frame: FrameType, event: str, _: object) -> Callable[..., object]:
        nonlocal running, before
        work[running] += tracemalloc.get_traced_memory()[1] - before
        back = frame.f_back if event == "return" else None
        at = back or frame
        running = (at.f_code.co_filename, at.f_lineno)
        work[running] += 64
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        return count

    def began(frame: FrameType, event: str, given: object) -> Callable[..., object] | None:
        ours = frame.f_code.co_filename.startswith(PACKAGE)
        return count(frame, event, given) if ours else None

    outer = sys.gettrace()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    sys.settrace(began)
    try:
        job()
    finally:
        sys.settrace(outer)
        tracemalloc.stop()
        gc.enable()
    return work


def all_analyses(profile: Profile) -> None:
    """Every analysis of a record, the findings, the page and a window of it."""
    for one in plain_analyses():
        one.function(profile)
    for source in ("ops", "merged"):
        profile.call_tree(source=source)
    for level in ("line", "module", "op", "python"):
        profile.attribution(level)
    profile.owners(len(profile.trace) - 1)
    profile.what_if(str(profile.trace.slices["name"].iloc[0]))
    findings(profile)
    encode(profile)
    span = profile.trace.span_ns
    profile.window(span // 4, span - span // 4)


def launched(
    number: int, ts: int, dur: int, name: str = "gemm", thread: int = MAIN_THREAD, **given: Any
) -> list[Row]:
    """A launch and its kernel."""
    return [
        runtime("cudaLaunchKernel", ts=ts, dur=1, correlation=number, thread=thread),
        kernel(name, ts=ts + 3, dur=dur, correlation=number, **given),
    ]


def equal_times(n: int) -> list[Row]:
    """Everything begins and ends together, or takes no time at all."""
    made: list[Row] = []
    for number in range(n):
        made += [op(f"aten::op{number}", ts=5, dur=1000), annotation("a", ts=5, dur=1000)]
        made += [python(f"f.py({number}): f", ts=5, dur=1000), op("aten::none", ts=7, dur=0)]
        made += [kernel("gemm", ts=9, dur=9), kernel("none", ts=9, dur=0, stream=8)]
    return made


def one_stack(n: int) -> list[Row]:
    """A deep stack of every kind of region, and all that happens at its bottom."""
    made: list[Row] = []
    regions: tuple[Callable[..., Row], ...] = (op, module, python)
    for depth in range(n):
        ts, dur = 10 * depth, 40 * n - 20 * depth
        made += [make(f"n{depth}", ts=ts + at, dur=dur - 2 * at) for at, make in enumerate(regions)]
        made += [annotation("again", ts=ts + 4, dur=dur - 8)]
        made += [cell_line(depth, "f()", ts=ts + 5, dur=dur - 10)]
        made += [op("aten::item", ts=ts + 6, dur=dur - 12)]
        at = 10 * n + 8 * depth
        made += launched(depth + 1, at, 4)
        made += [runtime("cudaStreamSynchronize", ts=at + 2, dur=5)]
        made += [block(64, at=64 * depth + 64, ts=at, device=0, allocated=64, reserved=64 * n)]
    return made


def leaves_after_a_stack(n: int) -> list[Row]:
    """A recursion of one name whose frames each call once more, and slices that all cross."""
    made = [op("aten::add", ts=depth, dur=10 * n - 3 * depth) for depth in range(n)]
    made += [op("aten::mul", ts=10 * n - 2 * depth - 1, dur=1) for depth in range(n)]
    made += [op("aten::sub", ts=20 * n + depth, dur=2 * n, thread=200) for depth in range(n)]
    made += [python("f.py(1): f", ts=depth, dur=10 * n - 3 * depth) for depth in range(n)]
    made += [gpu_annotation("g", ts=depth, dur=10 * n) for depth in range(n)]
    for number in range(n):
        made += launched(number + 1, 5 * n + number, 2 * n, stream=number % 7)
    return made


def threads_and_streams(n: int) -> list[Row]:
    """As many threads, streams and names as there are events; every thread launches."""
    made: list[Row] = []
    for number in range(n):
        ts, thread = 20 * number, 1000 + number
        made += [op(f"aten::op{number}", ts=ts, dur=18, thread=thread)]
        made += [python(f"f.py({number}): f", ts=ts, dur=19, thread=thread)]
        made += [annotation(f"a{number}", ts=ts + 1, dur=16, thread=thread)]
        made += [cell_line(number, "f()", ts=ts + 2, dur=14, thread=thread)]
        made += launched(number + 1, ts + 3, 6, f"k{number}", thread, stream=number)
    return made


def backward_pass(n: int) -> list[Row]:
    """A forward and a backward op of each number, all of one name, and one launch of everything."""
    made = [cell_line(1, "f()", ts=0, dur=100 * n), *launched(1, 1, 5)]
    made += [
        runtime("cudaStreamBeginCapture", ts=2, dur=1),
        runtime("cudaLaunchKernel", ts=4, dur=1),
    ]
    made += [runtime("cudaStreamEndCapture", ts=6, dur=1)]
    for number in range(n):
        made += [op("aten::add", ts=10 + 8 * number, dur=6, sequence=number)]
        made += backward_op("AddBackward0", ts=10 * n + 8 * number, dur=6, sequence=number)
        made += [kernel("graph", ts=10 + 5 * number, dur=9, correlation=1, stream=8)]
        made += [runtime("cudaGraphLaunch", ts=20 * n + number, dur=1, correlation=number + 9)]
        made += [kernel("node", ts=20 * n + 5 * number, dur=5, correlation=number + 9)]
        made += [memory(64 - 128 * (number % 2), ts=10 + number, allocated=64, device=0)]
    return made


def long_row(n: int) -> list[Row]:
    """One parent of all, with steps, copies, collectives and gaps in between."""
    made = [op("aten::mm", ts=0, dur=60 * n), python("f.py(1): f", ts=0, dur=60 * n)]
    told = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 100}
    told |= {"Group size": 8, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    for number in range(n):
        ts = 50 * number
        made += [annotation(f"ProfilerStep#{number}", ts=ts, dur=50)]
        made += launched(3 * number + 1, ts + 1, 5)
        made += launched(3 * number + 2, ts + 8, 9, "ncclDevKernel_AllReduce", stream=20, **told)
        made += [runtime("cudaMemcpyAsync", ts=ts + 20, dur=3, correlation=3 * number + 3)]
        made += [copy(ts=ts + 25, dur=4, bytes=4096)]
        made += [runtime("cudaStreamSynchronize", ts=ts + 24, dur=8)]
    return made


SHAPES = (
    equal_times,
    one_stack,
    leaves_after_a_stack,
    threads_and_streams,
    backward_pass,
    long_row,
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_four_times_the_trace_is_not_sixteen_times_the_work(
    shape: Callable[[int], list[Row]],
) -> None:
    all_analyses(Profile(trace_of(*shape(SIZE * TIMES)).trace, None, {}))  # what is cached by name
    small, large = (read_and_analysed(shape(size)) for size in (SIZE, SIZE * TIMES))
    grown = {
        f"{Path(file).relative_to(PACKAGE)}:{line}": round(amount / small[file, line], 1)
        for (file, line), amount in large.items()
        if amount > CONSIDERED_BYTES and amount > MOST * small[file, line]
    }
    assert grown == {}


def read_and_analysed(rows: list[Row]) -> Counter[Line]:
    """The work of nesting and linking these events, and of all that is made of them."""

    def job() -> None:
        all_analyses(Profile(trace_of(*rows).trace, None, {}))

    return work_of(job)


def nested(n: int, make: Callable[..., Row]) -> list[Row]:
    """Regions of one kind in one another."""
    return [make(f"m{depth}", ts=depth, dur=2 * (n - depth)) for depth in range(n)]


def test_a_printed_tree_is_indented_so_far_and_then_says_how_deep_it_is() -> None:
    table = trace_of(*nested(DEEPEST + 9, op)).trace
    table = Profile(table, None, {}).call_tree(source="ops")
    names = with_paths(table, table, is_sorted=False)["name"].tolist()
    assert names[DEEPEST] == INDENT * DEEPEST + f"m{DEEPEST - 1}"
    assert names[-1] == f"{INDENT * DEEPEST}(+9) m{DEEPEST + 8}"
    assert sum(map(len, names)) < len(names) * (2 * DEEPEST + 20)


def test_modules_are_indented_so_far_and_the_note_says_so() -> None:
    deep = modules_panel(trace_of(*nested(modules_shown.DEEPEST + 5, module)))
    flat = modules_panel(trace_of(*nested(modules_shown.DEEPEST, module)))
    assert deep is not None
    assert flat is not None
    indents = [label.count(modules_shown.INDENT) for label in deep.rows["label"]]
    assert max(indents) == modules_shown.DEEPEST
    assert f"more than {modules_shown.DEEPEST} levels deep" in " ".join(deep.notes)
    assert "deep" not in " ".join(flat.notes)


def test_collapsed_stacks_hold_one_path_at_a_time() -> None:
    """All paths of a tree together are as long as the square of its depth."""
    depth = 3000
    tree = Profile(trace_of(*nested(depth, op)).trace, None, {}).call_tree(source="ops")
    tracemalloc.start()
    try:
        length = sum(map(len, collapsed_stacks(tree)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length > depth**2
    assert peak < 1000 * depth
