"""DataLoader workers: recorded as they are, in the way of nothing, gone afterwards."""

from __future__ import annotations

import _lsprof
import gc
import multiprocessing
import multiprocessing.util
import re
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import PicklingError
from time import perf_counter_ns, sleep
from typing import Any

import pandas as pd
import pytest
import torch
from torch.autograd.profiler import record_function
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    dataloader,
)
from torch.utils.data._utils import worker as torch_worker

import gpuprof_widgets
from gpuprof_widgets import Profile
from gpuprof_widgets.analyses.workers import slow_function, worker_calls
from gpuprof_widgets.analyses.workers import workers as workers_of
from gpuprof_widgets.capture import worker_process, workers
from gpuprof_widgets.capture.part import both_clocks, time_of_day
from gpuprof_widgets.capture.workers import STARTS_WORKERS
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.model import Record
from tests import loaders
from tests.loaders import (
    COLLATE_S,
    ITEM_S,
    AllAtOnce,
    Collate,
    Decoded,
    Dying,
    Failing,
    Stream,
    Watched,
    Wrapping,
    slow_collate,
)
from tests.traces import Row, calls_of, op, trace_of

pytestmark = pytest.mark.slow

NS = 1_000_000_000
MS = 1_000_000
TIMES = ["fetch_ns", "item_ns", "collate_ns", "put_ns", "idle_ns"]

_UNSENDABLE = (AttributeError, PicklingError)  # by version of Python
ORIGINAL_LOOP = torch_worker._worker_loop
ITERATOR = dataloader._MultiProcessingDataLoaderIter
PLAIN_START = vars(ITERATOR)["__init__"]


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    multiprocessing.util.get_temp_dir()  # its own folder is that of the whole process
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert torch_worker._worker_loop is ORIGINAL_LOOP
    assert vars(ITERATOR)["__init__"] is PLAIN_START
    assert list(tmp_path.glob("gpuprof-*")) == []
    gc.collect()  # a loader's iterator ends its workers
    for child in multiprocessing.active_children():
        child.join(timeout=60)  # torch may have ended it without waiting for its end
    assert multiprocessing.active_children() == []


def batches(loader: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in loader]


def recorded(loader: Any, **options: Any) -> tuple[Profile, list[list[Any]]]:
    """The profile of one pass over the loader, and what came out of it."""
    options = {"workers": True, **options}
    with gpuprof_widgets.profile(quiet=True, lines=False, modules="none", **options) as run:
        came = batches(loader)
    return run, came


def spans(profile: Profile, name: str) -> pd.DataFrame:
    """The workers' slices of that name with their args, in order of time."""
    slices = profile.trace.slices
    found = slices[(slices["category"] == "worker") & (slices["name"] == name)]
    args = {key: values.reindex(found.index) for key, values in profile.trace.args.items()}
    found = found.assign(end=found["ts"] + found["dur"])
    return found.assign(**{k: args[k] for k in args if k not in found}).sort_values("ts")


def calls_in_loaders(profile: Profile, worker: int) -> pd.Series:
    """How often that worker called each function of our datasets."""
    table = profile.worker_calls(worker)
    return table[table["file"].str.endswith("loaders.py")].set_index("name")["calls"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_batch_and_item_has_a_span_as_long_as_it_took(method: str) -> None:
    loader = DataLoader(
        Decoded(),
        batch_size=4,
        num_workers=2,
        collate_fn=slow_collate,
        multiprocessing_context=method,
    )
    profile, came = recorded(loader)
    assert sorted(item for batch in came for item in batch) == [[i, i] for i in range(12)]
    items, collating = spans(profile, "Decoded.__getitem__"), spans(profile, "collate")
    assert sorted(items["index"]) == list(range(12))
    assert items["dur"].min() >= ITEM_S * NS * 0.99
    assert collating["dur"].min() >= COLLATE_S * NS * 0.99
    assert sorted(zip(items["batch"], items["item"], strict=True)) == [
        (batch, item) for batch in range(3) for item in range(4)
    ]
    fetches = spans(profile, "fetch").set_index("batch")
    assert sorted(fetches.index) == [0, 1, 2]
    for inner in (items, collating):
        around = fetches.loc[inner["batch"]]
        assert (inner["ts"].to_numpy() >= around["ts"].to_numpy()).all()
        assert (inner["end"].to_numpy() <= around["end"].to_numpy()).all()
    sent = spans(profile, "put")["batch"].tolist()
    assert len(sent) == len(set(sent))
    # A worker's last one is lost where its process ends before the sending thread can note it.
    assert {0} <= set(sent) <= {0, 1, 2}


def test_the_table_of_workers_counts_and_adds_up() -> None:
    loader = DataLoader(Decoded(), batch_size=4, num_workers=2, collate_fn=slow_collate)
    profile, _ = recorded(loader)
    table = profile.workers()
    assert table["worker"].tolist() == [0, 1]
    assert table["batches"].tolist() == [2, 1]
    assert table["items"].tolist() == [8, 4]
    assert (table["item_ns"] >= table["items"] * ITEM_S * NS * 0.99).all()
    assert (table["collate_ns"] >= table["batches"] * COLLATE_S * NS * 0.99).all()
    assert (table["fetch_ns"] >= table["item_ns"] + table["collate_ns"]).all()
    assert (table[["put_ns", "idle_ns"]] > 0).all(axis=None)
    assert [about["pid"] for about in profile.metadata["workers"]] == table["pid"].tolist()
    halves = [profile.window(0, 30 * MS), profile.window(30 * MS, profile.trace.end_ns)]
    parts = pd.concat([half.workers()[TIMES] for half in halves])
    assert parts.sum().tolist() == table[TIMES].sum().tolist()


def test_times_and_counts_of_workers_are_those_of_their_slices() -> None:
    def of_worker(worker: int, name: str, ts: int, dur: int, **args: int) -> Row:
        process = str(300 + worker)
        return Row(name, "worker", ts, dur, process, process, {"worker": worker, **args})

    record = trace_of(
        op("aten::mm", ts=0, dur=100),
        of_worker(0, "fetch", 10, 20, items=4),
        of_worker(0, "Decoded.__getitem__", 11, 12, items=1),
        of_worker(0, "collate", 24, 5),
        of_worker(0, "put", 31, 3),
        of_worker(0, "idle", 34, 7),
        of_worker(0, "fetch", 50, 9, items=2),
        of_worker(1, "idle", 10, 6),
        of_worker(1, "fetch", 20, 5, items=0),  # the end of its data
    )
    columns = ["worker", "pid", "batches", "items", *TIMES]
    assert workers_of(record)[columns].to_numpy().tolist() == [
        [0, 300, 2, 6, 29, 12, 5, 3, 7],
        [1, 301, 0, 0, 5, 0, 0, 0, 6],
    ]


def test_calls_of_the_processes_of_one_worker_are_added_up() -> None:
    one = calls_of((None, "main", 1, 100), ("main", "load", 4, 300))
    two = calls_of((None, "main", 2, 50), ("main", "load", 3, 110))
    record = Record(trace_of().trace, calls_of_workers={
        "worker1.pid7": one, "worker1.pid8": two, "worker0.pid9": one,
    })  # fmt: skip
    table = worker_calls(record, 1)
    assert table[list(table)[:5]].to_numpy().tolist() == [
        ["cell.py", 2, "load", 7, 7],
        ["cell.py", 1, "main", 3, 3],
    ]
    times = ["self_ns", "self_per_call_ns", "total_ns", "total_per_call_ns"]
    assert table[times].to_numpy().tolist() == [
        [410, 410 / 7, 410, 410 / 7],
        [150, 50, 560, 560 / 3],
    ]


def test_workers_stand_in_the_order_of_their_start_whichever_runs_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = worker_process.WorkerRecording.start

    def first_worker_late(recording: worker_process.WorkerRecording) -> None:
        if recording._arguments["worker_id"] == 0:
            sleep(0.2)
        start(recording)

    monkeypatch.setattr(worker_process.WorkerRecording, "start", first_worker_late)
    with gpuprof_widgets.profile(quiet=True, workers=True) as run:
        loader = DataLoader(Decoded(), batch_size=4, num_workers=2)
        assert len(batches(loader) + batches(loader)) == 6
    table = run.workers()
    assert table["worker"].tolist() == [0, 1, 0, 1]
    assert [about["pid"] for about in run.metadata["workers"]] == table["pid"].tolist()


def test_the_workers_lie_on_the_clock_of_the_trace() -> None:
    """A batch is fetched before the loop has it, and after the loop has had the one before."""
    loader = DataLoader(Decoded(), batch_size=3, num_workers=1, prefetch_factor=1)
    profile, _ = recorded(loader)
    slices = profile.trace.slices
    waits = slices[slices["name"] == workers.LOADS_WITH_WORKERS].sort_values("ts")
    ends = (waits["ts"] + waits["dur"]).to_numpy()[:4]
    fetches = spans(profile, "fetch")
    assert fetches["batch"].tolist() == [0, 1, 2, 3]
    assert (fetches["end"].to_numpy() <= ends + MS).all()
    assert (fetches["ts"].to_numpy()[1:] >= waits["ts"].to_numpy()[:3] - MS).all()


def test_a_reading_of_the_clock_is_placed_where_torch_places_it() -> None:
    began = both_clocks()
    with gpuprof_widgets.profile(quiet=True) as run:
        before = perf_counter_ns()
        with record_function("marked"):
            torch.ones(2)
        after = perf_counter_ns()
    trace, ended = run.trace, both_clocks()
    marked = trace.slices[trace.slices["name"] == "marked"].iloc[0]
    first, last = (
        time_of_day(moment, began=began, ended=ended) - trace.epoch_ns for moment in (before, after)
    )
    assert first - MS <= marked["ts"] <= marked["ts"] + marked["dur"] <= last + MS


def test_cprofile_counts_in_every_worker() -> None:
    profile, _ = recorded(DataLoader(Decoded(), batch_size=4, num_workers=2))
    counted = [calls_in_loaders(profile, worker) for worker in (0, 1)]
    assert [int(calls["decode"]) for calls in counted] == [8, 4]
    assert [int(calls["__getitem__"]) for calls in counted] == [8, 4]
    ours = str(Path(worker_process.__file__).parent)
    files = pd.concat([calls.functions["file"] for calls in profile.calls_of_workers.values()])
    assert not files.str.startswith(ours).any()
    with pytest.raises(OptionError, match=r"no Python calls of worker 7 .* of workers: 0, 1"):
        profile.worker_calls(7)


def test_without_cprofile_the_workers_have_none() -> None:
    profile, _ = recorded(DataLoader(Decoded(4), batch_size=4, num_workers=1), python="off")
    assert dict(profile.calls_of_workers) == {}
    assert profile.workers()["items"].tolist() == [4]


LOADERS: dict[str, tuple[Callable[[], DataLoader[Any]], str, int]] = {
    "iterable": (
        lambda: DataLoader(Stream(), batch_size=4, num_workers=2),
        "Stream.__iter__",
        12,
    ),
    "item by item": (
        lambda: DataLoader(Decoded(5), batch_size=None, num_workers=2),
        "Decoded.__getitem__",
        5,
    ),
    "a batch at once": (
        lambda: DataLoader(AllAtOnce(6), batch_size=3, num_workers=2),
        "AllAtOnce.__getitems__",
        6,
    ),
    "a part of a dataset": (
        lambda: DataLoader(Subset(Decoded(9), [1, 2, 4, 8]), batch_size=2, num_workers=1),
        "Decoded.__getitem__",
        4,
    ),
    "several datasets": (
        lambda: DataLoader(ConcatDataset([Decoded(3), Decoded(2)]), batch_size=2, num_workers=1),
        "ConcatDataset.__getitem__",
        5,
    ),
    "a dataset in a dataset": (
        lambda: DataLoader(Wrapping(Decoded(4)), batch_size=2, num_workers=1, collate_fn=Collate()),
        "Decoded.__getitem__",
        4,
    ),
    "a list": (
        lambda: DataLoader([torch.ones(2)] * 4, batch_size=2, num_workers=1),  # type: ignore[arg-type]
        "list.__getitem__",
        4,
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_kind_of_loader_gives_what_it_gives_without_us(kind: str) -> None:
    make, name, items = LOADERS[kind]
    profile, came = recorded(make())
    assert sorted(came) == sorted(batches(make()))
    assert profile.workers()["items"].sum() == items
    named = spans(profile, name)
    assert len(named) >= 1
    assert named["ts"].is_monotonic_increasing
    assert profile.metadata["notes"] == []


def test_forked_workers_write_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    recorded(DataLoader(Watched(4), num_workers=2))
    assert capfd.readouterr() == ("", "")


def test_an_exception_of_a_worker_is_raised_as_without_us() -> None:
    def failure(loader: DataLoader[Any]) -> str:
        with pytest.raises(ValueError, match="item 5 is broken") as caught:
            batches(loader)
        return str(caught.value)

    loader = DataLoader(Failing(), batch_size=4, num_workers=1)
    with gpuprof_widgets.profile(quiet=True, workers=True) as run:
        text = failure(loader)
    assert text == failure(loader)
    assert "Original Traceback" in text
    assert sorted(spans(run, "Failing.__getitem__")["index"])[:6] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("killed", [False, True], ids=["exits", "is killed"])
def test_a_worker_that_dies_is_named_and_keeps_what_it_did(killed: bool) -> None:
    with (
        gpuprof_widgets.profile(quiet=True, workers=True) as run,
        # The latter two where torch is taking over the memory of the batch before at that moment.
        pytest.raises((RuntimeError, OSError, EOFError)),
    ):
        batches(DataLoader(Dying(killed=killed), batch_size=2, num_workers=1))
    done = spans(run, "Dying.__getitem__")
    assert sorted(done["index"]) == [0, 1, 2, 3]
    (about,) = run.metadata["workers"]
    assert about["died"]
    assert run.metadata["notes"] == [
        f"DataLoader worker 0 (pid {about['pid']}) died in batch 2: what it did until then is "
        "recorded"
    ]


def test_persistent_workers_live_on_without_us() -> None:
    loader = DataLoader(Watched(4), batch_size=2, num_workers=2, persistent_workers=True)
    profile, during = recorded(loader)
    assert during == [[[True, True]] * 2] * 2
    assert profile.workers()["items"].tolist() == [2, 2]
    batches(loader)  # each worker finds the folder gone at its first task
    assert batches(loader) == [[[False, False]] * 2] * 2
    again, _ = recorded(loader)
    assert again.metadata["notes"] == [workers._STARTED_BEFORE]
    assert len(again.workers()) == 0
    del loader


def test_a_loop_that_is_left_early_leaves_nothing() -> None:
    with gpuprof_widgets.profile(quiet=True, workers=True) as run:
        for _ in DataLoader(Decoded(), batch_size=2, num_workers=2):
            break
    assert run.workers()["batches"].sum() >= 1


def test_a_dataset_that_cannot_be_sent_fails_as_without_us() -> None:
    class Local(Decoded):
        pass

    def failure() -> tuple[type, str, list[str]]:
        loader = DataLoader(Local(), num_workers=1, multiprocessing_context="spawn")
        seen = warnings.catch_warnings(record=True, action="always")
        with seen as warned, pytest.raises(_UNSENDABLE) as caught:
            batches(loader)
        return caught.type, str(caught.value), [str(one.message) for one in warned]

    with gpuprof_widgets.profile(quiet=True, workers=True):
        during = failure()
    assert during == failure()


def test_of_very_many_items_the_first_are_kept_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "MOST_ITEMS", 3)
    monkeypatch.setattr("gpuprof_widgets.capture.workers.MOST_ITEMS", 3)
    loader = DataLoader(Decoded(8), batch_size=4, num_workers=1, multiprocessing_context="fork")
    profile, _ = recorded(loader)
    assert spans(profile, "Decoded.__getitem__")["index"].tolist() == [0, 1, 2]
    assert profile.workers()["items"].tolist() == [8]
    (note,) = profile.metadata["notes"]
    assert note.endswith("the first 3 of its 8 items are on the timeline")


def test_workers_that_are_not_recorded_are_mentioned() -> None:
    profile, _ = recorded(DataLoader(Decoded(4), batch_size=2, num_workers=1), workers=False)
    (note,) = profile.metadata["notes"]
    assert note == "the DataLoader's worker processes are not recorded: --workers records them"
    assert len(profile.workers()) == 0
    alone, _ = recorded(DataLoader(Decoded(4), batch_size=2), workers=False)
    assert alone.metadata["notes"] == []


@pytest.mark.parametrize("workers", [False, True])
def test_starting_workers_is_the_input_pipeline_and_no_python(workers: bool) -> None:
    profile, _ = recorded(
        DataLoader(Decoded(4), batch_size=2, num_workers=1), workers=workers, python="off"
    )
    slices = profile.trace.slices
    (start,) = slices[slices["name"] == STARTS_WORKERS].itertuples()
    waits = profile.waits()
    assert start.dur in waits.loc[waits["name"] == STARTS_WORKERS, "dur_ns"].tolist()
    by_class = profile.breakdown().set_index("class")["time_ns"]
    waited = waits.loc[waits["kind"] == "dataloader", "dur_ns"].sum()
    assert by_class["input pipeline"] == waited


def starts_of(profile: Profile) -> pd.DataFrame:
    slices = profile.trace.slices
    return slices[slices["name"] == STARTS_WORKERS].reset_index(drop=True)


@pytest.mark.parametrize("restored", [False, True])
def test_what_the_user_does_to_the_start_of_workers_stays(restored: bool) -> None:
    seen: list[str] = []

    def mine(begin: Callable[..., None]) -> Callable[..., None]:
        def begun(iterator: Any, loader: Any) -> None:
            seen.append("mine")
            begin(iterator, loader)

        return begun

    loader = DataLoader(Decoded(4), batch_size=2, num_workers=1)
    with gpuprof_widgets.profile(quiet=True):
        before = vars(ITERATOR)["__init__"]
        theirs = mine(ITERATOR.__init__)
        ITERATOR.__init__ = theirs  # type: ignore[method-assign]
        batches(loader)
        if restored:
            ITERATOR.__init__ = before  # type: ignore[method-assign]
    left = vars(ITERATOR)["__init__"]
    ITERATOR.__init__ = before  # type: ignore[method-assign]  # as who ends a patch only now
    with torch.profiler.profile() as alone:
        batches(loader)
    ITERATOR.__init__ = PLAIN_START  # type: ignore[method-assign]
    assert left is (PLAIN_START if restored else theirs)
    assert seen == ["mine"]
    assert STARTS_WORKERS not in {event.name for event in alone.events()}


def test_the_start_of_workers_warns_and_fails_where_torch_does() -> None:
    def failure() -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        unsendable = Decoded()
        unsendable.lock = threading.Lock()  # type: ignore[attr-defined]
        loader = DataLoader(unsendable, num_workers=1, multiprocessing_context="spawn")
        seen = warnings.catch_warnings(record=True, action="always")
        with seen as warned, pytest.raises(TypeError, match="lock") as caught:
            iter(loader)
        frames = traceback.extract_tb(caught.tb)[1:]
        return (
            [(one.filename, one.lineno) for one in warned],
            [(frame.filename, frame.lineno or 0) for frame in frames],
        )

    with gpuprof_widgets.profile(quiet=True) as run:
        during = failure()
        torch.ones(2)
    assert during == failure()
    assert during[0][0][0] == dataloader.__file__
    (start,) = starts_of(run).itertuples()
    slices = run.trace.slices
    after = slices.loc[slices["name"] == "aten::ones", "ts"].iloc[0]
    assert start.ts + start.dur <= after


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_start_that_is_interrupted_leaves_no_region_open(error: type[BaseException]) -> None:
    class Interrupted(Decoded):
        def __getstate__(self) -> object:  # as it is sent to the worker
            raise error

    broken = DataLoader(Interrupted(), num_workers=1, multiprocessing_context="spawn")
    with gpuprof_widgets.profile(quiet=True, python="off") as run:
        with pytest.raises(error) as caught:
            iter(broken)
        torch.ones(2)
    assert caught.tb is not None  # whoever keeps the traceback keeps no region
    (start,) = starts_of(run).itertuples()
    slices = run.trace.slices
    (ones,) = slices[slices["name"] == "aten::ones"].itertuples()
    assert start.ts + start.dur <= ones.ts


class OwnIterator(ITERATOR):  # type: ignore[misc]
    """As of a library with an iterator of its own, which uses another loader as it begins."""

    def __init__(self, loader: Any) -> None:
        self.inner = batches(DataLoader(Decoded(2), num_workers=1))
        super().__init__(loader)


class OwnLoader(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return OwnIterator(self)


def test_iterators_of_the_users_own_are_marked_once_each() -> None:
    profile, came = recorded(
        OwnLoader(Decoded(4), batch_size=2, num_workers=1), workers=False, python="off"
    )
    assert len(came) == 2
    starts = starts_of(profile)
    assert len(starts) == 2
    assert starts["ts"][0] + starts["dur"][0] <= starts["ts"][1]


def why_it_waits(loader: DataLoader[Any]) -> Any:
    """The finding between start and end of the workers, which take as long as they like."""
    profile, _ = recorded(loader)
    fetches = spans(profile, "fetch")
    all_there = fetches.groupby("track")["ts"].min().max()
    fetching = profile.window(int(all_there), int(fetches["end"].max()))
    return next(found for found in fetching.findings() if found.rule == "dataloader")


def test_the_finding_names_the_function_and_its_time_per_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loaders, "ITEM_S", 0.05)  # beside what ending a worker takes
    found = why_it_waits(DataLoader(Decoded(16), batch_size=4, num_workers=2))
    # Of one worker where the machine has held that one up.
    assert re.search(r"because `decode` (in worker \d )?takes ", found.text)
    assert "num_workers" in found.remedy


def test_a_collection_while_the_table_is_read_hides_no_entry() -> None:
    """Its callback is a call like any other, and rearranges the tree in which entries are kept."""
    functions = [eval(f"lambda: {number}") for number in range(300)]

    def called(phase: str, info: dict[str, int]) -> None:
        for function in functions[::7]:
            function()

    profile = _lsprof.Profiler()
    before = gc.get_threshold()
    gc.callbacks.append(called)
    try:
        profile.enable()
        for function in functions:
            function()
        gc.set_threshold(1)
        stats = worker_process._stats(profile)
    finally:
        profile.disable()
        gc.set_threshold(*before)
        gc.callbacks.remove(called)
    assert {function.__code__.co_firstlineno for function in functions} == {1}
    assert stats["<string>", 1, "<lambda>"][0] >= len(functions)
    assert gc.isenabled()


@pytest.mark.parametrize("repeat", [1, 2])
def test_the_workers_of_a_loop_are_recorded_in_its_windows(repeat: int) -> None:
    """They start with the loop, before its first window, and are there in every one."""
    loader = DataLoader(Decoded(40), batch_size=2, num_workers=2, prefetch_factor=1)
    with gpuprof_widgets.profile(quiet=True, workers=True) as run:
        for _ in gpuprof_widgets.steps(loader, warmup=2, active=3, repeat=repeat):
            pass
    windows = run.metadata["steps"]["windows"]
    assert len(windows) == repeat
    for window in windows:
        start = window["start_ns"]
        part = run.window(start, start + window["dur_ns"])
        assert part.workers()["worker"].tolist() == [0, 1]
        assert part.workers()["batches"].sum() >= 1
    assert sum(about["items_in_calls"] for about in run.metadata["workers"]) >= 10 * repeat
    slow = slow_function(run)
    assert slow is not None
    assert slow.name == "decode"
    assert slow.per_item_ns >= ITEM_S * NS * 0.99
