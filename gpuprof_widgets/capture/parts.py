"""What a recording consists of beside torch.profiler and cProfile: one part per topic.

A new topic is one file and one row in PARTS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuprof_widgets.capture.compilations import Compilations
from gpuprof_widgets.capture.garbage_collections import GarbageCollections
from gpuprof_widgets.capture.gpu_events import gpu_events
from gpuprof_widgets.capture.lines.recording import lines_window, marked_code
from gpuprof_widgets.capture.loop.expected import expected
from gpuprof_widgets.capture.loop.recording import bounded_loop
from gpuprof_widgets.capture.memory.recording import memory_owners
from gpuprof_widgets.capture.modules.recording import module_spans
from gpuprof_widgets.capture.nvtx import nvtx_ranges
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.capture.process_state import process_state
from gpuprof_widgets.capture.ranks.gathered import ranks
from gpuprof_widgets.capture.workers.recording import workers
from gpuprof_widgets.capture.workers.starts import WorkerStarts

PARTS: tuple[Callable[[Context], Part | None], ...] = (
    marked_code,
    bounded_loop,
    lines_window,
    module_spans,
    memory_owners,
    gpu_events,
    Compilations,
    GarbageCollections,
    WorkerStarts,
    workers,
    ranks,
    nvtx_ranges,
    expected,
    process_state,
)
"""The parts in the order in which they start; None where the options do not ask for one."""


def parts_for(context: Context) -> Iterator[Part]:
    """The parts that the options ask for."""
    for make in PARTS:
        part = make(context)
        if part is not None:
            yield part
