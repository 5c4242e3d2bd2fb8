"""The recorder outside of notebooks: what it records, what it says, what it leaves behind."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.capture import torch_profiler
from gpuprof_widgets.capture.cprofile import CallsRecording, note_on_threads
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import Entrances, TorchRecording
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.model import Calls, Record
from tests.traces import calls_of


def factorial(n: int) -> int:
    return n * factorial(n - 1) if n else 1


def work() -> torch.Tensor:
    factorial(4)
    weights = torch.ones(8, 8, requires_grad=True)
    loss = (weights @ torch.ones(8, 8)).sum()
    loss.backward()
    return loss


def record(run: Callable[[], object] = work, **options: Any) -> Record:
    with Recorder(Options(**options), label="the run") as recorder:
        run()
    return recorder.record()


def names(made: Record, category: str = "cpu_op") -> list[str]:
    return made.trace.slices.query("category == @category")["name"].tolist()


def calls(made: Record) -> dict[str, tuple[int, int]]:
    assert made.calls is not None
    table = made.calls.functions
    counts = zip(table["calls"], table["primitive_calls"], strict=True)
    return dict(zip(table["name"], counts, strict=True))


def test_ops_and_python_calls_are_recorded_together() -> None:
    made = record()
    assert {"aten::mm", "aten::sum", "MmBackward0"} <= set(names(made))
    assert calls(made)["factorial"] == (5, 1)
    assert calls(made)["work"] == (1, 1)


def test_a_region_with_the_label_holds_every_op_of_the_run() -> None:
    slices = record().trace.slices
    (row,) = slices.index[slices["name"] == "the run"]
    region, rest = slices.loc[row], slices.drop(row)
    assert region["category"] == "user_annotation"
    assert (rest["ts"] >= region["ts"]).all()
    assert (rest["ts"] + rest["dur"] <= region["ts"] + region["dur"]).all()
    assert (rest["parent"] >= 0).all()


def test_an_empty_run_holds_nothing_of_ours() -> None:
    made = record(lambda: None, stack=True)
    assert names(made, "user_annotation") == ["the run"]
    assert [name.split(": ")[-1] for name in names(made, "python_function")] == ["<lambda>"]
    assert set(calls(record(lambda: None))) == {"<lambda>"}


def test_the_region_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), Recorder(Options(), label="the run") as recorder:
        torch.ones(3 // 0)
    made = recorder.record()
    assert made.metadata["error"] == "ZeroDivisionError: integer division or modulo by zero"
    slices = made.trace.slices
    assert slices.loc[slices["name"] == "the run", "dur"].item() == made.trace.span_ns


class WithoutTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


def test_an_error_without_text_passes_and_is_told_by_its_type() -> None:
    def fails() -> None:
        work()
        raise WithoutTextError

    with pytest.raises(WithoutTextError), Recorder(Options(), label="the run") as recorder:
        fails()
    made = recorder.record()
    assert made.metadata["error"] == "WithoutTextError"
    assert "aten::mm" in names(made)


@pytest.fixture
def open_all_files() -> Iterator[Callable[[], None]]:
    """Opens files until no further one is allowed; they are closed after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []

    def open_all() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 1024), before[1]))
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))

    yield open_all
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for number in held:
        os.close(number)


def test_where_no_file_can_be_opened_the_python_calls_are_kept(
    open_all_files: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record()  # what is loaded at first takes files, and makes folders
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Recorder(Options(), label="the run") as recorder:
        work()
        open_all_files()
    made = recorder.record()
    assert calls(made)["factorial"] == (5, 1)
    (note,) = made.metadata["notes"]
    assert note.startswith("no ops: torch's temporary file cannot be written or read (Too many")
    assert "ulimit -n" in note
    tmp_path.rmdir()  # nothing is left in it


def test_ops_of_threads_that_the_run_starts_are_left_out() -> None:
    """As torch.profiler itself does; its mode for all threads crashes processes (torch 2.13)."""

    def run() -> None:
        thread = threading.Thread(target=lambda: torch.arange(3))
        thread.start()
        thread.join()
        torch.ones(2)

    made = record(run)
    assert "aten::ones" in names(made)
    assert "aten::arange" not in names(made)
    (note,) = made.metadata["notes"]
    assert note.startswith("threads were started (by `run` in tests/test_recorder.py): torch's")


def started_along(*chains: str, has_frames: bool = False) -> list[str]:
    """What is told of starts of threads by calls along "file:function > file:function > ..."."""
    edges: list[tuple[str | None, str, int, int]] = []
    for chain in chains:
        places = chain.split(" > ")
        callers = [None, *places[:-1]]
        edges += [(caller, callee, 1, 1) for caller, callee in zip(callers, places, strict=True)]
    calls = calls_of(*edges)
    split = calls.functions["name"].str.split(":", n=1, expand=True)
    functions = calls.functions.assign(file=split[0], name=split[1])
    return note_on_threads(Calls(functions, calls.edges), has_frames=has_frames)


@pytest.mark.parametrize("has_frames", [True, False])
def test_samples_are_advised_where_the_python_of_threads_is_missing(has_frames: bool) -> None:
    (note,) = started_along("Cell [2]:<module> > threading.py:start", has_frames=has_frames)
    assert note.endswith("; --python sampled shows their Python functions") != has_frames


@pytest.mark.parametrize(
    ("chain", "who"),
    [
        ("Cell [2]:<module> > threading.py:start", " (by Cell [2])"),
        ("a/b.py:f > /usr/lib/python3.11/threading.py:start", " (by `f` in a/b.py)"),
        (
            r"\x\b.py:f > \lib\asyncio\threads.py:to_thread"
            r" > \lib\concurrent\futures\thread.py:submit > \lib\threading.py:start",
            " (by `f` in x/b.py)",
        ),
        (
            "b.py:f > /l/multiprocessing/pool.py:__init__"
            " > /l/multiprocessing/dummy/__init__.py:start > /l/threading.py:start",
            " (by `f` in b.py)",
        ),
        ("concurrent/futures/thread.py:submit > threading.py:start", ""),
        ("threading.py:start", ""),
    ],
)
def test_who_started_threads_is_named_as_far_as_it_is_known(chain: str, who: str) -> None:
    (note,) = started_along(chain)
    assert note.startswith(f"threads were started{who}: torch's profiler follows only")


def test_of_many_who_started_threads_the_first_are_named() -> None:
    (note,) = started_along(*(f"{name}.py:f > threading.py:start" for name in "abcd"))
    assert " (by `f` in a.py, `f` in b.py, `f` in c.py, others):" in note


@pytest.mark.parametrize(
    "starter",
    [
        *("multiprocessing/queues.py:_start_thread", "/l/multiprocessing/pool.py:__init__"),
        *("/l/concurrent/futures/process.py:submit", "torch/utils/data/dataloader.py:__init__"),
        r"\lib\tqdm\_monitor.py:__init__",
    ],
)
def test_threads_that_carry_work_or_watch_a_bar_are_not_told(starter: str) -> None:
    assert started_along(f"{starter} > threading.py:start") == []
    assert started_along(f"{starter} > threading.py:start", "b.py:f > threading.py:start") != []


def test_threads_that_compile_are_not_told() -> None:
    """They are a pool's: of other users of it all is told."""
    pool = "concurrent/futures/thread.py:submit > threading.py:start"
    compiling = f"/l/torch/_inductor/async_compile.py:submit > {pool}"
    assert started_along(compiling) == []
    (note,) = started_along(compiling, f"b.py:f > {pool}")
    assert note.startswith("threads were started (by `f` in b.py): ")
    (note,) = started_along(compiling, pool)
    assert note.startswith("threads were started: ")


def test_only_pythons_own_thread_counts_as_one() -> None:
    assert started_along("b.py:f > multithreading.py:start") == []


def test_without_cprofile_there_are_no_python_calls() -> None:
    assert record(python="off").calls is None


def test_flops_are_those_of_key_averages() -> None:
    def run() -> None:
        for _ in range(3):
            torch.ones(4, 5) @ torch.ones(5, 6)

    table = operators(record(run, flops=True)).set_index("name")
    assert table.loc["aten::mm", "flops"] == 3 * 2 * 4 * 5 * 6
    with torch.profiler.profile(with_flops=True) as torchs_own:
        run()
    by_torch = {row.key: row.flops for row in torchs_own.key_averages() if row.flops}
    assert by_torch == {"aten::mm": 720}


def test_calls_counted_from_frames_are_those_of_cprofile() -> None:
    expected = calls(record())
    made = record(stack=True)
    counted = calls(made)
    for name in ("work", "factorial", "backward", "_engine_run_backward"):
        assert counted[name] == expected[name], name
    assert made.calls is not None
    functions, edges = made.calls.functions, made.calls.edges
    row = {name: number for number, name in enumerate(functions["name"])}
    recursion = edges[(edges["caller"] == row["factorial"]) & (edges["callee"] == row["factorial"])]
    assert recursion[["calls", "primitive_calls"]].to_numpy().tolist() == [[4, 1]]
    into_work = functions.loc[row["work"]]
    assert into_work["self_ns"] <= into_work["total_ns"] <= made.trace.span_ns


def test_the_trace_still_holds_together_without_our_frames() -> None:
    slices = record(stack=True).trace.slices
    parent = slices["parent"].to_numpy()
    inner = slices[parent >= 0]
    above = slices.loc[inner["parent"]]
    assert (above["ts"].to_numpy() <= inner["ts"].to_numpy()).all()
    assert (above["track"].to_numpy() == inner["track"].to_numpy()).all()
    assert (above["depth"].to_numpy() + 1 == inner["depth"].to_numpy()).all()
    backward = slices[slices["name"] == "MmBackward0"]["forward"].to_numpy()
    assert slices["name"][backward].tolist() == ["aten::mm"]


def test_the_record_says_how_and_where_it_was_made() -> None:
    metadata = record().metadata
    assert metadata["label"] == "the run"
    assert metadata["torch"] == torch.__version__
    assert metadata["options"]["top"] == Options().top
    assert metadata["cuda"] is torch.cuda.is_available()
    assert len(metadata["devices"]) == torch.cuda.device_count()
    assert metadata["wall_ns"] > 0
    assert metadata["stop_ns"] > 0


def fail(*_: object, **__: object) -> Any:
    raise RuntimeError("broken\nsecond line")


STAGES = {
    "torch starts": (TorchRecording, "start", "recording could not start"),
    "torch stops": (TorchRecording, "stop", "recording could not stop"),
    "the trace is read": (TorchRecording, "trace", "the recording could not be read"),
    "cProfile stops": (CallsRecording, "stop", "recording could not stop"),
    "calls are read": (CallsRecording, "calls", "the recording could not be read"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_of_profiling_is_one_line_and_the_run_goes_on(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, words = STAGES[stage]
    stopped = getattr(owner, method)

    def fails(self: Any, *args: Any) -> Any:
        if method == "stop":
            stopped(self, *args)  # the failure comes at the end of it
        fail()

    monkeypatch.setattr(owner, method, fails)
    with Recorder(Options(), label="the run") as recorder:
        result = work()
    assert result.item() == 512
    with pytest.raises(RecordingError) as raised:
        recorder.record()
    assert str(raised.value) == f"no profile: {words}: RuntimeError: broken"


@pytest.mark.parametrize("interrupted", ["waiting", "stopping"])
def test_an_interrupt_while_we_stop_passes_through_and_leaves_nothing(
    interrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object) -> None:
        monkeypatch.undo()  # once
        raise KeyboardInterrupt

    if interrupted == "waiting":
        monkeypatch.setattr(torch_profiler, "wait_for_device", press)
    else:
        monkeypatch.setattr(torch.profiler.profile, "stop", press)
    with pytest.raises(KeyboardInterrupt), Recorder(Options(), label="the run") as recorder:
        work()
    with pytest.raises(RecordingError, match="could not stop: KeyboardInterrupt"):
        recorder.record()
    assert "aten::mm" in names(record())


def test_a_cprofile_that_does_not_start_costs_only_the_python_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CallsRecording, "start", fail)
    made = record()
    assert made.calls is None
    assert "aten::mm" in names(made)
    assert made.metadata["notes"] == [
        "no Python calls: cProfile could not start: RuntimeError: broken"
    ]


def test_a_users_profile_function_is_left_in_place() -> None:
    def hook(*_: object) -> None: ...

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        made = record()
        assert sys.getprofile() is hook
    finally:
        sys.setprofile(before)
    if sys.version_info < (3, 12):
        assert made.calls is None
        assert any("Python profiler is already running" in n for n in made.metadata["notes"])


def test_a_profile_function_set_in_the_run_is_left_in_place() -> None:
    def hook(*_: object) -> None: ...

    try:
        made = record(lambda: (factorial(2), sys.setprofile(hook)))
        assert sys.getprofile() is hook
    finally:
        sys.setprofile(None)
    assert calls(made)["factorial"] == (3, 1)
    if sys.version_info < (3, 12):
        assert any("took over" in note for note in made.metadata["notes"])


def test_what_we_do_before_and_after_the_run_is_not_in_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Entrances.watch

    def start(self: Entrances, give_way: Callable[[], None]) -> None:
        torch.zeros(2)
        started(self, give_way)

    def wait() -> None:
        with torch.profiler.record_function(torch_profiler.SYNCHRONISE_REGION):
            torch.arange(3)

    monkeypatch.setattr(Entrances, "watch", start)
    monkeypatch.setattr(torch_profiler, "wait_for_device", wait)
    made = record()
    assert not {"aten::zeros", "aten::arange"} & set(names(made))
    assert names(made, "user_annotation") == ["the run"]
    region = made.trace.slices.set_index("name").loc["the run"]
    assert (made.trace.start_ns, made.trace.end_ns) == (0, region["ts"] + region["dur"])


def test_kineto_is_silenced_unless_the_user_set_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    torch_profiler.silence_kineto()
    assert os.environ["KINETO_LOG_LEVEL"] == "99"
    monkeypatch.setenv("KINETO_LOG_LEVEL", "1")
    torch_profiler.silence_kineto()
    assert os.environ["KINETO_LOG_LEVEL"] == "1"
