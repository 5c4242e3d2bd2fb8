"""`profile.explore()`: the report as a widget, whose range and selection are Python's as well.

An explorer leaves the plain report in the notebook. While the kernel lives, the widget joins that
report with Python; without its kernel the plain report is all that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from importlib.resources import files
from typing import Any

import anywidget
import numpy as np
import numpy.typing as npt
import pandas as pd
from ipywidgets import CallbackDispatcher
from traitlets import Bool, Bytes, HasTraits, Int, Tuple, Unicode, observe, validate

from gpuprof_widgets import runtime_carrier
from gpuprof_widgets.analysed import Analysed
from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.findings import Finding
from gpuprof_widgets.analyses.selected import selected_slices
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views import report
from gpuprof_widgets.views.figure import new_uid, report_figure

Range = tuple[int, int]
Callback = Callable[["Explorer"], object]

WHOLE = 1 << 40
"""A budget, in bytes, that no page reaches: what the kernel sends needs no merging."""

MARGIN = 4
"""`Explorer.show` leaves this part of a finding's range in view on either side of it."""

CALL_UP = "call up"
"""The message that brings the timeline onto the screen (explorer.ts)."""


class Explorer(anywidget.AnyWidget):
    """A report in step with Python; times are ns since the trace's start.

    ``range`` is the brushed range, the whole trace where nothing is brushed; ``visible`` is what
    the timeline shows. Both are traits: set, observe and link them as those of any widget. Every
    analysis is a method that answers for the range, as in ``explorer.operators()``.
    """

    _esm = files("gpuprof_widgets.views") / "explorer.js"

    range = Tuple(Int(), Int()).tag(sync=True)
    visible = Tuple(Int(), Int()).tag(sync=True)
    _rows = Bytes().tag(sync=True, from_json=lambda buffer, _: bytes(buffer))
    _about = Unicode().tag(sync=True)
    _uid = Unicode().tag(sync=True)
    _is_merged = Bool(help="whether the plain report has merged events").tag(sync=True)

    def __init__(self, profile: Analysed, *, sort: str = "device_self", top: int = 15) -> None:
        self.profile = profile
        self._sort, self._top = sort, top
        self._windows: dict[Range, Analysed] = {self._whole: profile}
        self._callbacks = CallbackDispatcher()
        super().__init__(range=self._whole, visible=self._whole, _uid=new_uid())
        self.on_msg(self._answer)

    @property
    def _whole(self) -> Range:
        trace = self.profile.trace
        return trace.start_ns, max(trace.end_ns, trace.start_ns + 1)

    @property
    def window(self) -> Analysed:
        """The profile of the range: `Profile.window` of it, or the whole profile."""
        if self.range not in self._windows:
            self._windows = {self._whole: self.profile}
            self._windows[self.range] = window(self.profile, *self.range)
        return self._windows[self.range]

    def __getattr__(self, name: str) -> Any:
        """Return an analysis, as a method that answers for the range."""
        if name.startswith("_") or name not in (*ANALYSES, "findings"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.window, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *ANALYSES, "findings"]

    @property
    def selection(self) -> pd.DataFrame:
        """The selected slices, one per row, with their numbers in the trace as the index.

        Columns: ``name``, ``category``, ``op``, ``kernel``, ``module``, ``line``, ``track``,
        ``start_ns``, ``duration_ns`` (`analyses.selected.selected_slices`). Set it to the numbers
        of slices, to a table that has them as its index, or to a query of these columns, as in
        ``explorer.selection = "op == 'aten::mm' and duration_ns > 1_000_000"``; ``None`` selects
        nothing. Raises an `OptionError` for numbers that no slice has.
        """
        return selected_slices(self.profile, np.frombuffer(self._rows, np.int32))

    @selection.setter
    def selection(self, wanted: str | pd.DataFrame | Iterable[int] | None) -> None:
        about = wanted if isinstance(wanted, str) else "selected in Python"
        rows = self._queried(wanted) if isinstance(wanted, str) else _numbers(wanted)
        outside = rows[(rows < 0) | (rows >= len(self.profile.trace))]
        if len(outside):
            raise OptionError(
                f"the trace has no slice {outside[0]}: its slices are 0 to "
                f"{len(self.profile.trace) - 1}"
            )
        with self.hold_sync():
            self._about = about
            self._rows = np.unique(rows).astype(np.int32).tobytes()

    def _queried(self, query: str) -> npt.NDArray[np.intp]:
        try:
            return np.asarray(self._all_slices.query(query).index, np.intp)
        except Exception as error:
            columns = ", ".join(self._all_slices.columns)
            raise OptionError(
                f"the query {query!r} cannot be answered: {error}. The columns are {columns}"
            ) from error

    @cached_property
    def _all_slices(self) -> pd.DataFrame:
        return selected_slices(self.profile, np.arange(len(self.profile.trace)))

    def show(self, finding: Finding) -> None:
        """Bring a finding onto the screen: its range is brushed and its slices are selected."""
        with self.hold_sync():
            if finding.start_ns is not None and finding.end_ns is not None:
                margin = (finding.end_ns - finding.start_ns) // MARGIN
                self.range = (finding.start_ns, finding.end_ns)
                self.visible = (finding.start_ns - margin, finding.end_ns + margin)
            self.selection = finding.rows
            self._about = finding.text
        self.send(CALL_UP)

    def on_change(self, callback: Callback, remove: bool = False) -> None:
        """Call ``callback(explorer)`` after every change of the range or the selection.

        With ``remove`` it is no longer called.
        """
        self._callbacks.register_callback(callback, remove=remove)

    @observe("range", "_rows")
    def _changed(self, change: Any) -> None:
        self._callbacks(self)

    @validate("range", "visible")
    def _inside(self, proposal: Any) -> Range:
        """Return a range with its ends in order and inside the trace, at least 1 ns long."""
        low, high = self._whole
        start, end = sorted(min(max(moment, low), high) for moment in proposal["value"])
        start = min(start, high - 1)
        return start, max(end, start + 1)

    def _answer(self, _: HasTraits, content: Any, buffers: Any) -> None:
        """Send the script of a report that is not below the cell, or of one with all events."""
        if content == {"asks": "report"}:
            figure = report_figure(self.profile, sort=self._sort, uid=self._uid, budget_bytes=WHOLE)
            script = report.figure_script(figure, embed_runtime=True)
            self.send({"report": self._uid}, [script.encode()])

    def _ipython_display_(self) -> None:
        """Show the plain report, with the widget that joins it with Python."""
        runtime_carrier.show(self._outputs, self._text)

    def _outputs(self, embed_runtime: bool) -> list[report.MimeBundle]:
        figure = report_figure(self.profile, sort=self._sort, uid=self._uid)
        self._is_merged = not report.has_all_rows(figure)
        return report.outputs(
            self.profile,
            sort=self._sort,
            top=self._top,
            embed_runtime=embed_runtime,
            figure=figure,
            widget=self._widget_view(),
        )

    def _widget_view(self) -> report.MimeBundle:
        """Return the widget as an output that is empty where widgets are not shown."""
        bundle: Any = self._repr_mimebundle_()
        return {**bundle[0], "text/plain": ""}

    def __repr__(self) -> str:
        start, end = self.range
        return f"<Explorer of {self.profile!r}: range {start:,} to {end:,} ns>"

    def _text(self) -> str:
        return report.static_text(self.profile, sort=self._sort, top=self._top)


def _numbers(wanted: pd.DataFrame | Iterable[int] | None) -> npt.NDArray[np.intp]:
    if wanted is None:
        return np.empty(0, np.intp)
    index = wanted.index if isinstance(wanted, pd.DataFrame) else list(wanted)
    return np.asarray(index, dtype=np.intp)
