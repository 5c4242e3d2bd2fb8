"""Tables and plots of one analysis each, below the main views.

An analysis with a ``tab`` in `ANALYSES` has its whole table there. What takes more, such as a plot
or rows that follow a brushed range, is a function that returns a `Panel` and a row of `PANELS`: it
says what is shown; how that is encoded, drawn and linked is the same for all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.allocator import allocator_panel
from gpuprof_widgets.views.panels.annotations import annotations_panel
from gpuprof_widgets.views.panels.breakdown import breakdown_panel, step_breakdown_panel
from gpuprof_widgets.views.panels.collectives import collectives_panel
from gpuprof_widgets.views.panels.copies import copies_panel
from gpuprof_widgets.views.panels.counters import counters_panel
from gpuprof_widgets.views.panels.critical_path import critical_path_panel
from gpuprof_widgets.views.panels.idle import idle_panel
from gpuprof_widgets.views.panels.kernels import kernels_panel
from gpuprof_widgets.views.panels.launches import launches_panel
from gpuprof_widgets.views.panels.modules import modules_panel
from gpuprof_widgets.views.panels.panel import Panel
from gpuprof_widgets.views.panels.python_time import python_time_panel
from gpuprof_widgets.views.panels.roofline import roofline_panel
from gpuprof_widgets.views.panels.sequences import sequences_panel
from gpuprof_widgets.views.panels.streams import streams_panel
from gpuprof_widgets.views.panels.whole_table import table_panel

PanelOf = Callable[[Record], Panel | None]

PANELS: dict[str, PanelOf] = {
    "breakdown": breakdown_panel,
    "step_breakdown": step_breakdown_panel,
    "critical_path": critical_path_panel,
    "idle": idle_panel,
    "streams": streams_panel,
    "kernels": kernels_panel,
    "launches": launches_panel,
    "sequences": sequences_panel,
    "copies": copies_panel,
    "collectives": collectives_panel,
    "modules": modules_panel,
    "python_time": python_time_panel,
    "annotations": annotations_panel,
    "roofline": roofline_panel,
    "allocator": allocator_panel,
    "counters": counters_panel,
}
"""By name, in the order of their tabs; None where a record has nothing to show in it."""


def all_panels() -> dict[str, PanelOf]:
    """Return those of `PANELS` and, behind them, those of analyses with a ``tab``."""
    tabs = {name: partial(_tab, row) for name, row in ANALYSES.items() if row.tab}
    return PANELS | tabs


def _tab(analysis: Analysis, record: Record) -> Panel | None:
    try:
        return table_panel(analysis.tab, analysis.function(record), note=analysis.question)
    except Exception as error:  # another package's: the page stands without it
        warnings.warn(f"the tab {analysis.tab} is left out: {error!r}", stacklevel=2)
        return None
