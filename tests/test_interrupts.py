"""Ctrl-C at every stage of a profiled cell: its result stands, and nothing of ours stays behind."""

from __future__ import annotations

import _signal
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.capture.interrupts import DeferredSignals, Raised
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.capture.torch_profiler import TorchRecording, profiler_is_running
from gpuprof_widgets.options import Options
from tests.kernels import Kernel, loaded_kernel

__all__ = ["loaded_kernel"]

PRESS = """
import signal
from gpuprof_widgets.capture import cprofile, recorder, torch_profiler
from gpuprof_widgets import profiles, runtime_carrier
from gpuprof_widgets.trace import archive
from gpuprof_widgets.views import report
owner, name = {owner}, {name!r}
intact = getattr(owner, name)
def pressed(*args, **kwargs):
    setattr(owner, name, intact)
    signal.raise_signal(signal.SIGINT)
    return intact(*args, **kwargs)
setattr(owner, name, pressed)
"""

AFTER_THE_CELL = {
    "the device is waited for": ("torch_profiler", "wait_for_device", None),
    "torch stops": ("torch_profiler.TorchRecording", "stop", None),
    "cProfile stops": ("cprofile.CallsRecording", "stop", None),
    "torch writes its trace": ("torch_profiler", "_exported", "read"),
    "the trace is read": ("torch_profiler", "parse_chrome_trace", "read"),
    "the calls are read": ("cprofile.CallsRecording", "calls", "read"),
    "it is saved": ("archive", "dump_pstats", "saved"),
    "the picture is drawn": ("report", "picture_png", "shown"),
    "the page is made": ("report", "page_script", "shown"),
    "it is displayed": ("runtime_carrier.RuntimeCarrier", "is_needed", "shown"),
}
"""Where the Ctrl-C comes, and before what the profile is then left; None: it is shown after all."""

IS_LAST = ", and `gpuprof_widgets.last` is its profile"


@pytest.fixture
def kernel(loaded_kernel: Kernel) -> Iterator[Kernel]:
    yield loaded_kernel
    loaded_kernel.check_unchanged()


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("moment", "awaits"),
    [
        *((moment, False) for moment in AFTER_THE_CELL),
        *((moment, True) for moment in ("torch stops", "the trace is read", "the page is made")),
    ],
)
def test_after_the_cell_it_costs_the_profile_at_most(
    kernel: Kernel, moment: str, awaits: bool
) -> None:
    owner, name, stage = AFTER_THE_CELL[moment]
    kernel.run("import torch, asyncio; x = 0")
    kernel.run("%%gpuprofile -q\n0")  # warms up, which makes a page before the cell runs
    kernel.run(PRESS.format(owner=owner, name=name))
    wait = "await asyncio.sleep(0)\n" if awaits else ""
    where = kernel.value("__import__('tempfile').mkdtemp()") + "/run.zip"
    outcome = kernel.run(
        f"%%gpuprofile -o run --save {where}\n{wait}x = torch.ones(3).sum().item()\nx + 1"
    )
    assert (outcome.status, outcome.result) == ("ok", "4.0"), outcome.errors
    assert kernel.value("x") == 3.0
    if stage is None:
        assert (outcome.stderr, len(outcome.displays)) == ("", 3)
    else:
        left = "; run has no content" if stage == "read" else IS_LAST
        assert outcome.stderr == (
            f"gpuprofile: interrupted before the profile was {stage}; the cell had ended{left}\n"
        )
    if stage == "read":
        assert kernel.value("repr(run)").startswith("<Profile: no profile: ")
    else:
        assert kernel.value("type(run).__name__") == "Profile"
        assert kernel.value("__import__('gpuprof_widgets').last is run")
    kept = kernel.value(f"sorted(__import__('os').listdir({where.removesuffix('/run.zip')!r}))")
    assert kept == ([] if stage in ("read", "saved") else ["run.zip"])
    again = kernel.run("%%gpuprofile\ntorch.ones(3).sum().item()")
    assert (again.result, len(again.displays)) == ("3.0", 3)


@pytest.mark.kernel
@pytest.mark.parametrize("moment", ["torch stops", "the trace is read", "the page is made"])
def test_the_users_own_error_is_shown_all_the_same(kernel: Kernel, moment: str) -> None:
    owner, name, _ = AFTER_THE_CELL[moment]
    kernel.run(PRESS.format(owner=owner, name=name))
    outcome = kernel.run("%%gpuprofile\n1 / 0")
    kernel.run("setattr(owner, name, intact)")
    assert [error["ename"] for error in outcome.errors] == ["ZeroDivisionError"]
    assert "interrupt" not in outcome.traceback.lower()


BEFORE_THE_CELL = {
    "torch starts": ("torch_profiler.TorchRecording", "start"),
    "cProfile starts": ("cprofile.CallsRecording", "start"),
    "the region begins": ("torch_profiler.TorchRecording", "enter_region"),
}


@pytest.mark.kernel
@pytest.mark.parametrize("moment", BEFORE_THE_CELL)
def test_before_the_cell_it_does_not_run(kernel: Kernel, moment: str) -> None:
    owner, name = BEFORE_THE_CELL[moment]
    kernel.run("ran = False\n" + PRESS.format(owner=owner, name=name))
    outcome = kernel.run("%%gpuprofile\nran = True")
    assert [error["ename"] for error in outcome.errors] == ["KeyboardInterrupt"]
    assert kernel.value("ran") is False
    assert outcome.stderr == (
        "gpuprofile: no profile: recording could not start: KeyboardInterrupt\n"
    )


def press(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def worker_dies() -> Iterator[Callable[..., None]]:
    """The end of a child process; the handler raises an error at the first, as torch's does."""
    told: list[int] = []

    def handler(number: int, _: object) -> None:
        told.append(number)
        if len(told) == 1:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    before = signal.signal(signal.SIGCHLD, handler)
    yield lambda *_: signal.raise_signal(signal.SIGCHLD)
    assert signal.getsignal(signal.SIGCHLD) is handler
    signal.signal(signal.SIGCHLD, before)


def test_a_recording_at_whose_stop_a_worker_dies_is_whole(
    monkeypatch: pytest.MonkeyPatch, worker_dies: Callable[..., None]
) -> None:
    stop = TorchRecording.stop

    def stop_meanwhile(self: TorchRecording) -> int:
        worker_dies()
        return stop(self)

    monkeypatch.setattr(TorchRecording, "stop", stop_meanwhile)
    with pytest.raises(RuntimeError, match="worker"), gpuprof_widgets.profile(quiet=True) as run:
        torch.ones(3)
    assert (profiler_is_running(), Active.recorder) == (False, None)
    assert "aten::ones" in list(run.trace.slices["name"])


@pytest.mark.parametrize(
    ("name", "call"), [("getsignal", 0), ("getsignal", 1), *(("signal", n) for n in range(4))]
)
def test_a_worker_that_dies_while_handlers_are_replaced_or_put_back_ends_the_recording(
    monkeypatch: pytest.MonkeyPatch, worker_dies: Callable[..., None], name: str, call: int
) -> None:
    intact, calls = getattr(_signal, name), count()

    def meanwhile(*words: Any) -> Any:
        if next(calls) == call:
            worker_dies()
        return intact(*words)

    recorder = Recorder(Options(), label="the run").__enter__()
    monkeypatch.setattr(_signal, name, meanwhile)
    with pytest.raises(RuntimeError, match="worker"):
        recorder.__exit__(None, None, None)
    assert (profiler_is_running(), Active.recorder) == (False, None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_worker_that_dies_as_the_recording_starts_is_told_as_without_us(
    monkeypatch: pytest.MonkeyPatch, worker_dies: Callable[..., None]
) -> None:
    intact = TorchRecording.enter_region

    def meanwhile(self: TorchRecording) -> None:
        worker_dies()
        intact(self)

    monkeypatch.setattr(TorchRecording, "enter_region", meanwhile)
    with pytest.raises(RuntimeError, match="worker"):
        Recorder(Options(), label="the run").__enter__()
    assert (profiler_is_running(), Active.recorder) == (False, None)


def test_the_second_interrupt_of_a_stop_goes_through() -> None:
    waited: list[bool] = []

    def pressed_twice() -> None:
        with DeferredSignals():
            press()
            waited.append(True)
            press()

    with pytest.raises(KeyboardInterrupt):
        pressed_twice()
    assert waited
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_held_interrupt_does_what_the_front_end_wants() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    try:
        with DeferredSignals():
            press()
            assert told == []
        assert told == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt), Raised():
            press()
        assert told == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("disposition", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_program_that_handles_no_interrupts_goes_on_so(disposition: Any) -> None:
    before = signal.signal(signal.SIGINT, disposition)
    try:
        with DeferredSignals(), Raised():
            assert signal.getsignal(signal.SIGINT) is disposition
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_records_without_touching_the_signals() -> None:
    seen: list[Any] = []

    def work() -> None:
        with DeferredSignals():
            seen.append(_signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
