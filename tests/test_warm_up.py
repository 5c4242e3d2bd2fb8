"""The warm-up before the first profile: not in `%load_ext`, not in a cell, but while all wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpuprof_widgets import magic
from gpuprof_widgets import warm_up as module
from gpuprof_widgets.capture import torch_profiler
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.warm_up import IdleWarmUp, warm_up
from tests.kernels import Kernel, loaded_kernel

__all__ = ["loaded_kernel"]

LOADS = """
import sys, torch, torch.profiler
from IPython.core.interactiveshell import InteractiveShell
before = set(sys.modules)
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpuprof_widgets")
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
print(torch._C._autograd._profiler_enabled())
"""


@pytest.fixture
def shell() -> InteractiveShell:
    """A shell of its own: events and magics stay in it."""
    return InteractiveShell()  # type: ignore[no-untyped-call]


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A note for each warm-up."""
    notes: list[str] = []
    monkeypatch.setattr(module, "warm_up", lambda: notes.append("warm"))
    monkeypatch.setattr(module, "IDLE_S", 0)
    return notes


def test_the_extension_loads_without_what_the_first_profile_needs() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    imported, running = ran.stdout.splitlines()
    assert "gpuprof_widgets" in imported
    assert not {"pandas", "bokeh", "matplotlib", "sympy", "msgspec"} & set(imported.split())
    assert running == "False"


def test_an_idle_loop_warms_up_once(warmed: list[str]) -> None:
    async def cells() -> None:
        idle = IdleWarmUp()
        idle.after_cell(None)
        idle.after_cell(None)
        await asyncio.sleep(0.01)

    asyncio.run(cells())
    assert warmed == ["warm"]


def test_the_next_cell_comes_first(warmed: list[str]) -> None:
    async def cells() -> None:
        idle = IdleWarmUp()
        idle.after_cell(None)
        idle.cancel()
        await asyncio.sleep(0.01)

    asyncio.run(cells())
    assert warmed == []


def test_a_shell_without_a_loop_does_not_wait(warmed: list[str]) -> None:
    IdleWarmUp().after_cell(None)
    assert warmed == []


def test_the_extension_follows_the_cells_and_stops(
    shell: InteractiveShell, warmed: list[str]
) -> None:
    async def cells() -> None:
        magic.load(shell)
        shell.events.trigger("post_run_cell", None)
        shell.events.trigger("pre_run_cell", None)
        await asyncio.sleep(0.01)
        assert warmed == []
        shell.events.trigger("post_run_cell", None)
        await asyncio.sleep(0.01)
        assert warmed == ["warm"]
        shell.events.trigger("post_run_cell", None)
        magic.unload(shell)
        shell.events.trigger("post_run_cell", None)
        await asyncio.sleep(0.01)

    asyncio.run(cells())
    assert warmed == ["warm"]


def test_the_first_profile_warms_up_before_it_records(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    enter = Recorder.__enter__

    def entered(recorder: Recorder) -> Recorder:
        order.append("record")
        return enter(recorder)

    monkeypatch.setattr(magic, "warm_up", lambda: order.append("warm"))
    monkeypatch.setattr(Recorder, "__enter__", entered)
    magic.load(shell)
    try:
        shell.run_cell_magic("gpuprofile", "-q", "x = 1")  # type: ignore[no-untyped-call]
    finally:
        magic.unload(shell)
    assert order == ["warm", "record"]
    assert shell.user_ns["x"] == 1


def test_a_warm_up_that_fails_costs_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_profiler, "warm_up", lambda: 1 / 0)
    warm_up.cache_clear()
    warm_up()
    warm_up.cache_clear()


@pytest.mark.kernel
def test_a_kernel_warms_up_while_nothing_runs(loaded_kernel: Kernel) -> None:
    asked = "import sys; 'gpuprof_widgets.views.report' in sys.modules"
    for _ in range(120):
        if loaded_kernel.run(asked).result == "True":
            return
        time.sleep(1)
    pytest.fail("the kernel was idle and did not warm up")
