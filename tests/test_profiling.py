"""`gpuprof_widgets.profile` around blocks and functions of plain Python programs."""

from __future__ import annotations

import asyncio
import cProfile
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import profiler_is_running
from gpuprof_widgets.exceptions import OptionError, RecordingError

pytestmark = pytest.mark.slow


def ops(profile: gpuprof_widgets.Profile | None) -> set[str]:
    assert profile is not None
    return set(profile.trace.slices.query("category == 'cpu_op'")["name"])


def test_a_block_gives_a_profile_and_prints_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with gpuprof_widgets.profile(name="the block") as run:
        torch.ones(3).sum()
    assert ops(run) >= {"aten::ones", "aten::sum"}
    assert gpuprof_widgets.last is run
    out, err = capsys.readouterr()
    assert "aten::sum" in out
    assert err == ""


def test_a_block_without_name_is_called_after_its_place() -> None:
    with gpuprof_widgets.profile(quiet=True) as run:
        pass
    file, line = run.metadata["label"].split(":")
    assert file == Path(__file__).name
    assert "gpuprof_widgets.profile" in Path(__file__).read_text().splitlines()[int(line) - 1]


def test_an_exception_passes_through_and_the_profile_is_kept() -> None:
    with pytest.raises(ZeroDivisionError), gpuprof_widgets.profile(quiet=True) as run:
        torch.ones(3 // len(torch.ones(0)))
    assert "aten::ones" in ops(run)
    assert run.metadata["error"].startswith("ZeroDivisionError")


def test_it_decorates_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    @gpuprof_widgets.profile
    def step(n: int, *, times: int = 1) -> float:
        """Take a step."""
        return float(torch.ones(n).sum()) * times

    assert step(3, times=2) == 6.0
    assert step.__doc__ == "Take a step."
    assert gpuprof_widgets.last is not None
    assert gpuprof_widgets.last.metadata["label"].endswith("step")
    first = gpuprof_widgets.last
    assert step(4) == 4.0
    assert gpuprof_widgets.last is not first
    assert "aten::sum" in capsys.readouterr().out


def test_each_call_of_a_decorated_function_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.gpuprof").write_bytes(b"of an earlier run of the program")

    @gpuprof_widgets.profile(save="step.gpuprof", quiet=True)
    def step(n: int) -> None:
        torch.ones(1)
        if n:
            step(n - 1)

    @gpuprof_widgets.profile(save=tmp_path / "step.gpuprof", quiet=True)
    async def other() -> None:
        torch.zeros(1)

    step(0)
    first = (tmp_path / "step.gpuprof").read_bytes()
    step(3)
    asyncio.run(other())
    step(0)
    assert (tmp_path / "step.gpuprof").read_bytes() == first
    ran = {
        path.name: {"aten::ones", "aten::zeros"} & set(ops(gpuprof_widgets.load(path)))
        for path in sorted(tmp_path.iterdir())
    }
    assert ran == {
        "step.gpuprof": {"aten::ones"},
        "step_2.gpuprof": {"aten::ones"},
        "step_3.gpuprof": {"aten::zeros"},
        "step_4.gpuprof": {"aten::ones"},
    }


def test_it_decorates_with_options_a_function_that_awaits() -> None:
    @gpuprof_widgets.profile(quiet=True, name="waiting", shapes=True)
    async def step(n: int) -> float:
        await asyncio.sleep(0.01)
        return float(torch.ones(n).sum())

    assert asyncio.run(step(5)) == 5.0
    assert gpuprof_widgets.last is not None
    assert gpuprof_widgets.last.metadata["label"] == "waiting"
    assert gpuprof_widgets.last.metadata["wall_ns"] > 10_000_000
    assert "aten::sum" in ops(gpuprof_widgets.last)


@pytest.mark.parametrize("wrong", [5, "step.zip", int])
def test_only_functions_are_decorated(wrong: Any) -> None:
    with pytest.raises(OptionError, match="decorates a function"):
        gpuprof_widgets.profile(wrong)


def test_generators_are_refused_where_they_are_decorated() -> None:
    def batches() -> Iterator[int]:
        yield 1

    async def batches_awaited() -> AsyncIterator[int]:
        yield 1

    for generator in (batches, batches_awaited):
        with pytest.raises(OptionError, match=r"generator .*batches"):
            gpuprof_widgets.profile(generator)
        with pytest.raises(OptionError, match=r"generator .*batches"):
            gpuprof_widgets.profile(quiet=True)(generator)


def test_a_callable_without_a_name_is_decorated() -> None:
    recorded = gpuprof_widgets.profile(quiet=True)(functools.partial(torch.ones, 3))
    assert recorded().sum().item() == 3
    assert "aten::ones" in ops(gpuprof_widgets.last)


def test_a_run_entered_inside_itself_is_recorded_once_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = gpuprof_widgets.profile(quiet=True)
    before = (sys.getprofile(), "enable" in vars(cProfile.Profile))
    runs = []
    for op in (torch.ones, torch.zeros):  # once more after its end
        with profile as run:
            with profile as inner:
                op(3)
            assert profiler_is_running()
            op(3).sum()
        assert not profiler_is_running()
        assert (sys.getprofile(), "enable" in vars(cProfile.Profile)) == before
        assert ops(run) >= {f"aten::{op.__name__}", "aten::sum"}
        with pytest.raises(RecordingError, match="already being profiled by an outer"):
            ops(inner)
        runs.append(run)
    assert "aten::ones" not in ops(runs[1])
    assert "aten::zeros" not in ops(runs[0])
    assert capsys.readouterr() == ("", "")


def test_of_another_thread_nobody_says_that_the_first_recording_has_it_all() -> None:
    inner = []

    def elsewhere() -> None:
        with gpuprof_widgets.profile(quiet=True) as run:
            torch.ones(3).sum()
        inner.append(run)

    with gpuprof_widgets.profile(quiet=True) as outer:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert "aten::sum" not in ops(outer)
    assert "in another thread or task, and there can be only one at a time" in repr(inner[0])


def test_of_a_task_beside_it_a_recording_has_not_all_but_of_one_within_it() -> None:
    async def profiled(loops: int) -> gpuprof_widgets.Profile:
        with gpuprof_widgets.profile(quiet=True) as run:
            for _ in range(loops):
                await asyncio.sleep(0)
        return run

    async def beside() -> list[gpuprof_widgets.Profile]:
        return list(await asyncio.gather(profiled(2), profiled(9)))

    async def within() -> list[gpuprof_widgets.Profile]:
        with gpuprof_widgets.profile(quiet=True):
            return list(await asyncio.gather(profiled(1)))

    _, later = asyncio.run(beside())
    assert "in another thread or task" in repr(later)
    (inner,) = asyncio.run(within())
    assert "an outer gpuprof profile, which has all of it" in repr(inner)


def test_a_path_that_cannot_be_written_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "no" / "run.zip", "no folder"), (tmp_path, "is a folder")):
        with pytest.raises(OptionError, match=words):
            gpuprof_widgets.profile(save=path)


def test_a_home_folder_is_written_as_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with gpuprof_widgets.profile(quiet=True, save="~/run.zip"):
        torch.ones(3)
    assert "aten::ones" in ops(gpuprof_widgets.load(tmp_path / "run.zip"))


def test_a_file_that_cannot_be_saved_after_all_costs_only_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    with gpuprof_widgets.profile(save=folder / "run.zip") as run:
        torch.ones(3)
        folder.rmdir()
    assert "aten::ones" in ops(run)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_failed_recording_is_one_line_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(self: Recorder) -> None:
        raise RecordingError("no profile: it broke")

    monkeypatch.setattr(Recorder, "record", fails)
    with gpuprof_widgets.profile() as run:
        result = torch.ones(3).sum()
    assert result.item() == 3
    with pytest.raises(RecordingError, match="no profile: it broke"):
        run.operators()
    assert capsys.readouterr() == ("", "gpuprof: no profile: it broke\n")


SCRIPT = """
import gpuprof_widgets, torch
with gpuprof_widgets.profile() as run:
    torch.ones(3).sum()
import sys
assert "IPython" not in sys.modules
"""


class Forked:
    """A child that leaves by an exception, and ends where the parent goes on behind the block."""

    BOUND_S = 60

    def __init__(self) -> None:
        self._child = -1

    def leave(self) -> None:
        """Fork; the child raises SystemExit, the parent waits until it has ended."""
        self._child = os.fork()
        if self._child == 0:
            signal.alarm(self.BOUND_S)
            sys.exit()
        self.status = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])

    def end(self, is_right: Callable[[], bool]) -> None:
        """End the child, which is a second pytest."""
        if self._child == 0:
            os._exit(0 if is_right() else 1)


def records_by_itself() -> bool:
    with gpuprof_widgets.profile(quiet=True) as run:
        torch.eye(3)
    return "aten::eye" in ops(run) and run.calls is not None


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@forks
def test_a_forked_child_that_leaves_the_block_leaves_the_profile_to_its_parent(
    tmp_path: Path,
) -> None:
    path, forked = tmp_path / "run.zip", Forked()
    try:
        with (
            suppress(SystemExit),
            gpuprof_widgets.profile(quiet=True, save=path, workers=True) as run,
        ):
            torch.zeros(3)
            forked.leave()
            torch.ones(3)
    finally:
        forked.end(lambda: "forked" in repr(run) and not path.exists() and records_by_itself())
    assert forked.status == 0
    assert {"aten::zeros", "aten::ones"} <= ops(run)
    assert ops(gpuprof_widgets.load(path)) == ops(run)


@forks
def test_a_forked_child_that_leaves_a_bounded_loop_leaves_the_profile_to_its_parent() -> None:
    forked, before = Forked(), gpuprof_widgets.last
    try:
        with suppress(SystemExit):
            for step in gpuprof_widgets.steps(range(9), warmup=1, active=3):
                torch.ones(step)
                if step == 2:
                    forked.leave()
    finally:
        forked.end(lambda: gpuprof_widgets.last is before and records_by_itself())
    assert forked.status == 0
    assert gpuprof_widgets.last is not None
    assert gpuprof_widgets.last.steps()["step"].tolist() == [1, 2, 3]


def test_a_script_needs_no_ipython_and_prints_plain_text(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    environment.pop("KINETO_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    )
    assert "aten::sum" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


IN_ANOTHER_THREAD = """
import threading, torch
import gpuprof_widgets

def alone(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

profile = gpuprof_widgets.profile()
run = profile.__enter__()
alone(lambda: profile.__exit__(None, None, None))
assert "it began in another thread" in repr(run)
with gpuprof_widgets.profile(quiet=True) as run:
    torch.ones(3).sum()
assert "aten::sum" in set(run.trace.slices["name"])
assert (run.calls is not None, run.metadata["notes"]) == (True, [])
print("alive")
"""


def test_a_profile_that_ends_in_another_thread_has_no_content_and_harms_nothing(
    tmp_path: Path,
) -> None:
    """In a process of its own: torch crashed as it saved what it has in that thread.

    Where the thread in which it began is gone by then torch itself may crash, whoever stops it.
    """
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_THREAD],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("gpuprof: ")]
    assert told == [
        "gpuprof: no profile: recording could not stop: it began in another thread, and torch's "
        "profiler ends only in the thread in which it began"
    ]


def module_spans(profile: gpuprof_widgets.Profile | None) -> list[str]:
    assert profile is not None
    slices = profile.trace.slices
    return slices[slices["category"] == "module"].sort_values("ts")["name"].tolist()


CODE = """
import gpuprof_widgets, torch

model = torch.nn.Sequential(torch.nn.Tanh())
other = torch.nn.ReLU()
x = torch.ones(2)

def block():
    with gpuprof_widgets.profile(quiet=True, modules="model") as run:
        other(model(x))
    return run

@gpuprof_widgets.profile(quiet=True)
def function():
    other(model(x))

def decorated():
    function()
    return gpuprof_widgets.last

def loop():
    for _ in gpuprof_widgets.steps(range(9), warmup=0, active=1):
        other(model(x))
    return gpuprof_widgets.last
"""


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("block", ["model", "model.0"]),
        ("decorated", ["model", "model.0", "other"]),
        ("loop", ["model", "model.0", "other"]),
    ],
)
def test_modules_have_the_names_of_the_programs_variables(how: str, expected: list[str]) -> None:
    program: dict[str, Any] = {"__name__": "program"}
    exec(CODE, program)
    assert module_spans(program[how]()) == expected
