"""cProfile hears the thread of the run, whatever other threads do meanwhile."""

from __future__ import annotations

import cProfile
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpuprof_widgets.capture.cprofile import CallsRecording
from gpuprof_widgets.capture.frame_filter import without_profiler_calls
from gpuprof_widgets.trace.model import Calls

CALLS = 20_000


def leaf(number: int) -> int:
    return number


def work() -> None:
    for number in range(CALLS):
        leaf(number)


def noise() -> int:
    return sum(map(abs, range(9)))


@contextmanager
def a_busy_thread() -> Iterator[None]:
    """Another thread calls Python and built-in functions, and takes turns as often as can be."""
    done, before = threading.Event(), sys.getswitchinterval()

    def turn() -> None:
        while not done.is_set():
            noise()

    thread = threading.Thread(target=turn)
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(before)


def recorded() -> Calls:
    recording = CallsRecording()
    recording.start()
    work()
    recording.stop()
    calls = recording.calls()
    assert calls is not None
    return calls


def test_another_thread_is_not_heard_and_changes_no_count_and_no_caller() -> None:
    with a_busy_thread():
        calls = recorded()
    functions, edges = calls.functions, calls.edges
    row = {name: number for number, name in enumerate(functions["name"])}
    assert "noise" not in row
    assert functions["calls"][row["leaf"]] == CALLS
    (caller,) = edges[edges["callee"] == row["leaf"]].to_dict("records")
    assert (caller["caller"], caller["calls"]) == (row["work"], CALLS)


def test_times_nest_while_another_thread_runs() -> None:
    with a_busy_thread():
        functions = recorded().functions.set_index("name")
    leaf_ns, work_ns = functions.loc["leaf", "total_ns"], functions.loc["work", "total_ns"]
    assert 0 < functions.loc["work", "self_ns"] <= work_ns - leaf_ns


def test_nothing_of_the_recording_itself_is_counted() -> None:
    functions = without_profiler_calls(recorded(), {}).functions
    assert set(functions["name"]) == {"work", "leaf"}


def test_what_comes_after_a_pause_is_added() -> None:
    recording = CallsRecording()
    for _ in range(3):
        recording.start()
        work()
        recording.stop()
        leaf(0)
    calls = recording.calls()
    assert calls is not None
    functions = calls.functions.set_index("name")
    assert functions.loc["work", "calls"] == 3
    assert functions.loc["leaf", "calls"] == 3 * CALLS
    edges = calls.edges[calls.edges["callee"] == functions.index.get_loc("leaf")]
    assert edges["calls"].tolist() == [3 * CALLS]
    assert 0 < edges["total_ns"].sum() <= functions.loc["work", "total_ns"]


def test_another_cprofile_can_run_afterwards() -> None:
    recorded()
    own = cProfile.Profile()
    own.runcall(work)
    own.create_stats()
    assert {name: entry[1] for (_, _, name), entry in own.stats.items()}["leaf"] == CALLS
    if sys.version_info >= (3, 12):
        assert sys.monitoring.get_tool(sys.monitoring.PROFILER_ID) is None
