"""What a profiled cell or block recorded is freed after it: only its profile stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import gpuprof_widgets
from gpuprof_widgets.capture.part import Active
from gpuprof_widgets.capture.window import Window
from tests.shells import loaded

pytestmark = pytest.mark.slow

STEPS = "--steps 2 --warmup 1"
SEEN = "recorders.append(weakref.ref(Active.recorder))"
"""Stands in every cell and makes no reference that would keep its recorder alive."""

LOOPS = {
    "for": f"for i in range(9):\n    {SEEN}\n    torch.ones(i)",
    "while": f"i = 0\nwhile i < 2:\n    {SEEN}\n    i += 1",
    "break": f"i = 0\nwhile True:\n    {SEEN}\n    if i == 2: break\n    i += 1",
    "async for": f"async for i in items():\n    {SEEN}",
    "steps in while": (
        f"while len(recorders) < 9:\n    for j in gpuprof_widgets.steps(range(99)):\n        {SEEN}"
    ),
    "an error": f"while True:\n    {SEEN}\n    1 / 0",
    "an interrupt": f"while True:\n    {SEEN}\n    raise KeyboardInterrupt",
}


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    names = {"torch": torch, "weakref": weakref, "Active": Active}
    with loaded() as one:
        one.push({**names, "gpuprof_widgets": gpuprof_widgets})
        one.run_cell(
            "from asyncio import sleep\nasync def items():\n    for i in range(9): yield i"
        )
        yield one


def recorders(shell: InteractiveShell, body: str, options: str) -> list[Any]:
    """The recorders that the cell saw, as they are once the next cell has run."""
    seen: list[weakref.ref[Any]] = []
    shell.push({"recorders": seen})
    shell.run_cell(f"%%gpuprofile -q {options}\n{body}")
    assert seen, "the cell did not come to where it looks"
    shell.run_cell("1 / 0")  # IPython keeps the traceback of the last error, with its frames
    gc.collect()
    return [one() for one in seen]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cell_with_a_bounded_loop_leaves_no_recorder(shell: InteractiveShell, loop: str) -> None:
    assert not any(recorders(shell, LOOPS[loop], STEPS))


@pytest.mark.parametrize("options", ["", "--stack --memory"])
def test_nor_does_a_cell_without_one(shell: InteractiveShell, options: str) -> None:
    assert not any(recorders(shell, f"{SEEN}\n1 / 0", options))


def windows() -> list[Window]:
    return [one for one in gc.get_objects() if type(one) is Window]


def test_an_error_keeps_nothing_that_was_recorded(shell: InteractiveShell) -> None:
    gc.collect()
    before = len(windows())
    seen: list[Any] = []
    shell.push({"kept": seen})
    shell.run_cell("%%gpuprofile -q\nkept.append(Active.recorder)\n1 / 0")
    assert len(seen) == 1
    assert len(windows()) == before


def test_a_block_frees_what_it_recorded_at_once() -> None:
    gc.collect()
    before = len(windows())
    with gpuprof_widgets.profile(quiet=True) as run:
        recorder = Active.recorder
        assert len(windows()) == before + 1
    assert recorder is not None
    assert len(run.trace) > 0
    assert len(windows()) == before
