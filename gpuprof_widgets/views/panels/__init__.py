"""Tables and plots of one analysis each, below the main views; a new one is a row in PANELS.

A panel says what it shows; how it is encoded, drawn and linked is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Panel

PANELS: dict[str, Callable[[Record], Panel | None]] = {}
"""By name, in the order of their tabs; None where a record has nothing to show in it."""
