"""`profile.explore()`: the report as a widget, whose range and selection are Python's as well.

An explorer leaves the plain report in the notebook. While the kernel lives, the widget joins that
report with Python; without its kernel the plain report is all that there is. A `Chart` is a figure
of the user's own beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import count
from typing import Any

import anywidget
import numpy as np
import pandas as pd
from bokeh.models import Column, LayoutDOM
from ipywidgets import CallbackDispatcher
from traitlets import (
    Bool,
    Bytes,
    Enum,
    HasTraits,
    Instance,
    Int,
    List,
    Tuple,
    Unicode,
    observe,
    validate,
)

from gpuprof_widgets import runtime_carrier
from gpuprof_widgets.analysed import Analysed
from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.columns import report_keys, sort_key
from gpuprof_widgets.analyses.findings import Finding
from gpuprof_widgets.analyses.regions import steps
from gpuprof_widgets.analyses.selected import (
    Selection,
    about_selection,
    selected_rows,
    selected_slices,
)
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.remarks import focus
from gpuprof_widgets.trace.window import window
from gpuprof_widgets.views import report
from gpuprof_widgets.views.page import Page, new_uid, report_page

Range = tuple[int, int]
Callback = Callable[["Explorer"], object]

WHOLE = 1 << 40
"""A budget, in bytes, that no page reaches: what the kernel sends needs no merging."""

MARGIN = 4
"""What is brought onto the screen has this part of its range in view on either side of it."""

TEXT_COLUMNS = ("name", "category", "input_shapes")
"""Columns that sort the op table in the page as well."""

CALL_UP = "call up"
"""The message that brings the timeline onto the screen (explorer.ts)."""


class Explorer(anywidget.AnyWidget):
    """A report in step with Python; times are ns since the trace's start.

    ``profiles`` maps names to functions that return a profile. One profile is shown at a time, at
    first the first one. ``noun`` is what the page calls them: "Profile" or "Rank".

    What the page shows are traits: set, observe and link them like those of any widget. Every
    analysis is a method that answers for the brushed range, as in ``explorer.operators()``.
    """

    _esm = files("gpuprof_widgets.views") / "explorer.js"
    _css = files("gpuprof_widgets.views") / "explorer.css"

    profile_name = Unicode(help="which of the profiles is shown").tag(sync=True)
    range = Tuple(
        Int(), Int(), help="the brushed range, ns; the whole trace where nothing is brushed"
    ).tag(sync=True)
    visible = Tuple(Int(), Int(), help="what the timeline shows, ns").tag(sync=True)
    step = Int(
        None, allow_none=True, help="the step that is brushed, None where it is no step"
    ).tag(sync=True)
    search = Unicode(help="what is searched for in all names; /.../ is a regular expression").tag(
        sync=True
    )
    sort = Unicode(help="the sort key of the op table").tag(sync=True)
    group_by = Enum(
        ("name", "name_shape", "category"), "name", help="what the op table groups by"
    ).tag(sync=True)
    metric = Enum(
        ("cpu", "device"),
        None,
        allow_none=True,
        help="the time that the flame graph shows; None until a page chooses",
    ).tag(sync=True)
    _rows = Bytes().tag(sync=True, from_json=lambda buffer, _: bytes(buffer))
    _about = Unicode().tag(sync=True)
    _is_finding = Bool(help="whether a finding says what is selected").tag(sync=True)
    _uid = Unicode(help="names the reports; what follows the dash, their profile").tag(sync=True)
    _noun = Unicode().tag(sync=True)
    _names = List(Unicode()).tag(sync=True)
    _steps = List(Int()).tag(sync=True)
    _is_merged = Bool(help="whether the plain report has merged events").tag(sync=True)

    def __init__(
        self,
        profiles: Mapping[str, Callable[[], Analysed]],
        *,
        noun: str = "Profile",
        sort: str = "device_self",
        top: int = 15,
    ) -> None:
        self._profiles = profiles
        self._first_sort, self._top = sort, top
        self._callbacks = CallbackDispatcher()
        name = new_uid()
        self._uids = (f"{name}-{number}" for number in count())
        first = next(iter(profiles))
        self._open(profiles[first]())
        super().__init__(
            profile_name=first,
            range=self._whole,
            visible=self._whole,
            sort=report_keys(sort)[0],
            _uid=next(self._uids),
            _noun=noun,
            _names=list(profiles),
            _steps=list(self._step_ranges),
        )
        self._open_at_focus()
        self.observe(self._show_profile, "profile_name")
        self.on_msg(self._answer)

    def _open(self, profile: Analysed) -> None:
        """Answer for this profile from now on."""
        self.profile = profile
        self._windows: dict[Range, Analysed] = {self._whole: profile}
        table = steps(profile)
        ranges = zip(table["start_ns"].tolist(), table["end_ns"].tolist(), strict=True)
        self._step_ranges = dict(
            zip(table["step"].tolist(), map(self._inside, ranges), strict=True)
        )

    @validate("profile_name")
    def _known(self, proposal: Any) -> str:
        """Open the profile of that name; without one the present profile stays."""
        name = str(proposal["value"])
        if name not in self._profiles:
            known = ", ".join(self._profiles)
            raise OptionError(f"there is no profile {name!r} here: there are {known}")
        try:
            self._opened = self._profiles[name]()
        except Exception:
            self.send_state("profile_name")
            raise
        return name

    def _show_profile(self, _: Any) -> None:
        self._open(self._opened)
        with self.hold_sync():
            self._uid = next(self._uids)
            self._steps = list(self._step_ranges)
            self.step = None
            self.range = self.visible = self._whole
            self.selection = None
            self._open_at_focus()

    def _open_at_focus(self) -> None:
        """Show the place at which the profile's reports open (`Profile.focus`)."""
        place = focus(self.profile)
        if place is not None:
            if place["range_ns"]:
                self._look_at((place["range_ns"][0], place["range_ns"][1]), place["rows"])
            self.selection = place["rows"]
            self._about, self._is_finding = place["about"], True

    @property
    def _whole(self) -> Range:
        trace = self.profile.trace
        return trace.start_ns, max(trace.end_ns, trace.start_ns + 1)

    @property
    def window(self) -> Analysed:
        """The profile of the brushed range (`Profile.window`); without one, the whole profile."""
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
        """The selected slices, one per row, with their row numbers in the trace as the index.

        Columns: ``name``, ``category``, ``op``, ``kernel``, ``module``, ``line``, ``track``,
        ``start_ns``, ``duration_ns`` (`analyses.selected.selected_slices`).

        Set it to row numbers of slices, to a table that has them as its index, or to a query of
        these columns, as in
        ``explorer.selection = "op == 'aten::mm' and duration_ns > 1_000_000"``. ``None`` selects
        nothing. Raises an `OptionError` for numbers that no slice has, and for a query that cannot
        be evaluated.
        """
        return selected_slices(self.profile, np.frombuffer(self._rows, np.int32))

    @selection.setter
    def selection(self, wanted: Selection) -> None:
        rows = selected_rows(self.profile, wanted)
        with self.hold_sync():
            self._about, self._is_finding = about_selection(wanted), False
            self._rows = rows.tobytes()

    def show(self, finding: Finding) -> None:
        """Show a finding in the page: brush its range and select its slices."""
        with self.hold_sync():
            if finding.start_ns is not None and finding.end_ns is not None:
                self._look_at((finding.start_ns, finding.end_ns), finding.rows)
            self.selection = finding.rows
            self._about, self._is_finding = finding.text, True
        self.send(CALL_UP)

    def _look_at(self, place: Range, rows: Sequence[int]) -> None:
        """Brush a range and bring it into view; a moment, which has no numbers, with its slices."""
        start, end = place
        if end - start > 1:
            self._brush(place)
            return
        self.range = self._whole
        seen = self.visible[1] - self.visible[0]
        if rows:
            slices = self.profile.trace.slices.iloc[list(rows)]
            start = min(start, int(slices["ts"].min()))
            end = max(end, int((slices["ts"] + slices["dur"]).max()))
            self._view((start, end))
        else:
            self.visible = (start - seen // 2, start + seen - seen // 2)

    def _brush(self, brushed: Range) -> None:
        """Brush a range and bring it into view."""
        self.range = brushed
        self._view(brushed)

    def _view(self, seen: Range) -> None:
        start, end = seen
        margin = (end - start) // MARGIN
        self.visible = (start - margin, end + margin)

    def on_change(self, callback: Callback, remove: bool = False) -> None:
        """Call ``callback(explorer)`` after every change of the range or the selection.

        ``remove`` takes the callback out again.
        """
        self._callbacks.register_callback(callback, remove=remove)

    @observe("range", "_rows")
    def _changed(self, change: Any) -> None:
        if self.step is not None and self.range != self._step_ranges[self.step]:
            self.step = None
        self._callbacks(self)

    @validate("range", "visible")
    def _range_inside(self, proposal: Any) -> Range:
        return self._inside(proposal["value"])

    def _inside(self, moments: Range) -> Range:
        """Return a range with its ends in order and inside the trace, at least 1 ns long."""
        low, high = self._whole
        start, end = sorted(min(max(moment, low), high) for moment in moments)
        start = min(start, high - 1)
        return start, max(end, start + 1)

    @validate("step")
    def _known_step(self, proposal: Any) -> int | None:
        step: int | None = proposal["value"]
        if step is not None and step not in self._step_ranges:
            known = ", ".join(map(str, self._step_ranges)) or "none"
            raise OptionError(f"the trace has no step {step}: its steps are {known}")
        return step

    @observe("step")
    def _show_step(self, change: Any) -> None:
        """Brush the step; where none is chosen any more, nothing is brushed."""
        if self.step is not None:
            self._brush(self._step_ranges[self.step])
        elif self.range == self._step_ranges.get(change["old"]):
            self.range = self.visible = self._whole

    @validate("sort")
    def _known_sort(self, proposal: Any) -> str:
        key: str = proposal["value"]
        return key if key in TEXT_COLUMNS else sort_key(key)

    def _answer(self, _: HasTraits, content: Any, buffers: Any) -> None:
        """Send the script of a report that is not below the cell, or of one with all events."""
        if content == {"asks": "report"}:
            script = report.page_script(self._page(budget_bytes=WHOLE), embed_runtime=True)
            self.send({"report": self._uid}, [script.encode()])

    def _ipython_display_(self) -> None:
        """Show the plain report, with the widget that joins it with Python."""
        asked: Any = {"sort": self._first_sort, "top": self._top}

        def outputs(embed_runtime: bool) -> Iterator[report.MimeBundle]:
            page = self._page()
            self._is_merged = not page["store"]["rows_kept"]
            bundle: Any = self._repr_mimebundle_()
            widget = {**bundle[0], "text/plain": ""}  # empty where widgets are not shown
            return report.outputs(
                self.profile, **asked, embed_runtime=embed_runtime, page=page, widget=widget
            )

        runtime_carrier.show(outputs, lambda: report.static_text(self.profile, **asked))

    def _page(self, **budget: int) -> Page:
        return report_page(self.profile, sort=self._first_sort, uid=self._uid, **budget)

    def __repr__(self) -> str:
        start, end = self.range
        return f"<Explorer of {self.profile!r}: range {start:,} to {end:,} ns>"


class Chart(anywidget.AnyWidget):
    """A Bokeh figure as a widget, drawn by the reports' own BokehJS, without a network.

    Set ``figure`` to draw another figure in its place. The reports' BokehJS has plots, glyphs and
    tools, but not Bokeh's widgets and tables.
    """

    _esm = files("gpuprof_widgets.views") / "chart.js"

    figure = Instance(LayoutDOM, allow_none=True, help="what is drawn; None draws nothing")

    def __init__(self, figure: LayoutDOM | None = None) -> None:
        self._is_shown = False
        super().__init__(figure=figure)
        self.on_msg(self._answer)

    def _answer(self, _: HasTraits, content: Any, buffers: Any) -> None:
        """Send the figure to a new view, with BokehJS, which its page or frame may not have."""
        if content == {"asks": "figure"}:
            self._is_shown = True
            self._send_figure(embed_runtime=True)

    @observe("figure")
    def _draw(self, _: Any) -> None:
        if self._is_shown:
            self._send_figure(embed_runtime=False)

    def _send_figure(self, *, embed_runtime: bool) -> None:
        if self.figure is None:
            self.send({"draws": None})
            return
        layout = Column(children=[self.figure], name=new_uid(), sizing_mode="stretch_width")
        script = report.figure_script(layout, embed_runtime=embed_runtime)
        if layout.document is not None:  # a figure is in one document at a time
            layout.document.remove_root(layout)
        self.send({"draws": layout.name}, [script.encode()])
