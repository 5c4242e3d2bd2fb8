"""The rule on time suspended in `await` at its threshold and just below it; what it says."""

from __future__ import annotations

import pytest

from gpuprof_widgets.analyses.findings.waits import suspended
from gpuprof_widgets.trace.model import Record
from tests.cells import recorded
from tests.traces import Row, annotation, cell_line, op, trace_of

MS = 1_000_000
SOURCE = "%%gpuprofile\nfor part in parts:\n    await asyncio.sleep(\n        part)\n    yield part"


def awaiting(*rows: Row) -> Record:
    """These rows in 1000 ms of a cell of which line 3 awaits, on its second line, and 5 yields."""
    cell = {"label": "Cell [3]", "source": SOURCE, "statements": [2, 3, 5]}
    whole = annotation("Cell [3]", ts=0, dur=1000 * MS)
    return trace_of(whole, *rows, lines={"limit": 10_000, "cells": [cell]})


def pieces(line: int, code: str, *, until: int) -> tuple[Row, Row]:
    """A line that is suspended from the 10th millisecond on, and goes on at this one."""
    return (
        cell_line(line, code, ts=0, dur=10 * MS),
        cell_line(line, code, ts=until * MS, dur=MS, resumed=1),
    )


SLEEPS = "await asyncio.sleep("
CASES = {
    "suspended": (
        awaiting(*pieces(3, SLEEPS, until=110)),
        awaiting(*pieces(3, SLEEPS, until=109)),
    )
}
"""A trace that fires the rule, and one just below its threshold."""


def test_it_shows_the_longest_of_all_times() -> None:
    again = cell_line(3, SLEEPS, ts=900 * MS, dur=MS, resumed=1)
    (finding,) = suspended(awaiting(*pieces(3, SLEEPS, until=500), again))
    assert finding.cost_ns == 889 * MS
    assert (finding.start_ns, finding.end_ns) == (10 * MS, 500 * MS)


def test_what_other_tasks_and_threads_ran_meanwhile_is_no_suspension() -> None:
    task = cell_line(9, "train()", ts=20 * MS, dur=200 * MS)
    thread = op("aten::mm", ts=220 * MS, dur=100 * MS, thread=77)
    (finding,) = suspended(awaiting(*pieces(3, SLEEPS, until=500), task, thread))
    assert finding.cost_ns == 180 * MS  # from the op's end on; before the task another line began


def test_a_generator_that_nobody_asks_for_more_is_no_await() -> None:
    assert suspended(awaiting(*pieces(5, "yield part", until=900))) == []


def test_the_head_of_a_loop_that_goes_on_first_hides_nothing() -> None:
    loop = cell_line(2, "for part in parts:", ts=500 * MS, dur=3 * MS, resumed=1)
    late = cell_line(3, SLEEPS, ts=501 * MS, dur=MS, resumed=1)
    (finding,) = suspended(awaiting(pieces(3, SLEEPS, until=0)[0], loop, late))
    assert finding.cost_ns == 490 * MS
    assert "in line 3 `await asyncio.sleep(`" in finding.text
    ran = op("aten::mm", ts=500 * MS + 1000, dur=1000)
    assert suspended(awaiting(pieces(3, SLEEPS, until=0)[0], loop, ran, late)) == []


INSIDE = {
    "nothing": "n = 1\nawait asyncio.sleep(0.05)\nn += 1",
    "a loop": "for _ in range(2):\n    await asyncio.sleep(0.05)",
    "a block": "with torch.no_grad():\n    if True:\n        await asyncio.sleep(0.1)",
    "a generator": "async def parts():\n    for part in range(2):\n"
    "        await asyncio.sleep(0.05)\n        yield part\nasync for _ in parts():\n    pass",
    "a function": "async def work():\n    await asyncio.sleep(0.1)\nawait work()",
    "a comprehension": "async def parts(): return 2\n"
    "[await asyncio.sleep(0.05) for part in range(await parts())]",
    "tasks": "async def work():\n    for _ in range(2):\n        await asyncio.sleep(0.05)\n"
    "await asyncio.gather(work(), work())",
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_cell_that_sleeps_inside_of(name: str) -> None:
    body = f"import asyncio, torch\n{INSIDE[name]}"
    _, record = recorded(body)
    (finding,) = suspended(record)
    line = next(at for at, text in enumerate(body.splitlines(), 2) if "sleep" in text)
    assert f"in line {line} `" in finding.text
    assert "await asyncio.sleep(" in finding.text
    assert finding.cost_ns >= 25 * MS  # a timer starts before its task is suspended
