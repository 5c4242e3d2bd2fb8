"""A stand-in for the display of a notebook."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof_widgets import progress


@dataclass
class Outputs:
    """The outputs below a cell: what each shows ``now``, and all that was ``shown``, by number."""

    now: list[dict[str, Any]] = field(default_factory=list)
    shown: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    numbers: dict[str, int] = field(default_factory=dict)

    def display(
        self, bundle: dict[str, Any], *, raw: bool, display_id: str = "", update: bool = False
    ) -> None:
        assert raw
        if update:
            number = self.numbers[display_id]
            self.now[number] = bundle
        else:
            number = self.numbers[display_id] = len(self.now)
            self.now.append(bundle)
        self.shown.append((number, bundle))

    def texts(self, number: int) -> list[str]:
        """The plain texts that an output had, in their order."""
        return [bundle.get("text/plain", "") for of, bundle in self.shown if of == number]


def in_a_cell(monkeypatch: pytest.MonkeyPatch, display: Callable[..., Any]) -> None:
    """From now on it is as if a cell of a kernel ran, and displayed with this function."""
    monkeypatch.setattr(builtins, "display", display, raising=False)
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)


def displayed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The bundles that are displayed from now on, as in a notebook; no line, however slow it is."""
    monkeypatch.setattr(progress, "PATIENCE_S", float("inf"))
    outputs = Outputs()
    in_a_cell(monkeypatch, outputs.display)
    return outputs.now


def with_lines_at_once(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """The outputs from now on, in a notebook where every line is shown, however fast it is."""
    monkeypatch.setattr(progress, "PATIENCE_S", -1.0)
    outputs = Outputs()
    in_a_cell(monkeypatch, outputs.display)
    return outputs
