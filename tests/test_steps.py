"""Bounded loops in plain Python: which iterations run, which are recorded, what is left behind."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

import gpuprof_widgets
from gpuprof_widgets.capture.loop.iterations import Schedule
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.capture.torch_profiler import TorchRecording, profiler_is_running
from gpuprof_widgets.exceptions import OptionError, RecordingError
from gpuprof_widgets.options import Options
from tests.leftovers import PACKAGE_FOLDER

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """What is shown is captured, tqdm has no thread, and those of queues end with the test."""
    tqdm.monitor_interval = 0
    threads = threading.active_count()
    yield
    until = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < until:
        time.sleep(0.05)


class Seen:
    """What a loop's body saw: every item, and whether a torch profiler ran meanwhile."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.profiled: list[bool] = []

    def __call__(self, item: Any) -> None:
        self.items.append(item)
        self.profiled.append(profiler_is_running())
        torch.ones(3).sum()


def last() -> gpuprof_widgets.Profile:
    assert gpuprof_widgets.last is not None
    return gpuprof_widgets.last


def recorded_steps() -> list[int]:
    return last().steps()["step"].tolist()


def kinds() -> list[str]:
    return last().iterations()["kind"].tolist()


def notes() -> list[str]:
    return list(last().metadata["notes"])


@pytest.mark.parametrize(("asked", "calls"), [(None, 8), (2, 8), (9, 9)])
def test_cprofile_runs_at_least_as_long_as_the_trace(asked: int | None, calls: int) -> None:
    assert Schedule.of(Options(steps=8, cprofile_steps=asked)).calls == calls


def test_a_loop_is_warmed_up_recorded_and_ended() -> None:
    seen, after = Seen(), False
    for item in gpuprof_widgets.steps(range(100)):
        seen(item)
    else:
        after = True
    assert after
    assert seen.items == list(range(11))
    assert seen.profiled == [False] * 3 + [True] * 8
    assert recorded_steps() == list(range(3, 11))
    assert kinds() == ["warmup"] * 3 + ["recorded"] * 8
    assert notes() == []


def test_a_loop_that_keeps_going_is_recorded_in_part() -> None:
    seen = Seen()
    loop = gpuprof_widgets.steps(range(20), warmup=2, active=3, keep_going=True)
    assert len(loop) == 20
    for item in loop:
        seen(item)
        torch.full((1,), item)
    assert seen.items == list(range(20))
    assert seen.profiled == [False] * 2 + [True] * 3 + [False] * 15
    assert recorded_steps() == [2, 3, 4]
    assert last().trace.slices["name"].tolist().count("aten::full") == 3
    assert notes() == []


@pytest.mark.parametrize("items", [11, 13, 20, 24])
def test_a_loop_is_recorded_again_and_again_each_time_to_a_file_of_its_own(
    tmp_path: Path, items: int
) -> None:
    options = {"warmup": 1, "active": 2, "keep_going": True, "every": 10}
    (tmp_path / "run_step99.gpuprof").touch()  # of an earlier run, which is left alone
    for item in gpuprof_widgets.steps(range(items), **options, save=tmp_path / "run.gpuprof"):  # type: ignore[call-overload]
        torch.full((1,), item)
    firsts = [first for first in (1, 11, 21) if first + 1 < items]
    files = {f"run_step{first}.gpuprof" for first in firsts}
    assert {path.name for path in tmp_path.iterdir()} == files | {"run_step99.gpuprof"}
    for first in firsts:
        profile = gpuprof_widgets.load(tmp_path / f"run_step{first}.gpuprof")
        assert profile.steps()["step"].tolist() == [first, first + 1]
        assert profile.trace.slices["name"].tolist().count("aten::full") == 2
    assert recorded_steps() == [firsts[-1], firsts[-1] + 1]
    assert notes() == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"every": 50}, "give --keep-going"),
        ({"every": 50, "keep_going": True}, "give --save"),
        ({"every": 9, "keep_going": True, "save": "run.gpuprof"}, "at least 11 iterations"),
    ],
)
def test_what_every_needs_is_said(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        gpuprof_widgets.steps([], **given)


def test_a_step_covers_the_fetch_of_its_item_and_the_body() -> None:
    def source() -> Iterator[int]:
        for number in range(100):
            torch.full((1,), number)
            yield number

    for _ in gpuprof_widgets.steps(source(), warmup=1, active=2):
        torch.ones(1)
    slices = last().trace.slices
    steps = slices[slices["name"].str.startswith("ProfilerStep")]
    for _, step in steps.iterrows():
        inside = slices[(slices["ts"] > step["ts"]) & (slices["ts"] < step["ts"] + step["dur"])]
        names = inside["name"].tolist()
        assert (names.count("aten::full"), names.count("aten::ones")) == (1, 1)
    assert (steps["category"] == "user_annotation").all()


def test_each_window_has_the_region_that_bears_the_label() -> None:
    for _ in gpuprof_widgets.steps(range(100), warmup=1, active=2, repeat=3):
        torch.ones(1)
    slices = last().trace.slices
    label = last().metadata["label"]
    regions = slices.index[slices["name"] == label]
    assert len(regions) == 3
    steps = slices[slices["name"].str.startswith("ProfilerStep")]
    assert sorted(steps["parent"]) == sorted([*regions, *regions])


def test_several_windows_lie_one_behind_the_other_and_keep_their_true_times() -> None:
    for _ in gpuprof_widgets.steps(range(100), wait=1, warmup=1, active=2, repeat=3):
        time.sleep(0.002)
    assert recorded_steps() == [2, 3, 6, 7, 10, 11]
    profile = last()
    windows = profile.metadata["steps"]["windows"]
    assert [window["first_step"] for window in windows] == [2, 6, 10]
    ends = [window["start_ns"] + window["dur_ns"] for window in windows]
    assert [window["start_ns"] for window in windows] == [0, *ends[:-1]]
    assert profile.trace.end_ns == ends[-1]
    for window, following in itertools.pairwise(windows):
        unrecorded = following["epoch_ns"] - window["epoch_ns"] - window["dur_ns"]
        assert unrecorded >= 2 * 2_000_000  # the two steps between them that only slept
    slices = profile.trace.slices
    steps = slices[slices["name"].str.startswith("ProfilerStep")]
    of_window = np.searchsorted(ends, steps["ts"], side="right")
    assert of_window.tolist() == [0, 0, 1, 1, 2, 2]
    assert (steps["ts"] + steps["dur"] <= np.array(ends)[of_window]).all()


def step_work() -> None:
    torch.ones(1)


def test_cprofile_goes_on_where_the_trace_has_ended() -> None:
    seen = Seen()
    for item in gpuprof_widgets.steps(range(100), warmup=2, active=3, cprofile=7):
        seen(item)
        step_work()
    assert len(seen.items) == 9
    assert seen.profiled == [False] * 2 + [True] * 3 + [False] * 4
    calls = last().python_calls().set_index("name")["calls"]
    assert calls["step_work"] == 7
    assert recorded_steps() == [2, 3, 4]
    assert kinds() == ["warmup"] * 2 + ["recorded"] * 3 + ["cprofile"] * 4
    assert notes() == ["cProfile counted 7 steps, of which the trace has 3"]


def test_nothing_of_ours_is_among_the_python_calls() -> None:
    for _ in gpuprof_widgets.steps(range(100), warmup=1, active=3, cprofile=5):
        step_work()
    table = last().python_calls()
    assert not table["file"].str.startswith(PACKAGE_FOLDER).any()
    assert not table["name"].str.contains("record_function|perf_counter|synchronize").any()
    assert not table["file"].str.contains("torch/profiler|torch/autograd/profiler").any()


def test_a_generator_is_closed_before_the_loop_goes_on() -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append(True)

    items = source()
    for _ in gpuprof_widgets.steps(items, warmup=1, active=1):
        assert not closed
    else:
        assert closed == [True]
    assert list(items) == []


class Numbers(Dataset[int]):
    """Items that are there at once."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("held", [False, True])
def test_the_workers_of_a_dataloader_are_gone_before_the_loop_goes_on(held: bool) -> None:
    before = len(multiprocessing.active_children())
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2)
    items = iter(loader) if held else loader
    for number, _ in enumerate(gpuprof_widgets.steps(items, warmup=1, active=2)):
        assert number < 3
        assert len(multiprocessing.active_children()) == before + 2
    else:
        assert len(multiprocessing.active_children()) == before
    names = last().trace.slices["name"]
    assert names.str.contains("DataLoaderIter.__next__").sum() == 2


def test_persistent_workers_stay_as_they_do_after_the_last_batch() -> None:
    before = len(multiprocessing.active_children())
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1, persistent_workers=True)
    for _ in gpuprof_widgets.steps(loader, warmup=1, active=1):
        pass
    assert len(multiprocessing.active_children()) == before + 1
    del loader
    gc.collect()


def test_a_loop_that_ends_in_its_warm_up_says_that_nothing_was_recorded() -> None:
    for _ in gpuprof_widgets.steps(range(2)):
        torch.ones(1)
    assert len(last().trace) == 0
    assert notes() == [
        "the loop ended after 2 iterations; the first 3 iterations run unrecorded, so nothing was "
        "recorded"
    ]


def test_a_loop_over_nothing_runs_not_at_all() -> None:
    for _ in gpuprof_widgets.steps([], warmup=0):
        raise AssertionError
    assert kinds() == []
    assert recorded_steps() == []


def test_break_ends_the_recording_at_once() -> None:
    for item in gpuprof_widgets.steps(range(100), warmup=1, active=8):
        torch.full((1,), item)
        if item == 3:
            break
    assert not profiler_is_running()
    assert Active.recorder is None
    torch.zeros(1)
    assert recorded_steps() == [1, 2, 3]
    assert last().iterations()["complete"].tolist() == [True, True, True, False]
    assert notes() == [
        "the loop was left after 4 iterations: 3 of the 8 steps asked for were recorded"
    ]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_in_the_body_passes_and_what_ran_is_recorded(
    error: type[BaseException],
) -> None:
    def run() -> None:
        for item in gpuprof_widgets.steps(range(100), warmup=1, active=8):
            torch.full((1,), item)
            if item == 3:
                raise error

    with pytest.raises(error) as caught:
        run()
    assert {Path(str(entry.path)).name for entry in caught.traceback} == {Path(__file__).name}
    assert not profiler_is_running()
    assert recorded_steps() == [1, 2, 3]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_of_the_source_passes_and_is_named(error: type[BaseException]) -> None:
    def source() -> Iterator[int]:
        yield from range(3)
        raise error

    def run() -> None:
        for _ in gpuprof_widgets.steps(source(), warmup=1, active=8):
            torch.ones(1)

    with pytest.raises(error):
        run()
    metadata = last().metadata
    assert recorded_steps() == [1, 2, 3]
    assert metadata["interrupted"] == (error is KeyboardInterrupt)
    assert metadata["error"] == (None if error is KeyboardInterrupt else "ZeroDivisionError")


def test_an_outer_recording_has_the_loop_and_not_what_ran_before_and_after_it() -> None:
    with gpuprof_widgets.profile(quiet=True, name="outer") as run:
        torch.zeros(1)
        for item in gpuprof_widgets.steps(range(100), warmup=2, active=3):
            torch.full((1,), item)
        torch.zeros(1)
    assert run is last()
    assert last().metadata["label"] == "outer"
    names = last().trace.slices["name"].tolist()
    assert names.count("aten::full") == 3
    assert "aten::zeros" not in names
    assert recorded_steps() == [2, 3, 4]


def test_an_outer_recording_keeps_its_options() -> None:
    with gpuprof_widgets.profile(quiet=True, stack=True) as run:
        for _ in gpuprof_widgets.steps(range(100), warmup=1, active=2, cprofile=50):
            step_work()
    slices = run.trace.slices
    frames = slices.loc[slices["category"] == "python_function", "name"].tolist()
    assert sum("step_work" in name for name in frames) == 2
    assert not any("gpuprof_widgets/capture" in name for name in frames)
    assert len(run.iterations()) == 3  # cProfile does not run beside stacks


def test_a_loop_inside_a_bounded_one_ends_as_well_but_is_not_recorded() -> None:
    inner = []
    for _ in gpuprof_widgets.steps(range(100), warmup=1, active=2):
        inner.append(list(gpuprof_widgets.steps(range(100), warmup=1, active=1)))
    assert inner == [[0, 1]] * 3
    assert recorded_steps() == [1, 2]
    (note,) = notes()
    assert "records one loop" in note


def test_a_profile_inside_the_loop_records_nothing_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in gpuprof_widgets.steps(range(100), warmup=1, active=2):
        with gpuprof_widgets.profile() as inner:
            torch.ones(1)
        with pytest.raises(RecordingError, match="already being profiled"):
            inner.findings()
    assert capsys.readouterr().err.count("already being profiled") == 1
    assert recorded_steps() == [1, 2]


def test_it_can_be_used_again() -> None:
    items = gpuprof_widgets.steps([1, 2, 3, 4], warmup=1, active=2)
    assert [list(items), list(items)] == [[1, 2, 3], [1, 2, 3]]
    assert recorded_steps() == [1, 2]


def test_wrapped_in_others_it_ends_them() -> None:
    items = gpuprof_widgets.steps("abcdef", warmup=1, active=2)
    assert list(enumerate(items)) == [(0, "a"), (1, "b"), (2, "c")]
    assert list(zip(range(9), items, strict=False)) == [(0, "a"), (1, "b"), (2, "c")]
    assert len(items) == 3


def test_a_source_without_length_has_none() -> None:
    with pytest.raises(TypeError):
        len(gpuprof_widgets.steps(iter("abc")))


def test_a_progress_bar_around_it_is_full_at_the_end() -> None:
    out = io.StringIO()
    for _ in tqdm(gpuprof_widgets.steps(range(1000), warmup=2, active=3), file=out, mininterval=0):
        pass
    assert "100%" in out.getvalue()
    assert "5/5" in out.getvalue()


@pytest.mark.parametrize("total", [None, 1000])
def test_a_progress_bar_inside_it_is_full_at_the_end(total: int | None) -> None:
    out = io.StringIO()
    source = range(1000) if total is None else iter(range(1000))
    bar = tqdm(source, total=total, file=out, mininterval=0)
    for _ in gpuprof_widgets.steps(bar, warmup=2, active=3):
        pass
    assert "5/5" in out.getvalue()
    assert (bar.n, bar.total) == (5, 5)
    assert bar.iterable is source
    assert recorded_steps() == [2, 3, 4]


def test_a_progress_bar_inside_it_that_knows_no_total_counts_on() -> None:
    out = io.StringIO()
    bar = tqdm(iter(range(1000)), file=out, mininterval=0)
    for _ in gpuprof_widgets.steps(bar, warmup=2, active=3):
        pass
    assert (bar.n, bar.total) == (5, None)


def test_an_asynchronous_loop_is_bounded_too() -> None:
    closed = []

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(100):
                await asyncio.sleep(0)
                yield number
        finally:
            closed.append(True)

    async def run() -> list[int]:
        seen = []
        async for item in gpuprof_widgets.steps(source(), warmup=1, active=2):
            torch.full((1,), item)
            seen.append(item)
        assert closed == [True]
        return seen

    assert asyncio.run(run()) == [0, 1, 2]
    assert recorded_steps() == [1, 2]


def test_the_iterations_know_how_long_they_took() -> None:
    pauses = [0.03, 0.0, 0.0, 0.01, 0.02]
    for pause in gpuprof_widgets.steps(pauses, warmup=2, active=3):
        time.sleep(pause)
    table = last().iterations()
    assert table["step"].tolist() == [0, 1, 2, 3, 4]
    assert (table["dur_ns"] >= [round(pause * 1e9) for pause in pauses]).all()
    recorded = table[table["kind"] == "recorded"]["dur_ns"].to_numpy()
    inside = last().steps()["dur_ns"].to_numpy()
    assert (recorded >= inside).all()


@pytest.fixture(scope="module")
def compiler() -> None:
    """The compiler of torch after its first use, when it patches `Module.__init__` for good."""
    torch.compile(torch.neg, backend="eager")(torch.ones(1))


def test_compilation_in_the_warm_up_is_told_apart(compiler: None) -> None:
    torch._dynamo.reset()

    @torch.compile(backend="eager")
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for _ in gpuprof_widgets.steps(range(100), warmup=3, active=2):
        compiled(torch.ones(3))
    noted = last().metadata["steps"]["one_off"]
    assert noted["graphs"] == 1
    first = last().iterations()["dur_ns"].iloc[0]
    assert 0 < noted["compile_ns"] <= first
    assert noted["after_warmup"]["graphs"] == 0
    assert any("torch.compile compiled 1 graph" in one.text for one in last().findings())


NEVER_ENDED = """
import gpuprof_widgets
items = iter(gpuprof_widgets.steps(range(9), warmup=0))
next(items)
"""


def test_a_loop_that_is_never_ended_ends_quietly_with_the_program() -> None:
    environment = os.environ | {"KINETO_LOG_LEVEL": "99"}
    command = [sys.executable, "-c", NEVER_ENDED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_profiler_of_the_users_keeps_the_ops_and_the_loop_is_still_bounded() -> None:
    seen = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        for item in gpuprof_widgets.steps(range(100), warmup=1, active=2):
            seen.append(item)
            torch.full((1,), item)
    assert seen == [0, 1, 2]
    assert sum(event.key == "aten::full" for event in own.key_averages()) == 1
    assert any("your own torch.profiler" in note for note in notes())


def test_a_recording_that_cannot_start_costs_the_profile_and_not_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(TorchRecording, "start", fail)
    gpuprof_widgets.last = None
    assert list(gpuprof_widgets.steps(range(100), warmup=1, active=2)) == [0, 1, 2]
    assert gpuprof_widgets.last is None
    assert "recording could not start: RuntimeError: broken" in capsys.readouterr().err


def test_a_further_window_that_cannot_start_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, begun = TorchRecording.start, []

    def fail_the_second(self: TorchRecording) -> None:
        begun.append(self)
        if len(begun) == 2:
            raise RuntimeError("broken")
        start(self)

    monkeypatch.setattr(TorchRecording, "start", fail_the_second)
    assert len(list(gpuprof_widgets.steps(range(100), warmup=1, active=2, repeat=3))) == 9
    assert recorded_steps() == [1, 2, 7, 8]
    assert notes() == ["a further window could not start: RuntimeError: broken"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_the_work_of_the_gpu_lies_in_its_steps_and_the_tail_is_there() -> None:
    matrix = torch.ones(2048, 2048, device="cuda")
    for _ in gpuprof_widgets.steps(range(100), warmup=2, active=4, repeat=2):
        matrix @ matrix
    profile = last()
    assert len(profile.steps()) == 8
    kernels = profile.trace.slices.query("category == 'kernel'")
    assert len(kernels) == 8
    assert (kernels["launch"] >= 0).all()
    assert (kernels["op"] >= 0).all()
