"""BokehJS is in the notebook once, and comes again when the output that carried it is gone."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from gpuprof_widgets.runtime_carrier import RuntimeCarrier
from gpuprof_widgets.views import report
from gpuprof_widgets.views.page import report_page
from tests.traces import op, trace_of

pytestmark = pytest.mark.slow


def script(*, runtime: bool) -> str:
    page = report_page(trace_of(op("aten::mm", ts=0, dur=9)), sort="cpu_self")
    return report.page_script(page, embed_runtime=runtime)


def request(cell: str = "", code: str = "", deleted: tuple[str, ...] = ()) -> dict[str, Any]:
    metadata = {"cellId": cell, "deletedCells": list(deleted)} if cell else {}
    return {"metadata": metadata, "content": {"code": code}}


@pytest.fixture
def carrier() -> RuntimeCarrier:
    return RuntimeCarrier()


@pytest.fixture
def profile(carrier: RuntimeCarrier) -> Callable[..., bool]:
    """Profile in a cell; whether its output brought BokehJS along."""

    def run(*args: Any, shown: bool = True, profiled: bool = True, **kwargs: Any) -> bool:
        carrier.request(request(*args, **kwargs))
        needed = profiled and carrier.is_needed()
        if profiled and shown:
            carrier.shown(script(runtime=needed))
        return needed

    return run


@pytest.mark.parametrize(
    ("cells", "embedded"),
    [
        ("aA bB cC", "yes no no"),
        ("aA bB aA bB", "yes no yes no"),
        ("aA bB-xa cC", "yes yes no"),  # the carrier is deleted
        ("aA bB-a! cC", "yes no yes"),  # the deletion is named to a cell without a profile
        ("aA aA! bB", "yes no yes"),
        ("A B A C", "yes no yes no"),  # a front end without ids is followed by the code
        ("aA bB bB bB cC", "yes no yes yes no"),  # shown without it, it gets it if unchanged
        ("aA bB bC bB", "yes no no no"),
        ("aA bB cC aA bB cC aA", "yes no no yes no no yes"),
    ],
)
def test_which_cells_carry_it(profile: Callable[..., bool], cells: str, embedded: str) -> None:
    """A small letter is the id of a cell, a capital its code; "!": without a profile."""
    found = []
    for cell in cells.split():
        name, deleted = re.match(r"(\w+)-?(\w*)", cell).groups()  # type: ignore[union-attr]
        found.append(profile(name[:-1], name[-1], tuple(deleted), profiled=not cell.endswith("!")))
    assert ["yes" if needed else "no" for needed in found] == embedded.split()


def test_a_report_that_was_not_shown_carries_nothing(profile: Callable[..., bool]) -> None:
    profile("a", shown=False)
    assert profile("b") is True


def test_colab_needs_it_in_every_output(
    profile: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert [profile(cell) for cell in "aba"] == [True, True, True]


def test_it_comes_in_every_output_where_that_is_asked_for(
    carrier: RuntimeCarrier, profile: Callable[..., bool]
) -> None:
    carrier.embeds_always = lambda: True
    assert [profile(cell) for cell in "ab"] == [True, True]


def test_a_cell_that_shows_several_reports_gets_it_once(carrier: RuntimeCarrier) -> None:
    def embedded(cell: str, reports: int) -> list[bool]:
        carrier.request(request(cell, cell))
        needed = []
        for _ in range(reports):
            needed.append(carrier.is_needed())
            carrier.shown(script(runtime=needed[-1]))
        return needed

    assert embedded("a", 2) == [True, False]
    assert embedded("b", 2) == [False, False]
    assert embedded("b", 2) == [True, False]


@pytest.fixture(params=["jupyter server", "VS Code"])
def notebook(
    request: pytest.FixtureRequest,
    carrier: RuntimeCarrier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The path of the notebook, as the front end tells the kernel."""
    path = tmp_path / "notebook.ipynb"
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if request.param == "VS Code":
        carrier.namespace = {"__vsc_ipynb_file__": str(path)}
    else:
        monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    return path


def save(path: Path, *, runtime: bool, seconds: float = 60) -> None:
    """Save a notebook with a report as front ends do, so many seconds from now."""
    data = {"application/javascript": script(runtime=runtime)}
    output = new_output("display_data", data=data)
    nbformat.write(new_notebook(cells=[new_code_cell("1", outputs=[output])]), path)
    stamp = time.time() + seconds
    os.utime(path, (stamp, stamp))


def test_it_comes_again_when_the_saved_notebook_is_without_it(
    profile: Callable[..., bool], notebook: Path
) -> None:
    profile("a")
    save(notebook, runtime=True)
    assert profile("b") is False
    save(notebook, runtime=False)
    assert profile("c") is True
    notebook.unlink()
    assert profile("d") is False


def test_another_version_in_the_saved_notebook_is_none(
    profile: Callable[..., bool], notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile("a")
    with monkeypatch.context() as patched:
        older = report.runtime() | {"version": "older"}
        patched.setattr(report, "runtime", lambda: older)
        save(notebook, runtime=True)
    assert profile("b") is True


def test_a_notebook_that_was_saved_before_says_nothing(
    profile: Callable[..., bool], notebook: Path
) -> None:
    profile("a")
    save(notebook, runtime=False, seconds=-60)
    assert profile("b") is False


def test_an_unreadable_notebook_says_nothing(profile: Callable[..., bool], notebook: Path) -> None:
    profile("a")
    notebook.mkdir()
    os.utime(notebook, (time.time() + 60,) * 2)
    assert profile("b") is False


@pytest.mark.parametrize("message", [{}, {"metadata": None, "content": None}, {"metadata": {}}])
def test_a_shell_without_requests_carries_it_once(message: dict[str, Any]) -> None:
    carrier = RuntimeCarrier()
    carrier.request(message)
    assert carrier.is_needed()
