"""Tables and plots of one analysis each, below the main views; a new one is a row in PANELS.

A panel says what it shows; how it is encoded, drawn and linked is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable

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

PANELS: dict[str, Callable[[Record], Panel | None]] = {
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
