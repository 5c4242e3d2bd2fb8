"""What a cell may do to its own process while it is profiled, and what others do to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest

from tests.kernels import Kernel, loaded_kernel

pytestmark = pytest.mark.kernel
__all__ = ["loaded_kernel"]

NAMES = "import gc, os, resource, signal, sys, tempfile, threading, time, torch"
PROFILED = "%%gpuprofile\ntorch.ones(3).sum().item()"


@pytest.fixture
def kernel(loaded_kernel: Kernel) -> Iterator[Kernel]:
    """The kernel; whatever the cells did to it, the next one is profiled as ever."""
    loaded_kernel.run(NAMES)
    yield loaded_kernel
    after = loaded_kernel.run(PROFILED)
    assert (after.status, after.result, after.stderr) == ("ok", "3.0", ""), after.errors
    assert "aten::sum" in after.profile_text
    loaded_kernel.check_unchanged()


SPIN = """%%gpuprofile
stop = threading.Event()
def spin():
    while not stop.wait(0.001):
        torch.ones(3).sum()
thread = threading.Thread(target=spin, name="the users")
thread.start()
torch.zeros(3)
"outlived"
"""


@pytest.mark.parametrize("option", ["", " --stack", " --memory"])
def test_a_thread_may_outlive_the_cell_that_started_it(kernel: Kernel, option: str) -> None:
    first = kernel.run(SPIN.replace("%%gpuprofile", f"%%gpuprofile{option}"))
    assert (first.result, first.stderr) == ("'outlived'", "")
    assert "aten::zeros" in first.profile_text
    assert kernel.value("thread.is_alive()")
    meanwhile = kernel.run(f"%%gpuprofile{option}\ntorch.arange(3).sum().item()")
    assert (meanwhile.result, meanwhile.stderr) == ("3", "")
    assert "aten::arange" in meanwhile.profile_text
    last = kernel.run(f"%%gpuprofile{option}\nstop.set()\nthread.join()\nthread.is_alive()")
    assert (last.result, last.stderr) == ("False", "")


FORK = """
def forked(work):
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(w, str(work()).encode())
        except BaseException as error:
            os.write(w, repr(error).encode())
        os._exit(0)
    os.close(w)
    os.waitpid(child, 0)
    with os.fdopen(r) as answer:
        return answer.read()
"""


def test_a_child_that_is_forked_in_the_cell_leaves_its_profile_alone(kernel: Kernel) -> None:
    kernel.run(FORK)
    outcome = kernel.run("%%gpuprofile\ntorch.zeros(3)\nforked(lambda: torch.ones(9).sum().item())")
    assert (outcome.result, outcome.stderr) == ("'9.0'", "")
    assert "aten::zeros" in outcome.profile_text
    assert "aten::sum" not in outcome.profile_text


SPOILT = {
    "a recursion limit near the ground": (
        "limit = sys.getrecursionlimit()\nsys.setrecursionlimit(150)",
        "sys.setrecursionlimit(limit)",
    ),
    "a folder that is gone": (
        "here = os.getcwd()\nos.chdir(gone := tempfile.mkdtemp())\nos.rmdir(gone)",
        "os.chdir(here)",
    ),
    "a clock that stands still": (
        "clock = time.time\ntime.time = lambda: 0.0",
        "time.time = clock",
    ),
    "no interrupts": (
        "before = signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "signal.signal(signal.SIGINT, before)",
    ),
    "no garbage collection": ("gc.disable()", "assert not gc.isenabled()\ngc.enable()"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_cell_may_spoil_the_process_for_itself(kernel: Kernel, what: str) -> None:
    spoil, restore = SPOILT[what]
    outcome = kernel.run(f"%%gpuprofile\n{spoil}\ntorch.arange(4).sum().item()")
    restored = kernel.run(restore)
    assert (outcome.status, outcome.result, outcome.stderr) == ("ok", "6", ""), outcome.errors
    assert "aten::arange" in outcome.profile_text
    assert restored.status == "ok", restored.errors


NO_TRACE = {
    "no folder for temporary files": (
        "before, tempfile.tempdir = tempfile.tempdir, '/nowhere/at/all'",
        "tempfile.tempdir = before",
        "there is no folder for temporary files",
    ),
    "a disk that is full": (
        "before = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))",
        "resource.setrlimit(resource.RLIMIT_FSIZE, before)",
        "torch could not write its trace to",
    ),
}


@pytest.mark.parametrize("what", NO_TRACE)
def test_where_the_trace_has_no_place_the_python_calls_are_kept(kernel: Kernel, what: str) -> None:
    spoil, restore, words = NO_TRACE[what]
    kernel.run("def slow():\n    return sum(range(10_000))")
    outcome = kernel.run(f"%%gpuprofile\nslow()\n{spoil}\n6")
    kernel.run(restore)
    shown = " ".join(outcome.profile_text.split())
    assert (outcome.status, outcome.result, outcome.stderr) == ("ok", "6", ""), outcome.errors
    assert f"Note: no ops: {words}" in shown
    assert "set TMPDIR" in shown
    assert "slow" in shown
    left = kernel.value("os.listdir(tempfile.gettempdir())")
    assert [name for name in left if name.startswith("gpuprof")] == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is where nobody can write, root neither")
def test_without_a_home_it_loads_and_shows(tmp_path: Path) -> None:
    # matplotlib would look through the machine's fonts for half a minute, and find a folder as well
    fonts = matplotlib.get_cachedir()
    kernel = Kernel(None, tmp_path, HOME="/proc/nobody", MPLCONFIGDIR=fonts)
    try:
        kernel.run(f"%load_ext gpuprof_widgets\n{NAMES}")
        outcome = kernel.run(PROFILED)
        assert (outcome.result, len(outcome.displays), outcome.stderr) == ("3.0", 3, "")
        refused = kernel.run("ran = False\n%gpuprofile --save ~/run.zip ran = True")
        assert "there is no folder /proc/nobody" in refused.stderr
        assert kernel.value("ran") is False
    finally:
        kernel.stop()
