"""What the first profile needs is imported and started neither in `%load_ext` nor in a cell."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpuprof_widgets import magic
from gpuprof_widgets import warm_up as module
from gpuprof_widgets.capture import torch_profiler
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.warm_up import IdleImports
from tests.kernels import Kernel, loaded_kernel

pytestmark = pytest.mark.slow

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
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A note each time that an idle kernel imports."""
    notes: list[str] = []
    monkeypatch.setattr(module, "import_and_draw", lambda: notes.append("imported"))
    monkeypatch.setattr(module, "IDLE_S", 0)
    return notes


@pytest.fixture
def cold() -> Iterator[None]:
    """As if nothing had been warmed up yet."""
    module.warm_up.cache_clear()
    yield
    module.warm_up.cache_clear()


def test_the_extension_loads_without_what_the_first_profile_needs() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    loaded, running = ran.stdout.splitlines()
    assert "gpuprof_widgets" in loaded
    assert not {"pandas", "bokeh", "matplotlib", "sympy", "msgspec"} & set(loaded.split())
    assert running == "False"


@pytest.mark.parametrize(
    ("events", "times"), [("aa.aa.a.", 1), ("ab.", 0), ("bba.", 0), ("bba.a.", 1)]
)
def test_an_idle_loop_imports_once_after_the_outermost_cell(
    imported: list[str], events: str, times: int
) -> None:
    """The events: b)efore and a)fter a cell, and a moment in which none runs."""

    async def cells() -> None:
        idle = IdleImports()
        for event in events:
            if event == ".":
                await asyncio.sleep(0.01)
            else:
                (idle.after_cell if event == "a" else idle.before_cell)(None)

    asyncio.run(cells())
    assert imported == ["imported"] * times


def test_nothing_is_imported_in_another_thread(imported: list[str]) -> None:
    async def cells() -> None:
        IdleImports().after_cell(None)
        await asyncio.sleep(0.01)

    subshell = threading.Thread(target=asyncio.run, args=(cells(),))
    subshell.start()
    subshell.join()
    assert imported == []


def test_a_shell_without_a_loop_does_not_wait(imported: list[str]) -> None:
    IdleImports().after_cell(None)
    assert imported == []


def test_the_extension_follows_the_cells_until_it_is_unloaded(
    shell: InteractiveShell, imported: list[str]
) -> None:
    async def cells() -> None:
        magic.load(shell)
        shell.events.trigger("post_run_cell", None)
        shell.events.trigger("pre_run_cell", None)
        await asyncio.sleep(0.01)
        shell.events.trigger("post_run_cell", None)
        magic.unload(shell)
        shell.events.trigger("post_run_cell", None)
        await asyncio.sleep(0.01)
        assert imported == []
        magic.load(shell)
        shell.events.trigger("post_run_cell", None)
        await asyncio.sleep(0.01)
        magic.unload(shell)

    asyncio.run(cells())
    assert imported == ["imported"]


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


@pytest.mark.usefixtures("cold")
def test_a_warm_up_that_fails_costs_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_profiler, "warm_up", lambda: 1 / 0)
    module.warm_up()


@pytest.mark.usefixtures("cold")
def test_a_ctrl_c_waits_for_the_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def imports() -> None:
        signal.raise_signal(signal.SIGINT)
        order.append("imported")

    monkeypatch.setattr(module, "import_and_draw", imports)
    monkeypatch.setattr(torch_profiler, "warm_up", lambda: order.append("started"))
    with pytest.raises(KeyboardInterrupt):
        module.warm_up()
    assert order == ["imported", "started"]


IMPORTS = """
import os, sys, torch, torch.profiler
before, modules = dict(os.environ), set(sys.modules)
from gpuprof_widgets.warm_up import import_and_draw
import_and_draw()
print("gpuprof_widgets.views.report" in sys.modules)
print({name for name in set(sys.modules) - modules if name.startswith("torch")})
print(dict(os.environ) == before)
"""


def test_what_an_idle_kernel_imports_leaves_torch_and_the_environment_alone() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["True", "set()", "True"]


PREPARED = """
from torch.profiler import ProfilerActivity, profile, schedule
users = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2))
users.start()
users.step()
"""
"""A profiler of the user's that is about to start, in the cells between."""


@pytest.mark.kernel
def test_an_idle_kernel_imports_and_disturbs_no_profiler(loaded_kernel: Kernel) -> None:
    loaded_kernel.run(PREPARED)
    asked = "import sys; 'gpuprof_widgets.views.report' in sys.modules"
    for _ in range(120):
        if loaded_kernel.run(asked).result == "True":
            break
        time.sleep(1)
    else:
        pytest.fail("the kernel was idle and did not import")
    ended = "for _ in range(3): users.step()\nusers.stop()\nlen(users.events()) > 0"
    assert loaded_kernel.run(ended).result == "True"
