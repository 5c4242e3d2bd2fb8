"""How tables explain themselves: why one is empty, or why it does not follow a time range.

An analysis returns an empty table with the reason in its ``attrs`` (`lacking`, `says_if_empty`).
`explained`, which wraps every analysis, adds what holds for all of them (the file may be of another
kind, the record a range of a run) and returns a `TableWithReason`, which prints the reason.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import pandas as pd

from gpuprof_widgets.analyses.added import checked_options
from gpuprof_widgets.exceptions import OptionError, printable
from gpuprof_widgets.trace.memory_history import SNAPSHOT_PROCESS
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import (
    FRAMEWORK,
    MEGENGINE,
    TENSORFLOW,
    WINDOW,
    WRITTEN_CATEGORY,
)

Arguments = ParamSpec("Arguments")

Result = TypeVar("Result")

Class = TypeVar("Class")

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
GPUPROF, ANYONE = "gpuprof", ""

MEMORY = "the trace has no memory events"
ANNOTATIONS = "the trace has no annotations"
SHAPES = "the trace has no input shapes, without which no work can be counted"
MODULES = "the trace has no modules"
LINES = "the trace has no cell lines"
FRAMES = "the trace has no Python frames"
CALLS = "the record has no Python calls: neither cProfile's nor frames"
SAMPLES = "the trace has no samples of Python"
BACKWARD = "the trace has no backward op that is linked to its forward op"
LOOP = "no loop was bounded"
WORKERS = "no worker process was recorded"
WAITS = "the trace has no call that waits for a GPU"

EMIT_NVTX = " (torch.autograd.profiler.emit_nvtx(record_shapes=True) marks them)"

HOW_TO_RECORD: Mapping[str, Mapping[str, str]] = {
    MEMORY: {
        GPUPROF: ": record them (--memory, memory=True)",
        PYTORCH: ": record them (profile_memory)",
        NSYS: ": record them (nsys profile --cuda-memory-usage=true)",
    },
    ANNOTATIONS: {PYTORCH: " (record_function)", NSYS: " (NVTX)", NVPROF: " (NVTX)"},
    SHAPES: {
        GPUPROF: " (--shapes, shapes=True)",
        PYTORCH: " (record_shapes)",
        NSYS: EMIT_NVTX,
        NVPROF: EMIT_NVTX,
    },
    MODULES: {
        GPUPROF: ": none was called, or it was recorded without (--modules none)",
        PYTORCH: ": record with modules, or with stacks (with_stack=True)",
    },
    LINES: {
        GPUPROF: ": recorded are those of cells, unless --no-lines is given, and of functions "
        "decorated with gpuprof_widgets.lines",
        ANYONE: ": only recordings of gpuprof have them",
    },
    CALLS: {GPUPROF: " (--python off, python='off')", PYTORCH: " (with_stack)"},
    SAMPLES: {
        GPUPROF: " (--python sampled, python='sampled')",
        ANYONE: ": only recordings of gpuprof have them",
    },
    BACKWARD: {PYTORCH: ": record the backward pass too"},
    LOOP: {PYTORCH: " (--steps, or gpuprof_widgets.steps around what it goes through)"},
    WORKERS: {PYTORCH: " (--workers records those of a DataLoader)"},
    WAITS: {
        PYTORCH: " and no wait for a DataLoader",
        TENSORFLOW: " and no op that waits for a queue or an iterator",
    },
}
"""How each sentence ends, by the program that recorded; there is no advice for other programs.

Recordings of gpuprof, which are made with torch, fall back to the advice for PyTorch.
"""

ASKED_FOR: Mapping[str, tuple[str, tuple[object, ...], str]] = {
    MEMORY: ("memory", (True,), ": they were recorded, and nothing was allocated or released"),
    WORKERS: ("workers", (True,), ": none started in the recorded code"),
    CALLS: ("python", ("sampled",), ": samples were asked for, and none was taken"),
    SAMPLES: (
        *("python", ("sampled", "both")),
        ": they were asked for, and none found a line of your code",
    ),
}
"""Our option that records it, the values with which it does, and how the sentence ends then."""

OF_TRACE, OF_RANGE = "the trace has", "this range of the trace has"
"""How a sentence begins for a trace, and for a range: the whole trace may have the data."""

NOBODY = "nobody"
"""Key in a table's ``attrs``: how to print the name of the row without one."""

IN_NO_MODULE = "(in no module)"


def lacking(columns: Sequence[str], why: str) -> pd.DataFrame:
    """Return a table with these columns and no rows; ``attrs["lacks"]`` is the reason."""
    table = _without_rows(tuple(columns)).copy()
    table.attrs[LACKS] = why
    return table


@functools.cache
def _without_rows(columns: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame(columns=list(columns))


def says_if_empty(
    why: str | Callable[..., str],
) -> Callable[[Callable[Arguments, pd.DataFrame]], Callable[Arguments, pd.DataFrame]]:
    """Decorate an analysis: if its table has no rows, ``attrs["lacks"]`` says why.

    ``why`` is the reason, or a function of the analysis' arguments that returns it.
    """

    def explained(
        analysis: Callable[Arguments, pd.DataFrame],
    ) -> Callable[Arguments, pd.DataFrame]:
        @functools.wraps(analysis)
        def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> pd.DataFrame:
            table = analysis(*args, **kwargs)
            if not len(table):
                sentence = why if isinstance(why, str) else why(*args, **kwargs)
                table.attrs.setdefault(LACKS, sentence)
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


def not_recorded(record: Record, sentence: str) -> str:
    """Complete a sentence of `HOW_TO_RECORD` with the advice for the program that recorded."""
    ends, recorder = HOW_TO_RECORD[sentence], recorder_of(record)
    options = record.metadata.get("options")
    if recorder == PYTORCH and isinstance(options, Mapping):
        option, values, of_none = ASKED_FOR.get(sentence, ("", (), ""))
        if options.get(option) in values:
            return sentence + of_none
        recorder = GPUPROF if GPUPROF in ends else PYTORCH
    elif WINDOW in record.metadata:
        return sentence  # the whole trace may have the data
    return sentence + ends.get(recorder, ends.get(ANYONE, ""))


def unless_recorded(sentence: str) -> Callable[..., str]:
    """Return `not_recorded` as a function for `says_if_empty`."""
    return lambda record, *_, **__: not_recorded(record, sentence)


def which_other_kind(trace: Trace) -> str:
    """Return in one sentence what the file is, if it is no profile of a run; else ""."""
    process = trace.tracks["process"]
    return SNAPSHOT if len(process) and bool((process == SNAPSHOT_PROCESS).all()) else ""


def explained(analysis: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap an analysis of a record, its first argument, so that its tables explain themselves.

    Options of a wrong type are refused (see `checked_options`); an OptionError comes without the
    frames of this package.
    """

    @functools.wraps(analysis)
    def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            taken, options = checked_options(analysis, args, kwargs)
            table = analysis(*taken, **options)
        except OptionError as error:
            raise error.with_traceback(None)  # noqa: B904  # the same error, not one about it
        if isinstance(table, pd.DataFrame):
            record: Any = args[0]
            _adapt_reason(table, record)
        return with_reason(table)

    return explaining


def _adapt_reason(table: pd.DataFrame, record: Record) -> None:
    """Make a table's reason name the kind of file, or the range of a run that the record is."""
    kind = "" if len(table) else which_other_kind(record.trace)
    why = str(table.attrs.get(LACKS, ""))
    if kind:
        table.attrs[LACKS] = kind
    elif why.startswith(OF_TRACE) and WINDOW in record.metadata:
        table.attrs[LACKS] = OF_RANGE + why.removeprefix(OF_TRACE)


class _LikeAnyTable(type(pd.DataFrame)):  # type: ignore[misc]
    """Accepts every DataFrame as an instance, because `pandas.testing` compares classes."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, pd.DataFrame)


class TableWithReason(pd.DataFrame, metaclass=_LikeAnyTable):
    """A DataFrame that shows ``attrs["lacks"]`` and its note, in print and in a notebook.

    Tables made from it are plain DataFrames if they have rows.
    """

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return _derived_table

    def __repr__(self) -> str:
        sentence = _sentence(self)
        if sentence and self.empty:
            return f"{sentence}\nColumns: {', '.join(map(str, self.columns))}"
        return f"{super().__repr__()}\n\n{sentence}" if sentence else super().__repr__()

    def _repr_html_(self) -> str | None:
        table: str | None = super()._repr_html_()  # type: ignore[misc]  # not in the stubs
        sentence = _sentence(self)
        if not sentence or table is None:
            return table
        return f"<p>{html.escape(sentence)}</p>\n{table}"


def _derived_table(*args: Any, **kwargs: Any) -> pd.DataFrame:
    table = pd.DataFrame(*args, **kwargs)
    return table if len(table) else TableWithReason(table)


def _sentence(table: pd.DataFrame) -> str:
    why, note = why_empty(table), _note(table) if len(table) else ""
    told = "; ".join(printable(text).removesuffix(".") for text in (why, note) if text)
    return f"{'Note' if len(table) else 'Empty'}: {told}." if told else ""


def why_empty(table: pd.DataFrame) -> str:
    """Return why a table is empty; "" if it does not say."""
    return str(table.attrs.get(LACKS, ""))


def _note(table: pd.DataFrame) -> str:
    return str(table.attrs.get(NOTE, ""))


def with_reason(result: Result) -> Result:
    """Return the result; if it is a table with a reason or a note, as a `TableWithReason`."""
    if isinstance(result, pd.DataFrame) and (why_empty(result) or _note(result)):
        table: Any = TableWithReason(result)
        table.attrs.update(result.attrs)
        return table  # type: ignore[no-any-return]
    return result


def with_reasons(kind: type[Class]) -> type[Class]:
    """Decorate a class so that its public methods return tables `with_reason`."""
    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("_"):
            setattr(kind, name, _showing(method))
    return kind


def _showing(
    method: Callable[Arguments, Result],
) -> Callable[Arguments, Result]:
    @functools.wraps(method)
    def showing(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return with_reason(method(*args, **kwargs))

    return showing


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
