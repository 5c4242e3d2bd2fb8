"""A stand-in for the display of a notebook."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest


def in_a_cell(monkeypatch: pytest.MonkeyPatch, display: Callable[..., Any]) -> None:
    """From now on it is as if a cell ran, and displayed with this function."""
    monkeypatch.setattr(builtins, "display", display, raising=False)
    monkeypatch.setattr(builtins, "get_ipython", lambda: None, raising=False)


def displayed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The bundles that are displayed from now on, as in a notebook."""
    shown: list[dict[str, Any]] = []

    def display(bundle: dict[str, Any], *, raw: bool) -> None:
        assert raw
        shown.append(bundle)

    in_a_cell(monkeypatch, display)
    return shown
