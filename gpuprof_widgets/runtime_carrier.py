"""Display of outputs, and which cell's output carries BokehJS.

BokehJS is embedded once per notebook, and again when that output is gone.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuprof_widgets import progress

RUNTIME_MARK = re.compile(r'"runtime": \{"version": "\w+"')
"""The part of a script of `report.page_script` that says which BokehJS it holds, if it does."""


class RuntimeCarrier:
    """Follows the execute requests of one kernel to know whether BokehJS is still in the notebook.

    The carrier's output is gone when its cell runs again or is deleted: JupyterLab names both in
    the metadata of every request (``cellId``, ``deletedCells``). Where a front end names no cells,
    the code of the cell stands for it. That an output was cleared, no request says: the saved file
    does, and so does a reader who runs a dead report's cell again, as its message asks.
    """

    def __init__(self) -> None:
        self._carrier: str | None = None
        self._embedded_at = 0.0
        self._current = ""
        self.executions = 0
        """How many requests were taken note of."""
        self.cell_id = ""
        """The front end's name of the cell that runs, "" where it tells none."""
        self._code = ""
        self._embeddings = 0
        self._mark = b""
        self._without: dict[str, tuple[str, int]] = {}
        self._is_asked_for = False
        self.embeds_always: Callable[[], bool] = lambda: False
        self.namespace: Mapping[str, Any] = {}

    def request(self, message: Mapping[str, Any]) -> None:
        """Take note of an execute request, before its code runs."""
        metadata = message.get("metadata") or {}
        self._current = _cell(message)
        self.executions += 1
        self.cell_id = str(metadata.get("cellId") or "")
        self._code = _code(message)
        shown = self._without.pop(self._current, None)
        # After another embedding a dead report needs none of its own: that one serves the page.
        self._is_asked_for = bool(self._code) and shown == (self._code, self._embeddings)
        if self._carrier in (self._current, *(metadata.get("deletedCells") or ())):
            self._carrier = None

    def has_followed_to(self, message: Mapping[str, Any]) -> bool:
        """Whether this request is the last one taken note of, so that none was missed."""
        return self._current == _cell(message)

    def is_needed(self) -> bool:
        """Whether the output of the current cell has to embed BokehJS."""
        return (
            self._carrier is None
            # Colab shows every output in a frame of its own, which sees no other cell's scripts.
            or "google.colab" in sys.modules
            or self.embeds_always()
            or self._is_asked_for
            or self._is_gone_from_file()
        )

    def shown(self, script: str) -> None:
        """Take note that the current cell has shown a report by this script."""
        mark = RUNTIME_MARK.search(script)
        if mark:
            self._carrier = self._current
            self._embedded_at = time.time()
            self._embeddings += 1
            self._mark = json.dumps(mark[0])[1:-1].encode()
            self._is_asked_for = False
        elif self._carrier != self._current:
            self._without[self._current] = (self._code, self._embeddings)

    def _is_gone_from_file(self) -> bool:
        """Whether the notebook was saved since BokehJS was embedded, and is without it."""
        # Its name is told by VS Code, or by the Jupyter server.
        name = self.namespace.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
        if not isinstance(name, str) or not name.endswith(".ipynb"):
            return False
        try:
            is_newer = Path(name).stat().st_mtime > self._embedded_at
            return is_newer and self._mark not in Path(name).read_bytes()
        except OSError:
            return False


def _cell(message: Mapping[str, Any]) -> str:
    metadata = message.get("metadata") or {}
    return str(metadata.get("cellId") or _code(message))


def _code(message: Mapping[str, Any]) -> str:
    return str((message.get("content") or {}).get("code", ""))


def show(outputs: Callable[[bool], Iterable[dict[str, Any]]], text: Callable[[], str]) -> None:
    """Display ``outputs(whether to embed BokehJS)`` one by one; elsewhere print ``text()``.

    A progress line is shown until the first of them is made.
    """
    display = progress.cell_display()
    with progress.line():
        if display is None:
            words = text()
            progress.erase()
            print(words)
            return
        carrier = followed or RuntimeCarrier()
        for bundle in outputs(carrier.is_needed()):
            progress.erase()
            display(bundle, raw=True)
            if "application/javascript" in bundle:
                carrier.shown(bundle["application/javascript"])


followed: RuntimeCarrier | None = None
"""The carrier of the shell into which the extension is loaded; None without the extension."""
