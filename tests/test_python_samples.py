"""`--python sampled`: what the samples say is true, and the cell runs as without them.

No machine is fast or idle enough to rely on: the code measures itself by the clocks, and what it
measured is compared with what the samples of the same run say.
"""

from __future__ import annotations

import dis
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.analyses.lines import sampled_lines
from gpuprof_widgets.capture import python_samples, stack_samplers
from gpuprof_widgets.capture.python_samples import DelayedStacks, Stack
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.sampled_frames import (
    ExactSlices,
    Frame,
    Sample,
    slices_of_samples,
    without_later_calls,
)
from gpuprof_widgets.capture.stack_samplers import (
    INTERVAL_NS,
    Stacks,
    ThreadSampler,
    TimerSampler,
)
from gpuprof_widgets.capture.torch_profiler import TorchRecording
from gpuprof_widgets.options import Options
from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import SAMPLED, SAMPLED_LINES
from tests.cells import cells_in, plain, recorded
from tests.traces import annotation, cell_line, op, trace_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="timers need Linux"),
]

NUMBER = stack_samplers._number()
SIGMAS = 4
BIAS = 0.02
"""What else a share may be off: signals are handled at the next jump or call."""


@dataclass
class Run:
    """A recording, the variables of its cell, and the samples of each thread that has a track."""

    record: Record
    names: dict[str, Any]
    threads: list[list[Sample]]

    @property
    def of_main(self) -> list[Sample]:
        return self.threads[0]

    @property
    def gaps(self) -> list[int]:
        """The times between the samples of all threads, the longest first."""
        pairs = (pair for samples in self.threads for pair in pairwise(samples))
        return sorted((two.at - one.at for one, two in pairs), reverse=True)

    @property
    def slack_ns(self) -> int:
        """How much the start or the end of a function may be off: the longest time without one."""
        return max(INTERVAL_NS, self.gaps[0])


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """Makes modules of the user's, in a folder that Python imports from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code).lstrip())
        made.append(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)


def run(body: str, **options: Any) -> Run:
    """Record a cell with samples."""
    threads: list[list[Sample]] = []

    def noted(samples: list[Sample], *rest: Any) -> Any:
        threads.append(samples)  # the run's are the first ones
        return slices_of_samples(samples, *rest)

    names: dict[str, Any] = {"__name__": "__main__", "gpuprof_widgets": gpuprof_widgets}
    chosen = {"python": "sampled", "lines": False, **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_samples, "slices_of_samples", noted)
        outcome, record = recorded(textwrap.dedent(body), names, **chosen)
    assert outcome.error == ""
    return Run(record, names, threads)


def frames(record: Record) -> Any:
    """The sampled frames, with ``function`` and ``lane``."""
    trace = record.trace
    python = np.flatnonzero(trace.tracks["kind"] == "python")
    table = trace.slices[trace.slices["track"].isin(python)]
    lane = trace.tracks["lane"].to_numpy()[table["track"]]
    function = [str(name).rpartition(": ")[2] for name in table["name"]]
    return table.assign(function=function, lane=lane)


def spent(record: Record, function: str) -> int:
    """The time in a function that does not call itself."""
    table = frames(record)
    return int(table.loc[table["function"] == function, "dur"].sum())


def lanes_with(record: Record, function: str) -> set[int]:
    table = frames(record)
    return set(table.loc[table["function"] == function, "lane"])


def region(trace: Trace) -> Any:
    """The region of the run."""
    (row,) = np.flatnonzero(
        (trace.slices["category"] == "user_annotation") & (trace.slices["name"] == "Cell [7]")
    )
    return trace.slices.iloc[row]


def run_lane(record: Record) -> int:
    return int(record.trace.tracks["lane"][region(record.trace)["track"]])


BUSY = """
import time
def spin(seconds):
    ended = time.perf_counter() + seconds
    while time.perf_counter() < ended:
        pass
"""


# The truth


ALTERNATING = """
import time
clock = time.perf_counter_ns

def work():
    total = 0
    for number in range(300):
        total += number
    return total

def alternate(x, duration):
    began = clock()
    ended, spent = began + duration, 0
    while (now := clock()) < ended:
        work()
        spent += clock() - now
        x.add(1)
    return spent, clock() - began
"""


@pytest.fixture(scope="module")
def alternating(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Python between short ops, each of which lets go of Python's lock."""
    folder = tmp_path_factory.mktemp("alternating")
    (folder / "alternating.py").write_text(ALTERNATING.lstrip())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        done = run("""
            import torch, alternating
            in_work, whole = alternating.alternate(torch.rand(2000), 700_000_000)
        """)
    sys.modules.pop("alternating", None)
    return done


def test_python_between_short_ops_has_the_share_that_the_clocks_say(alternating: Run) -> None:
    """A thread that reads stacks finds it in no sample: it runs only where an op lets it."""
    expected = alternating.names["in_work"] / alternating.names["whole"]
    found = spent(alternating.record, "work") / spent(alternating.record, "alternate")
    weights = np.array(alternating.gaps, dtype=float)
    error = sqrt(expected * (1 - expected) * float(np.square(weights).sum())) / weights.sum()
    assert 0.05 < expected < 0.95
    assert abs(found - expected) <= SIGMAS * error + BIAS
    noted = alternating.record.metadata["python_samples"]
    assert noted["by_signal"] is True
    assert noted["interval_ns"] == INTERVAL_NS
    assert noted["samples"] == len(alternating.of_main)
    assert alternating.record.metadata[SAMPLED] is True


def test_the_self_times_add_up_to_the_run(alternating: Run) -> None:
    """No gap and no crossing, except where a sample found nothing of the user's."""
    trace, table = alternating.record.trace, frames(alternating.record)
    parents = table.loc[table["parent"][table["parent"] >= 0].tolist()]
    children = table[table["parent"] >= 0]
    ends, ends_of_parents = children["ts"] + children["dur"], parents["ts"] + parents["dur"]
    assert (children["ts"].to_numpy() >= parents["ts"].to_numpy()).all()
    assert (ends.to_numpy() <= ends_of_parents.to_numpy()).all()
    below = children.groupby("parent")["dur"].sum().reindex(table.index, fill_value=0)
    own = table["dur"] - below
    samples = alternating.of_main
    without = sum(
        after.at - before.at
        for before, one, after in zip(samples, samples[1:], samples[2:], strict=False)
        if not one.stack
    )
    assert (own >= 0).all()
    assert 0 <= region(trace)["dur"] - int(own.sum()) <= without + 1  # it begins inside
    assert set(table["lane"]) == {run_lane(alternating.record)}


def test_sleeps_last_as_long_as_the_clocks_say(modules: Callable[[str, str], Any]) -> None:
    modules(
        "napping",
        """
        import time
        def short():
            time.sleep(0.05)
        def long():
            time.sleep(0.15)
        def measured(function):
            began = time.perf_counter_ns()
            function()
            return time.perf_counter_ns() - began
        """,
    )
    done = run("""
        import napping
        took = [napping.measured(one) for one in (napping.short, napping.long)]
    """)
    lines = sampled_lines(done.record).set_index(["file", "line"])
    for function, line, code, took in (
        ("short", 3, "time.sleep(0.05)", done.names["took"][0]),
        ("long", 5, "time.sleep(0.15)", done.names["took"][1]),
    ):
        row = lines.loc["napping.py", line]
        assert (row["code"], row["function"]) == (code, function)
        assert abs(spent(done.record, function) - took) <= 2 * done.slack_ns
        assert row["self_ns"] == row["total_ns"] == spent(done.record, function)


def test_a_call_that_lets_no_signal_in_is_the_time_of_its_line(
    modules: Callable[[str, str], Any], one_thread: None
) -> None:
    """Its samples all come as one, right after it, with those of an operator before it."""
    modules(
        "blocking",
        """
        import time
        def around(multiply, x, small):
            ended = time.perf_counter() + 0.02
            while time.perf_counter() < ended:
                pass
            small @ small
            y = multiply(x, x)
            ended = time.perf_counter() + 0.02
            while time.perf_counter() < ended:
                pass
            return y
        """,
    )
    done = run("""
        import numpy, torch, blocking
        x = torch.rand(2000, 2000)
        y = blocking.around(torch.mm, x, numpy.ones((700, 700)))
    """)
    slices = done.record.trace.slices
    (took,) = slices.loc[slices["name"] == "aten::mm", "dur"]
    lines = sampled_lines(done.record).set_index(["file", "line"])
    assert took > 5 * INTERVAL_NS
    slack = 2 * max(done.gaps[1], INTERVAL_NS) + INTERVAL_NS
    assert took - slack <= lines["self_ns"]["blocking.py", 7] <= done.gaps[0] + slack


def test_lines_without_calls_share_the_time_between_two_signals(
    modules: Callable[[str, str], Any],
) -> None:
    modules(
        "plain",
        """
        def plain(times):
            n = 1
            for i in range(times):
                n += i
                n ^= 3
                n -= 1
        """,
    )
    done = run("import plain\nplain.plain(3_000_000)")
    lines = sampled_lines(done.record).set_index(["file", "line"])["self_ns"]
    whole = lines["plain.py"].sum()
    assert all(0.03 * whole < lines["plain.py", line] < 0.7 * whole for line in (3, 4, 5, 6))


def test_an_operator_is_the_time_of_its_function(
    modules: Callable[[str, str], Any], one_thread: None
) -> None:
    """Its signals are handled after it: in the next function, or where it has returned to."""
    modules(
        "matrices",
        """
        def returned(a):
            return a @ a
        def more(y):
            return y + 1
        def before(a):
            y = a @ a @ a
            counted(y)
        def counted(y):
            return y.numel()
        def run(a, times):
            for _ in range(times):
                more(returned(a))
            for _ in range(times):
                before(a)
        """,
    )
    done = run("""
        import torch, matrices
        matrices.run(torch.rand(200, 200), 1_500)
    """)
    trace = done.record.trace
    ops = trace.slices[trace.slices["name"] == "aten::matmul"]
    assert len(ops) == 4_500
    for name, took in (
        ("returned", ops["dur"][:1_500].sum()),
        ("before", ops["dur"][1_500:].sum()),
    ):
        others = trace.span_ns - ops["dur"].sum()  # all else of the run, at most
        error = SIGMAS * sqrt(took * INTERVAL_NS) + BIAS * trace.span_ns
        assert took - error <= spent(done.record, name) <= took + others + error
    lines = sampled_lines(done.record).groupby("function")["self_ns"].sum()
    assert lines.get("more", 0) + lines.get("counted", 0) <= others + error


OPS_IN_OPS = """
import torch
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y = x @ w
        z = y + w
        return z.relu()
    @staticmethod
    def backward(ctx, given):
        return given, given
def apply(x, w, times):
    for _ in range(times):
        Own.apply(x, w)
"""


def test_a_line_has_its_op_inside_of_others(
    modules: Callable[[str, str], Any], one_thread: None
) -> None:
    modules("nested", OPS_IN_OPS)
    done = run("""
        import torch, nested
        x = torch.rand(200, 200, requires_grad=True)
        nested.apply(x, torch.rand(200, 200), 1_000)
    """)
    trace = done.record.trace
    took = trace.slices.loc[trace.slices["name"] == "aten::matmul", "dur"].sum()
    error = SIGMAS * sqrt(took * INTERVAL_NS) + BIAS * trace.span_ns
    lines = sampled_lines(done.record).set_index(["file", "line"])["self_ns"]
    assert took - error <= lines["nested.py", 5] <= trace.span_ns
    assert lines["nested.py"].drop(5).sum() <= trace.span_ns - took + error


def test_small_functions_have_the_time_of_their_instructions(
    modules: Callable[[str, str], Any],
) -> None:
    """Signals are handled only where they begin, and after they have returned."""
    modules(
        "small",
        """
        def long(a, b):
            x = a*b + a - b; y = x*x + a; z = [x, y, a, b]; w = (z[0] + z[1]) * (z[2] - z[3])
            c = {"a": x, "b": y, "c": w}; d = [c["a"], c["b"], c["c"]] * 3
            e = d[0]*d[1] + d[2]*d[3]; f = f"{e}{x}{y}{w}"; g = f + f + f
            return g[3:40] + g[:7] + f
        def short(a, b):
            x = a*b; y = [x, a, b]; z = f"{x}{a}"
            return z + z
        def run(times):
            for i in range(times):
                long(i, 3)
                short(i, 5)
        """,
    )

    def told() -> tuple[int, int]:
        record = run("import small\nsmall.run(1_000_000)").record
        return spent(record, "short"), spent(record, "long")

    # It takes a fourth. On a busy machine a run may be off; all are, where samples stay where
    # their signal was handled.
    assert any(0 < short < long / 2 for short, long in (told() for _ in range(4)))


def test_a_collection_of_garbage_in_the_handler_silences_no_samples() -> None:
    done = run("""
        import gc, sys, time
        collected = []
        def slow(phase, info):
            if not collected and sys._getframe(1).f_code.co_name == "sample_stack":
                collected.append(time.perf_counter() + 0.1)
                while time.perf_counter() < collected[0]:
                    pass
        gc.callbacks.append(slow)
        gc.set_threshold(10, 1_000_000)
        began, kept = time.perf_counter(), []
        while not collected and time.perf_counter() < began + 60:
            kept.append([])
        gc.callbacks.remove(slow)
        gc.set_threshold(700)
        ended = time.perf_counter() + 0.5
        while time.perf_counter() < ended:
            pass
        after = ended - began
    """)
    assert done.names["collected"]
    of_run = region(done.record.trace)
    ended = of_run["ts"] + of_run["dur"]
    assert sum(sample.at > ended - 400_000_000 for sample in done.of_main) > 5


def test_two_files_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    code = "def {}():\n    ended = clock() + 0.03\n    while clock() < ended:\n        pass\n"
    names: dict[str, Any] = {}
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "same.py"
        path.write_text(code.format(folder))
        names[folder] = {"clock": time.perf_counter}
        exec(compile(path.read_text(), str(path), "exec"), names[folder])
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("one", "two"):
            patch.syspath_prepend(str(tmp_path / folder))
        with Recorder(Options(python="sampled"), label="the run") as recorder:
            names["one"]["one"]()
            names["two"]["two"]()
    lines = sampled_lines(recorder.record())
    files = lines.groupby("function")["file"].unique()
    assert len(files["one"]) == len(files["two"]) == 1
    assert files["one"][0] != files["two"][0]


RUN = annotation("the run", ts=0, dur=100_000_000)
MS = 1_000_000
ONE, OTHER = (Frame("a.py(1): one", 2),), (Frame("a.py(5): other", 6),)


def found_in(*rows: Any, at: Any) -> list[Any]:
    """Name, start and end (ms) of the functions that samples at these moments (ms) find in turn."""
    trace = trace_of(RUN, *rows).trace
    exact = ExactSlices(trace).of_lane(0)
    samples = [
        Sample(round(moment * MS), round(moment * MS), (ONE, OTHER)[number % 2])
        for number, moment in enumerate(at)
    ]
    found = slices_of_samples(samples, 1, exact, 0, 100 * MS)
    assert [one.args[SAMPLED_LINES][0][0] for one in found] == [0] * len(found)
    return [(one.name[-3:], one.ts / MS, (one.ts + one.dur) / MS) for one in found]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [op("between both", ts=int(2.5 * MS), dur=MS)],
        [op("at the first", ts=MS, dur=int(2.5 * MS))],
        [op("at the second", ts=int(2.5 * MS), dur=3 * MS)],
        [op("around both", ts=MS, dur=20 * MS)],
    ],
    ids=lambda rows: rows[0].name if rows else "no op",
)
def test_a_function_lasts_to_the_middle_between_two_samples(rows: list[Any]) -> None:
    assert found_in(*rows, at=(2, 4)) == [("one", 0, 3), ("her", 3, 100)]


def test_what_was_found_in_a_long_op_lasts_as_long_as_that() -> None:
    """Even where a sample of what runs outside of it is nearer."""
    long = op("long", ts=4 * MS, dur=50 * MS)
    found = [("one", 0, 4), ("her", 4, 54), ("one", 54, 100)]
    assert found_in(long, at=(3, 6, 60)) == found
    assert found_in(long, at=(3, 53, 60)) == found


def test_what_runs_between_long_ops_stands_for_the_times_when_it_was_not_found() -> None:
    rows = [op("long", ts=start * MS, dur=8 * MS) for start in (1, 10, 19)]
    found = found_in(*rows, at=(2, 9.5, 11))  # the second one is between the first two ops
    assert found[1:5] == [("one", 1, 9), ("her", 9, 10), ("one", 10, 18), ("her", 18, 19)]


@pytest.mark.parametrize(("op_ms", "python_ms"), [(12, 1.3), (3, 2), (5, 20)])
def test_neither_ops_nor_what_runs_between_them_gets_more_than_its_time(
    op_ms: float, python_ms: float
) -> None:
    """The signals that come in an op are handled when it ends."""
    random, period = np.random.default_rng(7), op_ms + python_ms
    shares = []
    for _ in range(30):
        lengths = random.uniform(0.6, 1.4, (2, round(100 / period) + 2)) * [[python_ms], [op_ms]]
        edges = np.cumsum(lengths.T.ravel())
        ends = edges[edges < 99]
        ops = list(zip(ends[::2], ends[1::2], strict=False))  # after Python, each
        planned = np.cumsum(random.uniform(1, 3, 200)) + random.uniform(0, 2)
        samples: list[Sample] = []
        before = None
        for moment in planned[planned < ends[-1]]:
            inside = next((one for one in ops if one[0] <= moment < one[1]), None)
            at, stack = round(moment * MS), OTHER if inside else ONE
            if inside and inside == before:
                samples[-1] = samples[-1]._replace(until=at)
            else:
                samples.append(Sample(at, at, stack))
            before = inside
        rows = [op("x", ts=round(a * MS), dur=round((b - a) * MS)) for a, b in ops]
        trace = trace_of(RUN, *rows).trace
        exact = ExactSlices(trace).of_lane(0)
        found = slices_of_samples(samples, 1, exact, 0, round(ends[-1] * MS))
        in_ops = sum(one.dur for one in found if one.name.endswith("other"))
        shares.append((in_ops - sum(row.dur for row in rows)) / (ends[-1] * MS))
    error = 4 * float(np.std(shares)) / sqrt(len(shares))
    assert abs(float(np.mean(shares))) <= error + 0.003
    assert error < 0.06


CELL = Frame("Cell [7](1): <module>", 6, is_cells=True)
INNER = Frame("Cell [7](1): inner", 3, is_cells=True)


def rows_of_lines(*lines: tuple[int, int, int]) -> ExactSlices:
    """The number, start and end (ms) of each."""
    rows = [cell_line(one, "x", ts=ts * MS, dur=(end - ts) * MS) for one, ts, end in lines]
    trace = trace_of(RUN, *rows).trace
    return ExactSlices(trace).of_lane(0)


@pytest.mark.parametrize(
    ("at", "read", "stack", "kept"),
    [
        (11, 13, [CELL, *ONE], 2),  # both in line 5
        (9, 11, [CELL, *ONE], 1),  # in the head of the loop, then in line 5
        (19, 31, [CELL, *ONE], 1),  # in line 5, then in line 6
        (39, 45, [CELL._replace(line=4), *ONE], 1),  # in line 6, then in the head of the loop
        (39, 45, [*OTHER, CELL._replace(line=4), *ONE], 2),
        (99, 101, [*OTHER, *ONE], 2),  # no frame of a cell
        (61, 66, [CELL, INNER._replace(line=1), *ONE], 2),  # in a line of `inner`, then in none
        (61, 71, [CELL, INNER, *ONE], 2),  # in one line of `inner`, then in the next
    ],
)
def test_what_a_later_line_calls_was_not_there_before(
    at: int, read: int, stack: list[Frame], kept: int
) -> None:
    cell = [one._replace(line=7) if one is CELL and at > 50 else one for one in stack]
    exact = rows_of_lines(
        *((4, 5, 49), (5, 10, 20), (6, 30, 40)),
        *((7, 50, 80), (2, 60, 65), (3, 70, 75), (8, 80, 90)),
    )
    found = without_later_calls(cell, at * MS, read * MS, exact)
    assert found == tuple(cell[:kept])


SMALL = """
def square(x):
    return x @ x
def outer(x):
    for _ in x:
        double(square(x))
def double(x):
    return x + x
"""


class Written:
    """Stacks written by hand: each frame is a function and the number of its instruction."""

    def __init__(self) -> None:
        names: dict[str, Any] = {}
        exec(compile(SMALL, "users.py", "exec"), names)
        self.codes = {name: names[name].__code__ for name in ("square", "outer", "double")}
        self.stacks = Stacks()

    def stack(self, *frames: tuple[str, str, int]) -> Stack:
        """Outermost first."""
        numbers: list[int] = []
        for function, opname, nth in reversed(frames):
            code = self.codes[function]
            self.stacks.codes[id(code)] = code
            at = [one.offset for one in dis.get_instructions(code) if one.opname == opname]
            numbers += (id(code), at[nth])
        return tuple(numbers)

    def add(self, *frames: tuple[str, str, int]) -> int:
        return self.stacks.number.setdefault(self.stack(*frames), self.stacks.next_number())


IN_SQUARE = (("outer", "CALL", 0), ("square", "BINARY_OP", 0))
SQUARE_BEGINS = (("outer", "CALL", 0), ("square", "RESUME", 0))
DOUBLE_BEGINS = (("outer", "CALL", 1), ("double", "RESUME", 0))


@pytest.mark.parametrize(
    ("note_ms", "ops", "has_it"),
    [
        (12, ["aten::mm"], True),  # in the op of that moment
        (90, ["aten::mm"], True),  # in another op of that name
        (90, ["aten::add"], False),
        (41, [], True),  # of another moment, in long code of C without an op
        (90, [], False),
    ],
)
def test_an_op_that_has_ended_was_called_where_it_was_noted(
    note_ms: int, ops: list[str], has_it: bool
) -> None:
    written = Written()
    written.add(*SQUARE_BEGINS)
    in_square, read = written.add(*IN_SQUARE), written.add(*DOUBLE_BEGINS)
    trace = trace_of(RUN, op("aten::mm", ts=10 * MS, dur=10 * MS)).trace
    stacks = DelayedStacks(written.stacks)
    stacks.note(note_ms * MS, in_square, ops)
    at, exact = 40 if note_ms == 41 else 15, ExactSlices(trace).of_lane(0)
    found = stacks.in_op(at * MS, (at + 10) * MS, exact)
    assert found == (written.stack(*IN_SQUARE) if has_it else None)
    assert stacks.in_op(at * MS, (at + 1) * MS - 1, exact) is None  # the op goes on
    assert read == 2


def test_between_ops_what_has_returned_and_what_called_it_have_their_turns() -> None:
    """But what has only begun had no time, and what hears of signals is called by nothing."""
    written = Written()
    written.add(*SQUARE_BEGINS)
    read = written.add(*DOUBLE_BEGINS)
    ours = written.codes["double"].replace(co_filename=python_samples.__file__)
    written.codes["heard"] = ours
    written.add(("outer", "CALL", 0), ("heard", "BINARY_OP", 0))
    stacks = DelayedStacks(written.stacks)
    found = [stacks.before(read) for _ in range(1_000)]
    names = {id(code): name for name, code in written.codes.items()}
    assert {names[one[0]] for one in found} == {"square", "outer"}
    assert 0.2 < sum(names[one[0]] == "square" for one in found) / len(found) < 0.8


def test_each_run_of_a_line_has_calls_of_its_own(modules: Callable[[str, str], Any]) -> None:
    modules("spinning", f"{BUSY}\ndef one():\n    spin(0.005)\ndef other():\n    spin(0.003)\n")
    done = run(
        """
        from spinning import one, other
        for turn in range(10):
            one()
            other()
        """,
        lines=True,
    )
    slices, table = done.record.trace.slices, frames(done.record)
    for function, code in (("one", "one()"), ("other", "other()")):
        lines = slices[slices["name"].astype(str).str.endswith(f": {code}")]
        called = table[table["function"] == function]
        starts, ends = lines["ts"].to_numpy(), (lines["ts"] + lines["dur"]).to_numpy()
        which = np.searchsorted(starts, (called["ts"] + called["dur"] // 2).to_numpy()) - 1
        assert len(lines) == 10
        assert len(set(which)) == len(which) > 0  # a busy machine may have lost some
        assert (called["ts"].to_numpy() > starts[which]).all()
        assert ((called["ts"] + called["dur"]).to_numpy() <= ends[which]).all()


# The user's cell comes first


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times as many samples, so that they come at every place of a short cell."""
    monkeypatch.setattr(stack_samplers, "INTERVAL_NS", INTERVAL_NS // 20)


CELLS = cells_in("tricky_cells.txt") | cells_in("loops_and_functions.txt")


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_behaves_as_without_samples(cell: str, often: None) -> None:
    expected = plain(CELLS[cell])
    outcome, _ = recorded(CELLS[cell], python="sampled")
    assert outcome == expected


PATIENT = {
    "an interrupt during a sleep": """
        import os, signal, threading, time
        def nap():
            time.sleep(30)
        threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()

        nap()
    """,
    "an interrupt of a loop that is caught": """
        import os, signal, threading
        try:
            threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                pass
        except KeyboardInterrupt:
            caught = True
    """,
    "an alarm that raises": """
        import signal, time
        def ring(number, frame):
            raise TimeoutError("rung")
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            time.sleep(30)
        except TimeoutError as error:
            told = str(error)
        signal.signal(signal.SIGALRM, before)
    """,
    "select and poll": """
        import os, select, time
        read, write = os.pipe()
        began = time.monotonic()
        nothing = select.select([read], [], [], 0.03)
        poll = select.poll()
        poll.register(read)
        none = poll.poll(30)
        waited = time.monotonic() - began >= 0.06
        os.write(write, b"x")
        ready = select.select([read], [], [], 0.03)[0] == [read]
        os.close(read); os.close(write)
        del read, write, poll, began
    """,
    "signals that are waited for": """
        import signal, threading
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        main = threading.get_ident()
        threading.Timer(0.03, signal.pthread_kill, (main, signal.SIGUSR1)).start()
        came = signal.sigwaitinfo([signal.SIGUSR1]).si_signo
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    """,
    "another program": """
        import subprocess
        done = subprocess.run(["sh", "-c", "sleep 0.05; echo done; exit 3"], capture_output=True)
        shown = done.stdout, done.stderr, done.returncode
        try:
            subprocess.run(["sleep", "30"], timeout=0.03)
        except subprocess.TimeoutExpired as error:
            late = error.cmd
        import os
        status = os.system("sleep 0.02; exit 2")
    """,
    "its threads": """
        import threading, time
        counted = threading.active_count(), sorted(one.name for one in threading.enumerate())
        thread = threading.Thread(target=time.sleep, args=(0.1,), name="one")
        thread.start()
        more = threading.active_count()
        thread.join()
        del thread
    """,
    "recursion near the limit": """
        import time
        def deepest(depth=0):
            try:
                return deepest(depth + 1)
            except RecursionError:
                return depth
        def deep(left):
            if left:
                return deep(left - 1) + 1
            ended = time.perf_counter() + 0.15
            while time.perf_counter() < ended:
                pass
            return 0
        most = deepest() - 30
        reached = deep(most) == most > 100
        del most
    """,
}


@pytest.mark.parametrize("cell", PATIENT)
def test_a_cell_that_takes_its_time_does_as_well(cell: str, often: None) -> None:
    body = textwrap.dedent(PATIENT[cell]).strip()
    expected = plain(body)
    outcome, record = recorded(body, python="sampled")
    assert outcome == expected
    assert record.metadata["python_samples"]["samples"] > 0


def test_a_traceback_of_a_block_has_none_of_our_frames(often: None) -> None:
    def failing() -> None:
        with gpuprof_widgets.profile(quiet=True, python="sampled") as profile:
            kept.append(profile)
            spin_for(0.02)
            raise ZeroDivisionError("division by zero")

    kept: list[Profile] = []
    with pytest.raises(ZeroDivisionError) as caught:
        failing()
    assert [entry.name for entry in caught.traceback][1:] == ["failing"]
    assert kept[0].metadata["error"] == "ZeroDivisionError: division by zero"
    assert kept[0].metadata["python_samples"]["samples"] >= 2


# Nothing is left behind


def timers() -> str:
    file = Path("/proc/self/timers")
    return file.read_text() if file.exists() else ""


def threads_of_system() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Of a recording inside; a thread of the system ends some moments after Python's part of it."""
    recorded("import torch\ntorch.ones(3).sum()", python="sampled")  # libraries start their threads
    before, switching = threads_of_system(), sys.getswitchinterval()
    count, running = threading.active_count(), len(sys._current_frames())
    yield
    ended = time.monotonic() + 30
    while threads_of_system() - before and time.monotonic() < ended:
        time.sleep(0.001)
    assert threads_of_system() <= before
    assert signal.getsignal(NUMBER) is signal.SIG_DFL
    assert NUMBER not in signal.sigpending()
    assert timers() == ""
    assert sys.getswitchinterval() == switching
    assert (threading.active_count(), len(sys._current_frames())) == (count, running)


@pytest.mark.parametrize("end", ["", "1 / 0", "raise KeyboardInterrupt", "raise SystemExit(3)"])
@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left_after_a_recording(end: str) -> None:
    seen: list[Any] = []
    names = {"look": lambda: seen.append((signal.getsignal(NUMBER), timers()))}
    recorded(f"{BUSY}\nspin(0.02)\nlook()\n{end}", names, python="sampled")
    ((handler, of_system),) = seen
    assert callable(handler)
    assert of_system or not Path("/proc/self/timers").exists()


@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left_where_torch_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no torch today")

    monkeypatch.setattr(TorchRecording, "start", fail)
    recorder = Recorder(Options(python="sampled"), label="the run")
    with recorder:
        torch.ones(3)
    with pytest.raises(gpuprof_widgets.GpuprofError, match="no torch today"):
        recorder.record()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("sampler", [TimerSampler, ThreadSampler])
def test_a_sampler_that_cannot_start_costs_the_samples_alone(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sampler, "start", fail)
    outcome, record = recorded(f"{BUSY}\nspin(0.02)", python="sampled")
    assert outcome.error == ""
    assert len(frames(record)) == 0
    assert SAMPLED not in record.metadata
    (note,) = [note for note in record.metadata["notes"] if "samples" in note]
    assert note.startswith(
        "no samples of Python: its recording could not start: RuntimeError: can't start"
    )
    assert "no samples of lines" in sampled_lines(record).attrs["lacks"]


@pytest.mark.usefixtures("nothing_left")
def test_a_number_that_the_program_uses_is_left_to_it() -> None:
    """Then a thread samples, as elsewhere."""
    rung: list[int] = []
    handler: Any = lambda number, frame: rung.append(number)  # noqa: E731
    signal.signal(NUMBER, handler)
    try:
        done = run(f"{BUSY}\nspin(0.3)")
        assert signal.getsignal(NUMBER) is handler
    finally:
        signal.signal(NUMBER, signal.SIG_DFL)
    assert rung == []
    assert done.record.metadata["python_samples"]["by_signal"] is False


def test_a_handler_that_the_cell_sets_stays_and_gets_no_more_of_our_signals() -> None:
    done = run(f"""{BUSY}
import signal
came = []
def mine(number, frame): came.append(number)
signal.signal({NUMBER}, mine)
spin(0.2)
""")
    assert signal.getsignal(NUMBER) is done.names["mine"]
    assert len(done.names["came"]) <= 1  # which was on its way
    signal.signal(NUMBER, signal.SIG_DFL)


class Interrupted(dict[tuple[int, ...], int]):
    """Stacks by which a Ctrl-C comes while a signal's handler looks up the third."""

    def setdefault(self, stack: tuple[int, ...], number: int = 0) -> int:
        if number == 2:
            raise KeyboardInterrupt
        return super().setdefault(stack, number)


def test_samples_go_on_where_an_error_ended_a_handler_early() -> None:
    stacks = Stacks()
    stacks.number = Interrupted()
    timer = TimerSampler(stacks)
    threads = ThreadSampler(stacks, timer)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(60)
    seen = len(timer.samples.numbers)
    threads.start()
    ended = time.monotonic() + 60
    while len(timer.samples.numbers) == seen and time.monotonic() < ended:
        pass
    threads.stop()
    timer.stop()
    assert len(timer.samples.numbers) > seen


def test_a_call_that_lets_no_signal_in_is_interrupted_once() -> None:
    """C code that begins a wait anew after each signal would never end."""
    timer = TimerSampler(Stacks())
    timer.start()
    sent: list[int] = []
    timer._send = sent.append  # type: ignore[method-assign]
    timer.keep_going(time.perf_counter_ns() + 10**9)
    timer.stop()
    assert sent == []


BLOCKED = f"""
import signal, time
from gpuprof_widgets.capture.stack_samplers import Stacks, TimerSampler
{BUSY}
sampler = TimerSampler(Stacks())
sampler.start()
assert not sampler.lost
before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while {NUMBER} not in signal.sigpending():
    spin(0.002)
sampler.stop()
print({NUMBER} in signal.sigpending())
signal.pthread_sigmask(signal.SIG_SETMASK, before)
print("alive")
"""


def test_a_last_signal_that_waits_behind_a_mask_is_dropped() -> None:
    """By default it would end the process, once the mask is gone."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\nalive\n"), done.stderr


# Threads, processes and tasks


AT_WORK = """
import time
def grind():
    ended = time.thread_time() + 0.1
    while time.thread_time() < ended:
        pass
def stroll():
    ended = time.thread_time() + 0.1
    while time.thread_time() < ended:
        pass
"""


def test_a_thread_of_the_cell_has_a_track_with_its_functions() -> None:
    done = run(f"""{AT_WORK}
import threading
thread = threading.Thread(target=grind)
thread.start()
thread.join()
number = str(thread.native_id)
del thread
stroll()
""")
    record, tracks = done.record, done.record.trace.tracks
    (lane,) = lanes_with(record, "grind")
    assert lane != run_lane(record)
    (track,) = tracks[(tracks["lane"] == lane) & (tracks["kind"] == "python")].to_dict("records")
    assert track["thread"] == done.names["number"]
    assert "grind" not in set(sampled_lines(record)["function"])
    assert lanes_with(record, "join") == lanes_with(record, "stroll") == {run_lane(record)}
    table = frames(record)
    ended = (table["ts"] + table["dur"]).groupby(table["function"]).max()
    assert ended["grind"] - ended["join"] <= 2 * done.slack_ns  # not to the end of the run


def test_threads_one_after_another_have_tracks_of_their_own() -> None:
    """The system gives the number of a thread that has ended to the next one."""
    done = run(f"""{AT_WORK}
import threading
for _ in range(3):
    thread = threading.Thread(target=grind)
    thread.start()
    thread.join()
    time.sleep(0.05)
del thread
""")
    assert len(lanes_with(done.record, "grind")) == 3


def test_a_thread_that_runs_ops_has_its_frames_beside_these() -> None:
    done = run("""
        import threading, time, torch
        def grind():
            ended = time.thread_time() + 0.1
            while time.thread_time() < ended:
                torch.ones(3).sin()
        torch.ones(3).sin()
        thread = threading.Thread(target=grind)
        thread.start()
        thread.join()
        del thread
    """)
    tracks = done.record.trace.tracks
    (lane,) = lanes_with(done.record, "grind")
    assert tracks.loc[tracks["lane"] == lane, "kind"].tolist()[-1] == "python"
    assert tracks["lane"].tolist() == sorted(tracks["lane"])


def test_so_has_a_pool_but_no_thread_that_waits() -> None:
    idle, at_work = threading.Event(), threading.Event()
    waiting = threading.Thread(target=idle.wait)
    waiting.start()
    before = ThreadPoolExecutor(1)
    before.submit(at_work.set).result()
    names = {"__name__": "__main__", "before": before}
    body = f"""{AT_WORK}
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    both = [pool.submit(grind), pool.submit(grind)]
    kept = before.submit(stroll)
    done = [one.result() for one in [*both, kept]]
del both, kept, pool
"""
    outcome, record = recorded(body, names, python="sampled", lines=False)
    idle.set()
    waiting.join()
    before.shutdown()
    assert outcome.error == ""
    of_pool, of_before = lanes_with(record, "grind"), lanes_with(record, "stroll")
    assert len(of_pool) in (1, 2)
    assert len(of_before) == 1
    lanes = set(frames(record)["lane"])
    assert lanes == {run_lane(record)} | of_pool | of_before


def test_a_fork_runs_on_and_its_parent_is_recorded() -> None:
    done = run(f"""{BUSY}
import os, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
if child == 0:
    spin(0.02)
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def behind():
    began = time.perf_counter_ns()
    spin(0.03)
    return time.perf_counter_ns() - began
took = behind()
""")
    assert done.names["status"] == 7
    assert abs(spent(done.record, "behind") - done.names["took"]) <= 2 * done.slack_ns
    assert done.record.metadata["python_samples"]["by_signal"] is True


def test_the_workers_of_a_data_loader_work() -> None:
    done = run("""
        from torch.utils.data import DataLoader
        from tests.loaders import Decoded
        batches = [batch[:, 0].tolist() for batch in DataLoader(Decoded(8), 2, num_workers=2)]
    """)
    assert done.names["batches"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert run_lane(done.record) in lanes_with(done.record, "_try_get_data")


# Windows, and other options


@pytest.mark.usefixtures("nothing_left")
def test_windows_are_one_after_the_other() -> None:
    done = run(f"""{BUSY}
took = dict()
def within(step):
    began = time.perf_counter_ns()
    spin(0.02)
    took[step] = time.perf_counter_ns() - began
for step in gpuprof_widgets.steps(range(9), wait=1, warmup=1, active=2, repeat=2):
    within(step)
""")
    record = done.record
    windows = record.metadata["steps"]["windows"]
    assert len(windows) == 2
    table = frames(record)
    table = table[table["function"] == "within"]
    for one in windows:
        inside = table[(table["ts"] >= one["start_ns"])]
        inside = inside[inside["ts"] < one["start_ns"] + one["dur_ns"]]
        took = sum(done.names["took"][one["first_step"] + number] for number in range(2))
        assert (inside["ts"] + inside["dur"] <= one["start_ns"] + one["dur_ns"]).all()
        assert abs(int(inside["dur"].sum()) - took) <= 2 * done.slack_ns
    assert len(set(table["lane"])) == 1
    assert int((record.trace.tracks["kind"] == "python").sum()) == 1


def test_exact_frames_leave_no_room_for_samples() -> None:
    record = run("def inner(): pass\nfor _ in range(20): inner()", stack=True).record
    assert int((frames(record)["function"] == "inner").sum()) == 20
    assert not {SAMPLED, "python_samples"} & set(record.metadata)
    assert SAMPLED_LINES not in record.trace.args


def test_a_run_that_is_too_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_samplers, "INTERVAL_NS", 3_600 * 10**9)
    outcome, record = recorded("x = 1", python="sampled")
    assert outcome.error == ""
    assert SAMPLED not in record.metadata
    (note,) = [note for note in record.metadata["notes"] if "sampled" in note]
    assert note.startswith("Python was not sampled: the run was too short")


def spin_for(seconds: float) -> None:
    ended = time.perf_counter() + seconds
    while time.perf_counter() < ended:
        pass


def test_a_loop_that_handles_signals_is_not_flooded_with_ours(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each signal would write a byte into its pipe, which is full after some hundred."""
    monkeypatch.setattr(stack_samplers, "INTERVAL_NS", INTERVAL_NS // 20)
    done = run("""
        import asyncio, signal, time
        async def main():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, print)
            ended = time.perf_counter() + 0.2
            while time.perf_counter() < ended:
                pass
            loop.remove_signal_handler(signal.SIGUSR1)
        asyncio.run(main())
    """)
    assert "wakeup" not in capfd.readouterr().err
    assert not done.record.metadata["python_samples"]["by_signal"]
    assert [note for note in done.record.metadata["notes"] if "event loop" in note]
    assert spent(done.record, "main") > 0


def test_outside_of_the_main_thread_another_thread_samples() -> None:
    kept: list[Any] = []

    def work() -> None:
        with gpuprof_widgets.profile(quiet=True, python="sampled") as profile:
            spin_for(0.2)
        kept.append(profile)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (profile,) = kept
    assert profile.metadata["python_samples"]["by_signal"] is False
    assert [note for note in profile.metadata["notes"] if "sampled from a second thread" in note]
    assert "spin_for" in set(profile.sampled_lines()["function"])
    assert not frames(profile)["name"].astype(str).str.contains("gpuprof_widgets").any()


# torch.compile


COMPILED = f"""{BUSY}
import torch
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
counters.clear()
counter = CompileCounter()
def helper(x):
    y = x.sin()
    return y + 1
def breaking(x):
    y = helper(x)
    print("broken")
    return y * 2
fast, broken = (torch.compile(one, backend=counter) for one in (helper, breaking))
for size in (2, 3, 4):
    for _ in range(20):
        fast(torch.ones(size))
        broken(torch.ones(size))
seen = counter.frame_count, counter.op_count, dict(counters["frames"]), dict(counters["stats"])
broken_at = sorted(counters["graph_break"].values())
del fast, broken, counter, size, counters
"""


LATE = """
import gc
import sys
gc.set_threshold(3)  # the collector's callback often runs under dynamo then
import torch
from gpuprof_widgets.capture import stack_samplers
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
stack_samplers.INTERVAL_NS = 200_000
code = compile(sys.stdin.read(), "cell", "exec")
assert "torch._dynamo" not in sys.modules
recorder = Recorder(Options(python="sampled"), label="the run")
names = {}
with recorder:
    exec(code, names)
print(names["seen"], names["broken_at"])
assert recorder.record().metadata["python_samples"]["samples"] > 10
"""


def test_a_compiled_function_is_compiled_as_without_samples() -> None:
    """Even where dynamo comes only with the cell."""
    torch._dynamo.reset()
    expected = plain(COMPILED)
    torch._dynamo.reset()
    done = subprocess.run(
        [sys.executable, "-c", LATE], input=COMPILED, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == f"{expected.names['seen']} {expected.names['broken_at']}"
