"""BokehJS is in the notebook once, and comes again when the output that carried it is gone."""

from __future__ import annotations

import os
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


def test_only_the_first_profiled_cell_carries_it(profile: Callable[..., bool]) -> None:
    assert [profile(cell) for cell in "abc"] == [True, False, False]


def test_the_carrier_carries_it_again_when_it_runs_again(profile: Callable[..., bool]) -> None:
    assert [profile(cell) for cell in "abab"] == [True, False, True, False]


def test_another_cell_takes_over_when_the_carrier_is_deleted(profile: Callable[..., bool]) -> None:
    profile("a")
    assert profile("b", deleted=("x", "a")) is True
    assert profile("c") is False


def test_a_deletion_named_to_a_cell_without_profile_is_not_missed(
    profile: Callable[..., bool],
) -> None:
    profile("a")
    profile("b", deleted=("a",), profiled=False)
    assert profile("c") is True


def test_the_carriers_output_is_gone_when_it_runs_without_profile(
    profile: Callable[..., bool],
) -> None:
    profile("a")
    profile("a", profiled=False)
    assert profile("b") is True


def test_a_report_that_was_not_shown_carries_nothing(profile: Callable[..., bool]) -> None:
    profile("a", shown=False)
    assert profile("b") is True


def test_a_front_end_without_cell_ids_is_followed_by_the_code(
    profile: Callable[..., bool],
) -> None:
    runs = [profile(code=code) for code in ("one", "two", "one", "three")]
    assert runs == [True, False, True, False]


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


def test_a_cell_that_was_shown_without_it_gets_it_when_it_runs_again_unchanged(
    profile: Callable[..., bool],
) -> None:
    profile("a", "one")
    assert profile("b", "two") is False
    assert profile("b", "two") is True
    assert profile("b", "two") is True  # it carries it now: its output is replaced
    assert profile("c", "three") is False


def test_running_all_cells_again_embeds_it_once(profile: Callable[..., bool]) -> None:
    for _ in range(3):
        assert [profile(cell, cell) for cell in "abcd"] == [True, False, False, False]


def test_a_changed_cell_is_a_new_one(profile: Callable[..., bool]) -> None:
    profile("a", "one")
    assert [profile("b", code) for code in ("two", "three", "two")] == [False, False, False]


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
