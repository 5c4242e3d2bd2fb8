"""Python's garbage collector: heard while recording, and said where it took the time."""

from __future__ import annotations

import _thread
import dataclasses
import gc
import signal
import sys
import textwrap
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from gpuprof_widgets.analyses.findings import FINDINGS, Finding, findings
from gpuprof_widgets.analyses.findings.python_time import garbage_collection
from gpuprof_widgets.capture import garbage_collections
from gpuprof_widgets.capture.garbage_collections import GarbageCollections
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.trace.redact import redacted
from gpuprof_widgets.trace.window import window
from tests.cells import recorded
from tests.traces import annotation, calls_of, op, trace_of

pytestmark = pytest.mark.slow

MS = 1_000_000
COLLECT = "<built-in method gc.collect>"


def collecting(spent: int, *, run: int = 100 * MS, full: int = 3, **noted: Any) -> Record:
    """A run of 100 ms of which collections took so many ns, almost all in line 5 of a cell."""
    place = {"file": "Cell [3]", "function": "build", "function_line": 4, "line": 5, "during": ""}
    told = {
        "collections": [40, 7, full],
        "time_ns": [1, 2, spent - 3],
        "collected": [0, 0, 9],
        "once": {"collections": [0, 0, 0], "time_ns": [0, 0, 0]},
        "longest": [
            {"start_ns": 10, "dur_ns": 5, "generation": 0, "collected": 0, "thread": 1},
            {"start_ns": 70, "dur_ns": 9, "generation": 2, "collected": 9, "thread": 1},
        ],
        "places": [{**place, "collections": full, "time_ns": spent}],
    }
    return trace_of(annotation("x", ts=0, dur=run), gc=told | noted)


CASES: dict[str, tuple[Record, Record]] = {
    "garbage_collection": (collecting(5 * MS), collecting(5 * MS - 1)),
}


def said(record: Record, rule: str = "garbage_collection") -> list[Finding]:
    return [one for one in findings(record) if one.rule == rule]


def test_the_finding_has_times_collections_and_the_line() -> None:
    (finding,) = said(collecting(90 * MS))
    assert finding.text == (
        "Python's garbage collector took 90.0 ms of 100 ms (90 %) in 50 collections, 3 of them "
        "full, mostly in `build` (Cell [3], line 5)."
    )
    assert (finding.cost_ns, finding.share) == (90 * MS, 0.9)
    assert (finding.start_ns, finding.end_ns) == (70, 79)
    assert "gc.freeze()" in finding.remedy


def test_collections_that_the_code_asked_for_are_said_to_be_so() -> None:
    asked = calls_of((None, "step", 9, 1 * MS), ("step", COLLECT, 9, 80 * MS))
    (finding,) = said(dataclasses.replace(collecting(90 * MS), calls=asked))
    assert ". The code called `gc.collect()` 9 times, mostly in `build`" in finding.text
    assert finding.remedy.startswith("Take `gc.collect()` out of the loop")
    fewer = calls_of((None, "step", 9, 1 * MS), ("step", COLLECT, 9, 45 * MS))
    (finding,) = said(dataclasses.replace(collecting(90 * MS), calls=fewer))
    assert "gc.collect()`" not in finding.text


def test_what_is_done_once_does_not_count() -> None:
    once = {"collections": [0, 0, 3], "time_ns": [0, 0, 90 * MS - 3]}
    assert said(collecting(90 * MS, once=once)) == []
    less = {"collections": [0, 0, 1], "time_ns": [0, 0, 40 * MS]}
    (finding,) = said(collecting(90 * MS, once=less))
    assert "took 50.0 ms of 100 ms (50 %) in 49 collections, 2 of them full" in finding.text


def test_a_range_of_a_run_has_no_totals_to_tell() -> None:
    record = collecting(90 * MS)
    assert said(window(record, 0, 50 * MS)) == []
    assert said(window(record, 0, 100 * MS)) != []


def test_few_or_short_collections_are_nothing_to_tell() -> None:
    assert said(collecting(900_000, run=1_000_000)) == []
    assert said(trace_of(op("x", ts=0, dur=9))) == []


def test_a_single_collection_counts_where_it_is_full() -> None:
    young = {"collections": [0, 1, 0], "time_ns": [0, 9 * MS, 0]}
    assert said(collecting(9 * MS, **young)) == []
    assert len(said(collecting(9 * MS, collections=[0, 0, 1], time_ns=[0, 0, 9 * MS]))) == 1


@pytest.mark.parametrize(("own", "left"), [(110, 20 * MS), (95, None), (200, 200 * MS)])
def test_the_function_in_which_they_started_is_not_blamed(own: int, left: int | None) -> None:
    """Of its own time collections were 90 ms: less counts, or nothing where little is left."""
    calls = calls_of((None, "build", 1, own * MS))
    calls = dataclasses.replace(
        calls, functions=calls.functions.assign(file="Cell [3]", line=4, name="build")
    )
    record = dataclasses.replace(collecting(90 * MS), calls=calls)
    (alone,) = FINDINGS["python_time"](record)
    assert alone.cost_ns == own * MS
    told = said(dataclasses.replace(record, metadata=record.metadata), "python_time")
    assert [one.cost_ns for one in told] == ([] if left is None else [left])
    if own == 110:
        assert told[0].text.endswith(" Garbage collection took 90.0 ms of that time.")


def test_nor_is_the_cell_itself() -> None:
    of_the_cell = {"file": "Cell [3]", "name": "<module>"}
    calls = calls_of((None, "build", 1, 110 * MS))
    calls = dataclasses.replace(calls, functions=calls.functions.assign(**of_the_cell, line=1))
    record = collecting(90 * MS)
    places = [
        dict(one, function="<module>", function_line=1) for one in record.metadata["gc"]["places"]
    ]
    noted = {**record.metadata, "gc": {**record.metadata["gc"], "places": places}}
    (told,) = said(dataclasses.replace(record, calls=calls, metadata=noted), "python_time")
    assert told.text.startswith("The Python of the cell itself")
    assert told.cost_ns == 20 * MS


STORM = """
kept = []
def build(n):
    for i in range(n):
        kept.append([i])
build(60_000)
"""


@pytest.fixture
def often() -> Iterator[None]:
    """A collector that looks at all objects each time, as it does where there are many."""
    before = gc.get_threshold()
    gc.set_threshold(500, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def only_asked() -> Iterator[None]:
    """No collections but those that the code asks for, which can be counted."""
    gc.disable()
    yield
    gc.enable()


def test_a_storm_of_collections_is_counted_as_another_callback_counts_it(often: None) -> None:
    heard: list[int] = []

    def also(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            heard.append(info["generation"])

    body = f"import gc\ngc.callbacks.append(also)\n{STORM}\ngc.callbacks.remove(also)"
    outcome, record = recorded(body, {"__name__": "__main__", "also": also})
    assert not outcome.error
    noted = record.metadata["gc"]
    assert len(heard) >= 100
    # The recorder hears those before and after the cell's lines that are in the region as well.
    for generation, count in enumerate(noted["collections"]):
        assert count >= heard.count(generation)
    assert sum(noted["collections"]) - len(heard) <= 10
    assert 0 < sum(noted["time_ns"]) < record.trace.span_ns
    unheard = [at for at, count in enumerate(noted["collections"]) if count == 0]
    assert all(noted["time_ns"][at] == 0 for at in unheard)


def test_long_collections_are_placed_on_the_trace_and_in_the_code(
    often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collections, "LONG_NS", 0)
    outcome, record = recorded(STORM)
    assert not outcome.error
    noted, slices = record.metadata["gc"], record.trace.slices
    place = noted["places"][0]
    assert (place["file"], place["function"], place["during"]) == ("Cell [7]", "build", "")
    assert (place["function_line"], place["line"]) == (4, 6)
    line = slices[slices["name"].astype(str).str.startswith("7: build")].iloc[0]
    inside = [
        one
        for one in noted["longest"]
        if line["ts"] - MS <= one["start_ns"] <= line["ts"] + line["dur"] + MS
    ]
    assert len(inside) >= 0.9 * len(noted["longest"])
    assert len(noted["longest"]) == 100
    starts = [one["start_ns"] for one in noted["longest"]]
    assert starts == sorted(starts)
    assert all(one["start_ns"] + one["dur_ns"] <= record.trace.end_ns for one in noted["longest"])


def test_one_in_a_thread_without_python_has_no_place_and_is_counted(
    only_asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collections, "LONG_NS", 0)
    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    with gpuprof_widgets.profile(quiet=True) as run:
        threads, collections = _thread._count(), gc.get_stats()[2]["collections"]
        _thread.start_new_thread(gc.collect, ())
        while gc.get_stats()[2]["collections"] == collections or _thread._count() != threads:
            time.sleep(0.001)
    assert dropped == []
    assert sum(run.metadata["gc"]["collections"]) == 1
    assert run.metadata["gc"]["longest"] == []


@pytest.mark.parametrize("options", [{}, {"stack": True}, {"lines": False}])
def test_listening_is_no_call_of_the_users(often: None, options: dict[str, Any]) -> None:
    _, record = recorded(STORM, **options)
    assert sum(record.metadata["gc"]["collections"]) >= 100
    assert record.calls is not None
    functions = record.calls.functions
    ours = functions["file"].str.contains("garbage_collections", regex=False)
    named = functions["name"].str.contains("_heard|perf_counter_ns|_getframe")
    assert not (ours | named).any()
    names = record.trace.slices["name"].astype(str)
    assert not names.str.contains("garbage_collections|_heard").any()


@pytest.mark.parametrize("options", [{}, {"stack": True}])
def test_calls_of_collect_are_told_from_a_recorded_cell(
    options: dict[str, Any], only_asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[garbage_collection.__module__], "WORTH_NS", 0)
    _, record = recorded("import gc\nfor _ in range(4):\n    gc.collect()", **options)
    (finding,) = garbage_collection(record, gc_share=0.0)
    assert "The code called `gc.collect()` 4 times" in finding.text
    assert record.metadata["gc"]["collections"][2] == 4


def test_no_callback_is_left_whatever_happens() -> None:
    before = list(gc.callbacks)
    outcome, _ = recorded("import gc\nassert gc.callbacks\n1/0")
    assert outcome.error.startswith("ZeroDivisionError")
    assert gc.callbacks == before
    outcome, _ = recorded("import gc\nkept = list(gc.callbacks)\ngc.callbacks.clear()")
    assert not outcome.error
    assert gc.callbacks == []
    gc.callbacks[:] = before


class ToldError(Exception):
    """What the handler of a signal raises; made of two things, unlike most."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what, number)


@pytest.fixture
def pending_at() -> Iterator[Callable[[str, int], None]]:
    """Has a signal wait to be handled as our callback is called at that phase of a collection.

    By a callback without Python, in which it would be handled: it looks the phase up in a number.
    Those of others, as hypothesis has one, are away meanwhile: they would handle and drop it.
    """
    callbacks: list[Any] = []
    others, gc.callbacks[:] = gc.callbacks[:], []

    def from_now_on(phase: str, number: int) -> None:
        signals = type("Signal", (int,), {phase: property(interrupt_main)})
        callbacks.append(partial(getattr, signals(number)))
        gc.callbacks.insert(0, callbacks[-1])

    yield from_now_on
    for callback in callbacks:
        gc.callbacks.remove(callback)
    gc.callbacks += others


INTERRUPTED = "import gc\nafter = 0\ngc.collect()\nafter = 1"


@pytest.mark.parametrize("phase", ["start", "stop"])
@pytest.mark.parametrize("options", [{}, {"stack": True}, {"python": "off"}])
def test_an_interrupt_during_a_collection_arrives_behind_it(
    phase: str,
    options: dict[str, Any],
    only_asked: None,
    pending_at: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage_collections, "LONG_NS", 0)
    pending_at(phase, signal.SIGINT)
    names = {"__name__": "__main__"}
    outcome, record = recorded(INTERRUPTED, names, **options)
    assert outcome.error.startswith("KeyboardInterrupt")
    assert names["after"] == 0
    noted = record.metadata["gc"]
    assert noted["collections"] == [0, 0, 1]
    (place,) = noted["places"]
    assert (place["file"], place["function"], place["line"]) == ("Cell [7]", "<module>", 4)
    if record.calls is not None:
        assert not record.calls.functions["file"].str.contains("interrupts", regex=False).any()
        assert not record.calls.functions["name"].str.contains("lambda|SetAsync|__new__").any()


@pytest.mark.parametrize("phase", ["start", "stop"])
def test_so_does_what_another_signals_handler_raises_and_once(
    phase: str, only_asked: None, pending_at: Callable[[str, int], None]
) -> None:
    told: list[ToldError] = []

    def handler(number: int, _: object) -> None:
        told.append(ToldError("worker", number))
        raise told[-1]

    before = signal.signal(signal.SIGTERM, handler)
    try:
        pending_at(phase, signal.SIGTERM)
        with pytest.raises(ToldError) as caught, Recorder(Options(lines=False), label="the run"):
            gc.collect()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [caught.value] == told


def test_errors_of_callbacks_are_dropped_as_ever(
    only_asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's, and our own should it have one: no error of a recording reaches the code."""
    dropped: list[type] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: dropped.append(one.exc_type))
    former = sys.unraisablehook
    monkeypatch.setattr(garbage_collections, "perf_counter_ns", None)
    gc.callbacks.append(lambda phase, info: 1 // (phase != "stop"))
    try:
        with Recorder(Options(lines=False), label="the run"):
            assert sys.unraisablehook is not former
            gc.collect()
    finally:
        gc.callbacks.pop()
    assert sys.unraisablehook is former
    assert set(dropped) == {TypeError, ZeroDivisionError}


def test_a_hook_that_the_code_sets_stays() -> None:
    before = sys.unraisablehook
    outcome, _ = recorded("import sys\nsys.unraisablehook = mine = lambda one: None")
    assert not outcome.error
    assert sys.unraisablehook.__name__ == "<lambda>"
    sys.unraisablehook = before


def test_two_windows_are_one_after_the_other(
    only_asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collections, "LONG_NS", 0)
    body = """
        import gc
        for item in gpuprof_widgets.steps(range(9), wait=1, warmup=1, active=1, repeat=2):
            gc.collect()
    """
    names = {"__name__": "__main__", "gpuprof_widgets": gpuprof_widgets}
    _, record = recorded(textwrap.dedent(body), names)
    first, second = record.metadata["steps"]["windows"]
    full = [one for one in record.metadata["gc"]["longest"] if one["generation"] == 2]
    assert len(full) == 2
    for one, of in zip(full, (first, second), strict=True):
        assert of["start_ns"] <= one["start_ns"] < of["start_ns"] + of["dur_ns"]


def test_a_window_that_is_thrown_away_does_not_count(only_asked: None) -> None:
    """A loop that turned out to run no op was recorded, and read, before another one is."""
    with Recorder(Options(lines=False), label="the run") as recorder:
        gc.collect()
        recorder.end_window()
        assert not recorder.has_work(training=True)
        recorder.release()
        recorder.begin_window(0)
        gc.collect(1)
    noted = recorder.record().metadata["gc"]
    assert noted["collections"][1:] == [1, 0]


def test_memory_is_bounded(only_asked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the long ones a bounded number is kept."""
    monkeypatch.setattr(garbage_collections, "MOST_LONG", 4)
    monkeypatch.setattr(garbage_collections, "LONG_NS", 0)
    listening = GarbageCollections(Context(Options(), "the run", {}, {}))
    listening.start()
    for _ in range(25):
        gc.collect(0)
    listening.stop()
    assert len(listening._long) == 4
    began = listening._began[1]
    whole = dataclasses.replace(trace_of(op("x", ts=0, dur=10**12)).trace, epoch_ns=began - 10**9)
    listening.refine(whole)
    noted = listening.metadata()["gc"]
    assert noted["collections"] == [25, 0, 0]
    assert noted["time_ns"][0] > 0


def test_collections_of_imports_are_known_to_be_such(
    tmp_path: Path, only_asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collections, "LONG_NS", 0)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "collects_as_it_is_imported.py").write_text("import gc\ngc.collect()\n")
    _, record = recorded("import collects_as_it_is_imported")
    del sys.modules["collects_as_it_is_imported"]
    noted = record.metadata["gc"]
    assert noted["once"]["collections"][2] == noted["collections"][2] == 1
    assert {one["during"] for one in noted["places"]} == {"importing"}


def test_it_is_saved_and_loaded_and_tells_no_folder(tmp_path: Path) -> None:
    record = collecting(90 * MS)
    record.metadata["gc"]["places"][0]["file"] = "/home/anna/project/train.py"
    save(record, tmp_path / "run.gpuprof")
    assert load(tmp_path / "run.gpuprof").metadata["gc"] == record.metadata["gc"]
    clean = redacted(record).metadata["gc"]
    assert clean["places"][0]["file"] == "train.py"
    assert clean["time_ns"] == record.metadata["gc"]["time_ns"]
