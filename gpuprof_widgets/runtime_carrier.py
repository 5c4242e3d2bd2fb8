"""Display of outputs, and which cell's output carries BokehJS.

BokehJS is embedded once per notebook, and again when that output is gone.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from typing import Any


class RuntimeCarrier:
    """Follows the execute requests of one kernel to know whether BokehJS is still in the notebook.

    The carrier's output is gone when its cell runs again or is deleted: JupyterLab names both in
    the metadata of every request (``cellId``, ``deletedCells``). Where a front end names no cells,
    the code of the cell stands for it.
    """

    def __init__(self) -> None:
        self._carrier: str | None = None
        self._current: str = ""

    def request(self, message: Mapping[str, Any]) -> None:
        """Take note of an execute request, before its code runs."""
        metadata = message.get("metadata") or {}
        self._current = _cell(message)
        if self._carrier in (self._current, *(metadata.get("deletedCells") or ())):
            self._carrier = None

    def has_followed_to(self, message: Mapping[str, Any]) -> bool:
        """Whether this request is the last one taken note of, so that none was missed."""
        return self._current == _cell(message)

    def is_needed(self) -> bool:
        """Whether the output of the current cell has to embed BokehJS."""
        # Colab shows every output in a frame of its own, which sees no other cell's scripts.
        return self._carrier is None or "google.colab" in sys.modules

    def embedded(self) -> None:
        """Take note that the current cell's output now carries BokehJS."""
        self._carrier = self._current


def _cell(message: Mapping[str, Any]) -> str:
    metadata = message.get("metadata") or {}
    code = (message.get("content") or {}).get("code", "")
    return str(metadata.get("cellId") or code)


def cell_display() -> Callable[..., Any] | None:
    """Return IPython's ``display`` while a cell runs, None elsewhere."""
    # A shell leaves `display` in the builtins for good, but `get_ipython` only while a cell runs.
    running = hasattr(builtins, "get_ipython")
    return getattr(builtins, "display", None) if running else None


def show(outputs: Callable[[bool], list[dict[str, Any]]], text: Callable[[], str]) -> None:
    """Display ``outputs(whether to embed BokehJS)``; outside a notebook print ``text()``."""
    display = cell_display()
    if display is None:
        print(text())
        return
    carrier = followed or RuntimeCarrier()
    embeds = carrier.is_needed()
    for bundle in outputs(embeds):
        display(bundle, raw=True)
    if embeds:
        carrier.embedded()


followed: RuntimeCarrier | None = None
"""The carrier of the shell into which the extension is loaded; None without the extension."""
