"""What is changed in a cell's syntax before it runs: one rewrite per topic.

A new topic is one file and one row in REWRITES.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuprof_widgets.capture.cell import Rewrite
from gpuprof_widgets.capture.lines.recording import lines_rewrite
from gpuprof_widgets.capture.loop.bound import loop_bound
from gpuprof_widgets.capture.loop.expected import guards
from gpuprof_widgets.options import Options

REWRITES: tuple[Callable[[Options], Rewrite | None], ...] = (
    guards,
    loop_bound,
    lines_rewrite,
)
"""The rewrites in the order in which they are applied; None where the options ask for none.

The part of the same topic finds its rewrite in the ``code`` of its `Context`.
"""


def rewrites_for(options: Options) -> list[Rewrite]:
    """The rewrites that the options ask for."""
    made = (make(options) for make in REWRITES)
    return [rewrite for rewrite in made if rewrite is not None]
