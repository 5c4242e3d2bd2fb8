"""Why the loop waits for its workers: hand-made traces and calls, whose answers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.workers import (
    SlowFunction,
    slow_function,
    users_time,
    while_waiting,
    workers,
)
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.window import window
from tests.traces import Row, annotation, calls_of, op, python, trace_of

LOADING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
STARTS_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__init__"


def did(name: str, *, ts: int, dur: int, worker: int = 0, **args: int) -> Row:
    """A span of a worker."""
    pid = str(900 + worker)
    return Row(name, "worker", ts, dur, pid, pid, {"worker": worker, "batch": 0, **args})


def sent(*, ts: int, dur: int, worker: int = 0) -> Row:
    pid = str(900 + worker)
    return Row("put", "worker", ts, dur, pid, f"{pid}-sending", {"worker": worker, "batch": 0})


def waits_of(*rows: Row, calls: dict[str, Calls] | None = None) -> Record:
    """A run of 1000 ns that waits for its workers from 100 to 500."""
    made = trace_of(
        annotation("Cell [1]", ts=0, dur=1000), annotation(LOADING, ts=100, dur=400), *rows
    )
    about = [{"worker": worker, "items_in_calls": 2} for worker in range(len(calls or {}))]
    return Record(made.trace, None, {"label": "Cell [1]", "workers": about}, calls or {})


def calls_in(*edges: tuple[str | None, str, int]) -> Calls:
    """Calls of (caller, callee, self ns on its behalf); "lib." ones are of an installed package."""
    calls = calls_of(*((caller, callee, 1, ns) for caller, callee, ns in edges))
    functions = calls.functions
    file = functions["file"].mask(functions["name"].str.startswith("lib."), "/x/site-packages/a.py")
    return Calls(functions.assign(file=file.astype(object), line=1), calls.edges)


def test_what_the_workers_did_while_the_loop_waited() -> None:
    record = waits_of(
        did("idle", ts=160, dur=10),
        did("fetch", ts=170, dur=300, items=2),
        did("Data.__getitem__", ts=170, dur=100, item=0),
        did("Data.__getitem__", ts=270, dur=100, item=1),
        did("collate", ts=370, dur=60),
        sent(ts=470, dur=20),
        did("fetch", ts=160, dur=40, worker=1, items=1),
        did("Data.__getitem__", ts=160, dur=40, worker=1, item=0),
    )
    assert while_waiting(record) == {
        "items": 210,
        "collate": 60,
        "put": 20,
        "idle": 40,
        "starting": 60,
        "ending": 10,
    }


def test_a_run_without_recorded_workers_says_nothing_of_them() -> None:
    assert while_waiting(waits_of()) == {}
    assert len(workers(waits_of())) == 0


@pytest.mark.parametrize(
    ("rows", "because", "remedy"),
    [
        (
            [
                did("fetch", ts=100, dur=400, items=2),
                did("Data.__getitem__", ts=100, dur=300, item=0),
            ],
            "because `Data.__getitem__` takes 150 ns per item in its 1 worker.",
            "num_workers",
        ),
        (
            [did("fetch", ts=100, dur=400, items=2), did("collate", ts=100, dur=380)],
            "because collating takes its workers 380 ns per batch.",
            "collate_fn",
        ),
        (
            [did("fetch", ts=100, dur=20, items=2), sent(ts=120, dur=380)],
            "because sending takes its workers 380 ns per batch.",
            "shared memory",
        ),
        ([did("idle", ts=100, dur=400)], "while its workers had nothing to do.", "prefetch_factor"),
        ([did("idle", ts=480, dur=20)], "while its workers were starting.", "persistent_workers"),
        ([did("idle", ts=90, dur=20)], "while its workers were ending.", "persistent_workers"),
    ],
    ids=["items", "collate", "put", "idle", "starting", "ending"],
)
def test_the_finding_ends_with_the_cause(rows: list[Row], because: str, remedy: str) -> None:
    (found,) = FINDINGS["dataloader"](waits_of(*rows))
    assert found.text.endswith(f", in 1 wait, {because}")
    assert remedy in found.remedy
    assert (found.cost_ns, found.start_ns, found.end_ns) == (400, 100, 500)


FETCHED = [
    did("fetch", ts=100, dur=100, items=2),
    did("Data.__getitem__", ts=100, dur=100, item=0),
    did("fetch", ts=100, dur=300, items=2, worker=1),
    did("Data.__getitem__", ts=100, dur=300, item=0, worker=1),
]


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (90, 110, "because `decode` takes 50 ns per item in its 2 workers."),
        (80, 280, "because `decode` in worker 1 takes 140 ns per item."),
    ],
)
def test_the_finding_names_the_function_and_the_worker_that_is_much_slower(
    first: int, second: int, says: str
) -> None:
    times = {"worker0.pid900": first, "worker1.pid901": second}
    of_workers = {worker: calls_in((None, "decode", ns)) for worker, ns in times.items()}
    (found,) = FINDINGS["dataloader"](waits_of(*FETCHED, calls=of_workers))
    assert found.text.endswith(says)


def test_a_function_with_little_of_the_time_is_not_the_cause() -> None:
    of_workers = {"worker0.pid900": calls_in((None, "lib.load", 350), ("lib.load", "mine", 20))}
    assert slow_function(waits_of(*FETCHED, calls=of_workers)) is None


def test_what_a_library_does_is_its_callers_time() -> None:
    calls = calls_in(
        (None, "lib.fetch", 7),
        ("lib.fetch", "item", 10),
        ("item", "decode", 20),
        ("decode", "lib.open", 30),
        ("lib.open", "<read>", 40),
        ("item", "lib.compose", 1),
        ("lib.compose", "crop", 5),
    )
    spent = {name: ns for (_, _, name), ns in users_time(calls).items()}
    assert spent == pytest.approx({"item": 11, "decode": 90, "crop": 5})


def test_a_library_that_calls_itself_loses_no_time() -> None:
    calls = calls_in((None, "item", 10), ("item", "lib.walk", 20), ("lib.walk", "lib.step", 30))
    again = pd.concat([calls.edges, calls.edges.iloc[[1]].assign(caller=2, callee=1, self_ns=0)])
    spent = users_time(Calls(calls.functions, again.reset_index(drop=True)))
    assert sum(spent.values()) == pytest.approx(60, abs=1)


def test_one_worker_alone_is_no_outlier() -> None:
    assert SlowFunction("decode", 5.0, {0: 5.0}).outlier is None
    assert SlowFunction("decode", 5.0, {0: 5.0, 1: 6.0}).outlier is None
    assert SlowFunction("decode", 5.0, {0: 5.0, 1: 9.0, 2: 5.0}).outlier == 1


IN_PROCESS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("waits", "said", "remedy"),
    [
        # A worker that is spawned imports during the first wait.
        (
            [(STARTS_WORKERS, 20), (LOADING, 300), (LOADING, 20), (LOADING, 30)],
            "3 times for a batch and 1 time for its workers to start, for up to 300 ns, mostly "
            "for its workers to start and send their first batch",
            "The workers started once",
        ),
        (
            [(STARTS_WORKERS, 300), (LOADING, 20), (LOADING, 20)],
            "2 times for a batch and 1 time for its workers to start, for up to 300 ns (a "
            "start), mostly for its workers to start",
            "The workers started once",
        ),
        (
            [(STARTS_WORKERS, 20), (LOADING, 80), (LOADING, 90), (LOADING, 90)],
            "3 times for a batch and 1 time for its workers to start, for up to 90 ns",
            "The workers of the DataLoader do not keep up",
        ),
        # Two loaders at once: each has its own first batch.
        (
            [(STARTS_WORKERS, 9), (STARTS_WORKERS, 9), *[(LOADING, ns) for ns in (90, 90, 80, 80)]],
            "4 times for a batch and 2 times for its workers to start, for up to 90 ns, mostly "
            "for its workers to start and send their first batch",
            "The workers start again",
        ),
        # What the main process loads meanwhile is no worker's first batch.
        (
            [(STARTS_WORKERS, 20), (IN_PROCESS, 90), (LOADING, 90), (LOADING, 95)],
            "3 times for a batch and 1 time for its workers to start, for up to 95 ns",
            "The workers of the DataLoader do not keep up",
        ),
        # Workers that go on from an earlier pass start nothing.
        ([(LOADING, 300), (LOADING, 20)], "in 2 waits of up to 300 ns", "The workers of the"),
    ],
    ids=["spawned", "started", "slow", "two loaders", "in process", "persistent"],
)
def test_the_first_batch_of_workers_is_part_of_their_start(
    waits: list[tuple[str, int]], said: str, remedy: str
) -> None:
    ends = np.cumsum([dur for _, dur in waits])
    rows = [
        annotation(name, ts=int(end) - dur, dur=dur)
        for (name, dur), end in zip(waits, ends, strict=True)
    ]
    (found,) = FINDINGS["dataloader"](trace_of(op("end", ts=990, dur=10), *rows))
    assert found.text.endswith(f"), {said}.")
    assert found.remedy.startswith(remedy)
    assert ("what they import or load first" in found.remedy) == said.endswith("first batch")


FETCHING = "site-packages/torch/utils/data/_utils/fetch.py"


def loading(*edges: tuple[str | None, str, int, int], **given: Any) -> Record:
    """A loop that waits for its loader for 400 of 1000 ns, by what cProfile counted below it."""
    calls = calls_of((None, "main", 1, 0), ("main", "fetch", 1, 0), *edges)
    name = calls.functions["name"]
    file = calls.functions["file"].mask(name == "fetch", f"/x/{FETCHING}")
    file = file.mask(name.str.startswith("lib_"), "/x/site-packages/lib.py")
    file = file.mask(name.str.contains("comp>"), "cell.py")
    functions = calls.functions.assign(file=file.astype(object))
    rows = [annotation(IN_PROCESS, ts=0, dur=400), op("train", ts=400, dur=600)]
    return trace_of(*rows, calls=Calls(functions, calls.edges), **given)


def said_of(record: Record) -> str:
    (found,) = FINDINGS["dataloader"](record)
    _, is_named, function = found.title.partition(", mostly in ")
    begins = f"Make {function} cheaper" if is_named else "The DataLoader loads in the main process"
    assert found.remedy.startswith(begins)
    assert (f"mostly in {function} (" in found.text) == bool(is_named)
    return found.text.removesuffix(".").partition(", in 1 wait")[2]


GETS = ("fetch", "__getitem__", 4, 10)


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ([GETS, ("__getitem__", "augment", 4, 300), ("__getitem__", "normalise", 4, 60)],
         ", mostly in `cell.py:4(augment)` (300 ns)"),
        ([GETS, ("__getitem__", "augment", 4, 180), ("__getitem__", "normalise", 4, 180)],
         ", mostly in `cell.py:3(__getitem__)` (370 ns)"),
        # Functions of libraries on the way, and what they call in turn, are not named.
        ([GETS, ("__getitem__", "lib_compose", 4, 9), ("lib_compose", "augment", 4, 300),
          ("augment", "lib_resize", 4, 20)], ", mostly in `cell.py:5(augment)` (320 ns)"),
        ([("fetch", "lib_getitem", 4, 390)], ""),
        ([("fetch", "<built-in method builtins.next>", 4, 390)], ""),
        ([GETS, ("__getitem__", "augment", 4, 189)], ""),
        ([GETS, ("__getitem__", "augment", 4, 90), ("augment", "<listcomp>", 4, 290)],
         ", mostly in `cell.py:4(augment)` (380 ns)"),
        # What is called only elsewhere does not count; what is called elsewhere too, in part.
        ([(None, "augment", 4, 390)], ""),
        ([("main", "augment", 4, 390), ("fetch", "lib_getitem", 4, 390)], ""),
        ([GETS, ("__getitem__", "augment", 4, 300), (None, "augment", 4, 300)],
         ", mostly in `cell.py:4(augment)` (300 ns)"),
        ([], ""),
    ],
)  # fmt: skip
def test_a_loader_of_the_main_process_names_the_function_that_takes_long(
    edges: list[tuple[str | None, str, int, int]], says: str
) -> None:
    assert said_of(loading(*edges)) == says


def test_where_workers_make_the_loop_wait_the_main_process_is_not_the_cause() -> None:
    """Though the longest single wait is for it: 60 ns in `augment` are not most of 820."""
    calls = loading(GETS, ("__getitem__", "augment", 1, 60)).calls
    waits = [annotation(IN_PROCESS, ts=0, dur=100)]
    waits += [
        annotation(IN_PROCESS.replace("Single", "Multi"), ts=100 + 90 * n, dur=90) for n in range(8)
    ]
    (found,) = FINDINGS["dataloader"](trace_of(*waits, op("end", ts=999, dur=1), calls=calls))
    assert "(820 ns of " in found.text
    assert "augment" not in found.text
    assert "in the main process" not in found.remedy


def test_below_what_others_call_too_only_an_estimate_is_known() -> None:
    """`lib_next` took 330 ns for the loader and 20 ns for others, which may have called `make`."""
    edges = [("fetch", "lib_next", 4, 0), ("lib_next", "make", 4, 320), (None, "lib_next", 1, 20)]
    record = loading(*edges)
    assert record.calls is not None
    between = record.calls.edges.assign(total_ns=[330, 330, 320])
    functions = record.calls.functions
    total = functions["name"].map({"main": 400, "fetch": 330, "lib_next": 350, "make": 320})
    calls = Calls(functions.assign(total_ns=total), between)
    text = said_of(Record(record.trace, calls, record.metadata))
    assert text == ", mostly in `cell.py:4(make)` (an estimated 300 ns)"


def test_of_a_range_of_time_no_function_is_known_but_by_its_frames() -> None:
    slow = loading(GETS, ("__getitem__", "augment", 4, 300))
    assert said_of(window(slow, 0, 900)) == ""
    frames = [
        python("torch/utils/data/dataloader.py(783): _next_data", ts=0, dur=400),
        python("torch/utils/data/_utils/fetch.py(49): fetch", ts=1, dur=398),
        python("/home/me/train.py(8): augment", ts=10, dur=360),
    ]
    rows = [annotation(IN_PROCESS, ts=0, dur=400), op("train", ts=400, dur=600)]
    assert said_of(window(trace_of(*rows, *frames), 0, 900)) == (
        ", mostly in `train.py:8(augment)` (360 ns)"
    )


def test_iterations_without_a_trace_are_taken_out_of_what_cprofile_counted() -> None:
    kinds = [
        {"step": n, "kind": kind, "dur_ns": 9} for n, kind in enumerate(["cprofile", "recorded"])
    ]
    record = loading(GETS, ("__getitem__", "augment", 8, 700), steps={"iterations": kinds})
    assert said_of(record) == ", mostly in `cell.py:4(augment)` (an estimated 350 ns)"
