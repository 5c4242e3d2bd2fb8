"""BokehJS is in the notebook once, and comes again when the output that carried it is gone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from gpuprof_widgets.runtime_carrier import RuntimeCarrier


def request(cell: str = "", code: str = "", deleted: tuple[str, ...] = ()) -> dict[str, Any]:
    metadata = {"cellId": cell, "deletedCells": list(deleted)} if cell else {}
    return {"metadata": metadata, "content": {"code": code}}


@pytest.fixture
def profile() -> Callable[..., bool]:
    """Profile in a cell; whether its output brought BokehJS along."""
    carrier = RuntimeCarrier()

    def run(*args: Any, shown: bool = True, profiled: bool = True, **kwargs: Any) -> bool:
        carrier.request(request(*args, **kwargs))
        needed = profiled and carrier.is_needed()
        if needed and shown:
            carrier.embedded()
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
    runs = [profile(code=code) for code in ("one", "two", "one", "two")]
    assert runs == [True, False, True, False]


def test_colab_needs_it_in_every_output(
    profile: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert [profile(cell) for cell in "aba"] == [True, True, True]


@pytest.mark.parametrize("message", [{}, {"metadata": None, "content": None}, {"metadata": {}}])
def test_a_shell_without_requests_carries_it_once(message: dict[str, Any]) -> None:
    carrier = RuntimeCarrier()
    carrier.request(message)
    assert carrier.is_needed()
