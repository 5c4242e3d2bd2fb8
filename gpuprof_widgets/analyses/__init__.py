"""Every analysis: a row of `ANALYSES` names its function, its question and where it is shown.

A new analysis is a function of a record in this package and a row of the table. Its method of
`Profile`, its command, its tab on the page, the table in the documentation and the tests over all
real traces come from the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from gpuprof_widgets.registry import Registry

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Analysis:
    """One question and the function that answers it.

    ``source``: the function, which takes a `Record` and options and returns a DataFrame; in this
    package the name of its module, followed by ":" and the function's name if that differs.
    ``question``: as a user would ask it; ``view``: where the page shows the answer; ``peers``:
    other tools that answer it; ``example``: a value for an argument without a default; ``tab``: the
    title of a tab of the page that shows the whole table.
    """

    source: Callable[..., pd.DataFrame] | str
    question: str
    view: str = ""
    peers: str = ""
    example: str = ""
    tab: str = ""

    @property
    def name(self) -> str:
        """The name of the function, of the method and of the command."""
        source = self.source
        return source.rpartition(":")[2] if isinstance(source, str) else source.__name__

    @cached_property
    def function(self) -> Callable[..., pd.DataFrame]:
        """The function, imported on first use; its empty tables give the reason."""
        from gpuprof_widgets.analyses.reasons import explained

        if not isinstance(self.source, str):
            return explained(self.source)
        module = import_module(f"{__name__}.{self.source.partition(':')[0]}")
        return explained(getattr(module, self.name))


def _checked(name: str, row: object, package: str) -> Analysis:
    from gpuprof_widgets.analyses.added import added_analysis  # loads numpy and pandas

    if not isinstance(row, Analysis):
        raise TypeError(f"an Analysis is expected, not {row!r:.80}")
    return replace(row, source=added_analysis(name, row.source, package, row.example))


_ROWS = (
    Analysis(
        "operators",
        "Which ops take the time, on the CPU and on the GPU?",
        view="op table",
        peers="key_averages(), TensorBoard plugin",
    ),
    Analysis(
        "kernels",
        "Which kernels take the GPU's time, and how were they laid out on it?",
        view="kernels",
        peers="TensorBoard plugin, HTA, nsys stats",
    ),
    Analysis(
        "kernels:gpu_summary",
        "How well was each GPU used: SMs, occupancy, tensor cores?",
        tab="GPUs",
        peers="TensorBoard plugin",
    ),
    Analysis(
        "launches",
        "How long do kernels take to start, and are they longer than their launch?",
        view="launches",
        peers="HTA, TraceLens",
    ),
    Analysis(
        "launches:queue_length",
        "How much launched work waits, over time?",
        view="launches",
        peers="HTA",
    ),
    Analysis(
        "launches:queues",
        "Which streams have launches waiting, or a full queue?",
        view="launches",
        peers="HTA",
    ),
    Analysis(
        "sequences",
        "Which kernels follow one another again and again, and could be fused?",
        view="sequences",
        peers="HTA",
    ),
    Analysis(
        "copies",
        "What is copied, how fast, who waits for it, and is it needed?",
        view="copies",
        peers="HTA, nsys analyze",
    ),
    Analysis(
        "copies:copy_bandwidth",
        "How many bytes per second move, over time?",
        view="copies",
        peers="HTA",
    ),
    Analysis(
        "counters",
        "What else does the trace count: CUPTI metrics, power, utilisation?",
        view="counters",
        peers="HTA, Perfetto",
    ),
    Analysis(
        "breakdown",
        "Where did the GPU's time go, and why was it idle?",
        view="breakdown",
        peers="TensorBoard plugin, HTA, TraceLens",
    ),
    Analysis(
        "streams:overlaps",
        "How much communication and copying is hidden behind compute?",
        view="breakdown",
        peers="TensorBoard plugin, HTA, TraceLens",
    ),
    Analysis(
        "gpu_work:device_busy",
        "How busy was each GPU?",
        view="findings",
        peers="TensorBoard plugin",
    ),
    Analysis(
        "idle", "When had the GPU nothing to do, and why?", view="idle", peers="HTA, nsys analyze"
    ),
    Analysis(
        "streams",
        "Do the streams work side by side, and what could but did not?",
        view="streams",
        peers="HTA, nsys analyze",
    ),
    Analysis(
        "waits",
        "Where does the CPU wait for the GPU or for data?",
        tab="Waits",
        peers="nsys analyze",
    ),
    Analysis(
        "workers:input_queues",
        "How full were the queues that the input came from?",
        view="findings",
        peers="TensorFlow summaries",
    ),
    Analysis(
        "critical_path",
        "Which chain of CPU and GPU work makes the run as long as it is?",
        view="critical path",
        peers="HTA",
    ),
    Analysis(
        "what_if:what_ifs",
        "How much shorter would the run be without one of its ops or kernels?",
        view="critical path",
        peers="HTA",
    ),
    Analysis(
        "regions:steps",
        "How long does each step take?",
        view="timeline",
        peers="TensorBoard plugin",
    ),
    Analysis(
        "lines",
        "Which line of the cell takes the time?",
        view="lines",
        peers="line_profiler, scalene",
    ),
    Analysis(
        "python_time",
        "Which Python functions take time, and which only wait for the GPU?",
        view="Python functions, flame graph",
        peers="cProfile, snakeviz",
    ),
    Analysis(
        "lines:sampled_lines",
        "Which lines of my own files take the time, and which only wait for the GPU?",
        view="sampled lines",
        peers="scalene, py-spy, pyinstrument",
    ),
    Analysis(
        "modules",
        "Which module takes the time, in the forward and the backward pass?",
        view="modules",
        peers="TensorBoard plugin, TraceLens",
    ),
    Analysis(
        "regions:annotations",
        "How much GPU time does each annotated region cause?",
        view="annotations",
        peers="HTA, nsys nvtx_gpu_proj_sum",
    ),
    Analysis(
        "roofline",
        "How close do ops and kernels come to what the device can do?",
        view="roofline",
        peers="TraceLens, XProf, torch._inductor profile_analysis",
    ),
    Analysis(
        "analyze",
        "Which ops take the time, one by one or by kind, with FLOPs, bandwidth and shapes?",
        peers="MegEngine profile_analyze",
    ),
    Analysis(
        "memory",
        "Which op allocates memory, and keeps it?",
        view="memory",
        peers="TensorBoard plugin",
    ),
    Analysis(
        "memory:memory_curve",
        "How much memory was held, over time?",
        view="memory",
        peers="TensorBoard plugin",
    ),
    Analysis(
        "memory:memory_peak",
        "What was alive when memory was fullest?",
        view="memory",
        peers="memory snapshot",
    ),
    Analysis(
        "allocator:memory_segments",
        "How had the allocator laid out the GPU's memory, and how much lay in free pieces?",
        view="allocator",
        peers="memory snapshot",
    ),
    Analysis(
        "collectives",
        "Which collectives ran, how large, how fast, and how much of them was not hidden?",
        view="collectives",
        peers="TensorBoard plugin, HTA, TraceLens, nsys nccl_sum",
    ),
    Analysis(
        "memory:allocations",
        "Which blocks were allocated, by whom, for how long?",
        view="memory",
        peers="memory snapshot",
    ),
    Analysis(
        "allocator:allocator_events",
        "When did the allocator ask the driver for memory, retry or fail?",
        view="findings",
        peers="memory snapshot",
    ),
    Analysis(
        "call_tree",
        "Which call paths take the time, on the CPU and on the GPU?",
        view="flame graph",
        peers="Perfetto, torch's export_stacks, snakeviz",
    ),
    Analysis(
        "python_calls",
        "Which Python functions were called, how often, for how long?",
        view="flame graph",
        peers="cProfile, snakeviz",
    ),
    Analysis(
        "backward:backward_ops",
        "Which backward op takes the time, and whose forward op made it necessary?",
        view="modules",
    ),
    Analysis(
        "regions:iterations", "How long did each iteration of the loop take, recorded or not?"
    ),
    Analysis(
        "workers",
        "What did the DataLoader's worker processes do?",
        view="timeline",
        peers="TensorBoard plugin (DataLoader time)",
    ),
    Analysis(
        "attribution",
        "Which line, module, op or Python function caused it, backward pass included?",
        view="lines, flame graph",
        peers="TraceLens",
        example="module",
    ),
    Analysis(
        "what_if",
        "How much shorter would the run be if that op or kernel were faster?",
        view="critical path",
        peers="HTA",
        example="aten::mm",
    ),
    Analysis(
        "owners",
        "Who is responsible for that slice, from the Python frame down to the kernel?",
        view="timeline",
        example="1042",
    ),
    Analysis(
        "workers:worker_calls",
        "Which Python functions took the time of that worker of the DataLoader?",
        example="0",
    ),
)

ANALYSES = Registry("gpuprof_widgets.analyses", {row.name: row for row in _ROWS}, _checked)
"""All analyses by name; other packages add theirs by entry points of that group."""


def plain_analyses() -> list[Analysis]:
    """Return the analyses that need nothing but the record: no level, name, row or worker."""
    return [row for row in ANALYSES.values() if not row.example]
