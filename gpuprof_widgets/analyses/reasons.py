"""Why a table is empty, or why it does not follow a time range: sentences in its ``attrs``.

An analysis returns an empty table with the reason in its ``attrs`` (`empty_table`,
`says_if_empty`).
`explained`, which wraps every analysis, adds what holds for all of them: the file may be of another
kind, the record a range of a run.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import pandas as pd

from gpuprof_widgets.analyses.added import checked_options
from gpuprof_widgets.exceptions import printable
from gpuprof_widgets.trace.memory_history import SNAPSHOT_PROCESS
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import FRAMEWORK, MEGENGINE, TENSORFLOW, WINDOW, WRITTEN_CATEGORY

Arguments = ParamSpec("Arguments")

Result = TypeVar("Result")

LACKS = "lacks"
"""Key in a table's ``attrs``: one sentence on what the trace lacks."""

NOTE = "note"
"""Key in a table's ``attrs``: what one has to know to read its rows."""

WHOLE = "whole"
"""Key in a table's ``attrs``: why a time range cannot be cut out of it, in a few words."""

NO_TIMES = "cProfile counts calls and notes no times of them"

SNAPSHOT = (
    "this is a CUDA memory snapshot: it has what was allocated and released, and neither ops, "
    "kernels nor Python's time"
)

PYTORCH, NSYS, NVPROF = "PyTorch", "Nsight Systems", "nvprof"

MEMORY = (
    "the trace has no memory events; gpuprof records them with --memory (memory=True), "
    "torch.profiler with profile_memory=True"
)
ANNOTATIONS = "the trace has no annotations; torch.profiler.record_function and NVTX mark them"
SHAPES = (
    "the trace has no input shapes, without which no work can be counted; gpuprof records them "
    "with --shapes (shapes=True), torch.profiler with record_shapes=True"
)
MODULES = (
    "the trace has no modules; gpuprof records those that are called, unless with --modules none, "
    "torch.profiler with with_stack=True"
)
LINES = (
    "the trace has no cell lines; gpuprof alone records them: those of cells, unless with "
    "--no-lines, and of functions decorated with gpuprof_widgets.lines"
)
FRAMES = "the trace has no Python frames"
CALLS = (
    "the record has no Python calls; gpuprof records them unless --python says otherwise, "
    "torch.profiler with with_stack=True"
)
SAMPLES = (
    "the trace has no samples of lines of your own files; gpuprof takes them with "
    "--python sampled (python='sampled')"
)
BACKWARD = "the trace has no backward op that is linked to its forward op"
LOOP = "no loop was bounded; --steps does it, and gpuprof_widgets.steps around what it goes through"
WORKERS = "no worker process was recorded; gpuprof records those of a DataLoader with --workers"
WAITS = "the trace has no call that waits for a GPU, and no wait for input"

NOBODY = "nobody"
"""Key in a table's ``attrs``: how to print the name of the row without one."""

IN_NO_MODULE = "(in no module)"


def empty_table(columns: Sequence[str], why: str) -> pd.DataFrame:
    """Return a table with these columns and no rows; ``attrs["lacks"]`` is the reason."""
    table = pd.DataFrame(columns=list(columns))
    table.attrs[LACKS] = why
    return table


def says_if_empty(
    why: str,
) -> Callable[[Callable[Arguments, pd.DataFrame]], Callable[Arguments, pd.DataFrame]]:
    """Decorate an analysis: if its table has no rows, ``attrs["lacks"]`` says why."""

    def explained(analysis: Callable[Arguments, pd.DataFrame]) -> Callable[Arguments, pd.DataFrame]:
        @functools.wraps(analysis)
        def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> pd.DataFrame:
            table = analysis(*args, **kwargs)
            if not len(table):
                table.attrs.setdefault(LACKS, why)
            return table

        return explaining

    return explained


def recorder_of(record: Record) -> str:
    """Return the program that recorded, or its framework; "" if unknown.

    PyTorch's traces do not name their program.
    """
    metadata = record.metadata
    if metadata.get(FRAMEWORK) in (TENSORFLOW, MEGENGINE):
        return str(metadata[FRAMEWORK])
    of_torch = "" if WRITTEN_CATEGORY in record.trace.args else PYTORCH
    return str(metadata.get("recorder") or metadata.get("recorded_by") or of_torch)


def which_other_kind(trace: Trace) -> str:
    """Return in one sentence what the file is, if it is no profile of a run; else ""."""
    process = trace.tracks["process"]
    return SNAPSHOT if len(process) and bool((process == SNAPSHOT_PROCESS).all()) else ""


def explained(analysis: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap an analysis of a record, its first argument, so that its tables explain themselves.

    Options of a wrong type are refused (see `checked_options`).
    """

    @functools.wraps(analysis)
    def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        taken, options = checked_options(analysis, args, kwargs)
        table = analysis(*taken, **options)
        if isinstance(table, pd.DataFrame):
            record: Any = args[0]
            kind = "" if len(table) else which_other_kind(record.trace)
            if kind:
                table.attrs[LACKS] = kind
            elif LACKS in table.attrs and WINDOW in record.metadata:
                table.attrs[LACKS] = f"in this range, {table.attrs[LACKS]}"
        return table

    return explaining


def why_empty(table: pd.DataFrame) -> str:
    """Return why a table is empty; "" if it does not say."""
    return str(table.attrs.get(LACKS, ""))


def warned(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table, and warn whoever called the caller if it lacks something."""
    if why := why_empty(table):
        warnings.warn(printable(why), stacklevel=3)
    return table


def of_the_whole_run(table: pd.DataFrame, why: str) -> pd.DataFrame:
    """Return the table with ``attrs["whole"]`` saying why it follows no time range."""
    table.attrs[WHOLE] = why
    return table


def is_beyond_the_range(record: Record, table: pd.DataFrame) -> bool:
    """Return whether the record is a time range but the table is of the whole run."""
    return WINDOW in record.metadata and WHOLE in table.attrs


def range_note(table: pd.DataFrame) -> str:
    """Return the note on a table that ignores the range; "" if it follows ranges or is empty."""
    if WHOLE not in table.attrs or not len(table):
        return ""
    return f"these rows are of the whole run, not of that range: {table.attrs[WHOLE]}"
