"""How an analysis says what a trace lacks: an empty table with the reason beside it.

An analysis knows what it looks for; that the file is of another kind altogether is said here for
all of them.
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
    SAMPLED,
    TENSORFLOW,
    WINDOW,
    WRITTEN_CATEGORY,
)

Arguments = ParamSpec("Arguments")

Result = TypeVar("Result")

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
BACKWARD = "the trace has no backward op that is linked to its forward op"
LOOP = "no loop was bounded"
WORKERS = "no worker process was recorded"
WAITS = "the trace has no call that waits for a GPU"

EMIT_NVTX = " (torch.autograd.profiler.emit_nvtx(record_shapes=True) marks them)"

HOW_TO_RECORD: Mapping[str, Mapping[str, str]] = {
    MEMORY: {
        GPUPROF: ": record them (--memory, memory=True)",
        PYTORCH: ": record them (profile_memory)",
        TENSORFLOW: ": write the Timeline with show_memory=True",
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
    CALLS: {GPUPROF: " (--no-cprofile, cprofile=False)", PYTORCH: " (with_stack)"},
    BACKWARD: {PYTORCH: ": record the backward pass too"},
    LOOP: {PYTORCH: " (--steps, or gpuprof_widgets.steps around what it goes through)"},
    WORKERS: {PYTORCH: " (--workers records those of a DataLoader)"},
    WAITS: {
        PYTORCH: " and no wait for a DataLoader",
        TENSORFLOW: " and no op that waits for a queue or an iterator",
    },
}
"""How each sentence ends, by the program that recorded; of others nothing can be advised.

Of our own recordings, which are made with torch, torch's where there is none of ours.
"""

ASKED_FOR: Mapping[str, tuple[str, str]] = {
    MEMORY: ("memory", ": they were recorded, and nothing was allocated or released"),
    WORKERS: ("workers", ": none started in the recorded code"),
}
"""The option of ours that asks for it, and how the sentence ends where it was given."""

OF_TRACE, OF_RANGE = "the trace has", "this range of the trace has"
"""How a sentence begins, and how it does of a range: the whole may well have it."""

NOBODY = "nobody"
"""Key in a table's ``attrs``: how the row without a name is called where it is printed."""

IN_NO_MODULE = "(in no module)"


def lacking(columns: Sequence[str], why: str) -> pd.DataFrame:
    """A table with these columns and no rows; ``attrs["lacks"]`` says why, in one sentence."""
    table = _without_rows(tuple(columns)).copy()
    table.attrs[LACKS] = why
    return table


@functools.cache
def _without_rows(columns: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame(columns=list(columns))


def says_if_empty(
    why: str | Callable[..., str],
) -> Callable[[Callable[Arguments, pd.DataFrame]], Callable[Arguments, pd.DataFrame]]:
    """Of an analysis: where its table has no rows, ``attrs["lacks"]`` says why.

    ``why`` may be a function of what the analysis gets: the reason depends on the trace.
    """

    def explained(
        analysis: Callable[Arguments, pd.DataFrame],
    ) -> Callable[Arguments, pd.DataFrame]:
        @functools.wraps(analysis)
        def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> pd.DataFrame:
            table = analysis(*args, **kwargs)
            if not len(table):
                said = why if isinstance(why, str) else why(*args, **kwargs)
                table.attrs.setdefault(LACKS, said)
            return table

        return explaining

    return explained


def recorder_of(record: Record) -> str:
    """The program that recorded, or its framework; "" where it is none that is known.

    PyTorch's own traces do not say so, and none of them is made of samples.
    """
    told = record.metadata
    if told.get(FRAMEWORK) in (TENSORFLOW, MEGENGINE):
        return str(told[FRAMEWORK])
    of_torch = "" if WRITTEN_CATEGORY in record.trace.args or told.get(SAMPLED) else PYTORCH
    return str(told.get("recorder") or told.get("recorded_by") or of_torch)


def not_recorded(record: Record, what: str) -> str:
    """The sentence ``what``, a key of `HOW_TO_RECORD`, in the words of what recorded."""
    ends, recorder = HOW_TO_RECORD[what], recorder_of(record)
    options = record.metadata.get("options")
    if recorder == PYTORCH and isinstance(options, Mapping):
        option, of_none = ASKED_FOR.get(what, ("", ""))
        if options.get(option):
            return what + of_none
        recorder = GPUPROF if GPUPROF in ends else PYTORCH
    elif WINDOW in record.metadata:
        return what  # whether it was recorded the whole alone tells
    return what + ends.get(recorder, ends.get(ANYONE, ""))


def unless_recorded(what: str) -> Callable[..., str]:
    """The same for `says_if_empty`, of an analysis whose first argument is the record."""
    return lambda record, *_, **__: not_recorded(record, what)


def which_other_kind(trace: Trace) -> str:
    """What the file is, in one sentence, if it is none of a run's time; "" if it is."""
    process = trace.tracks["process"]
    return SNAPSHOT if len(process) and bool((process == SNAPSHOT_PROCESS).all()) else ""


def explained(analysis: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same analysis of a record (its first argument), whose empty tables say that.

    What a caller did wrong is told without the frames in which it was found; options of a wrong
    type are refused (see `option_types`).
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
            _say_of_what(table, record)
        return with_reason(table)

    return explaining


def _say_of_what(table: pd.DataFrame, record: Record) -> None:
    """Have its reason name the kind of file, or that the record is a range of a run."""
    kind = "" if len(table) else which_other_kind(record.trace)
    why = str(table.attrs.get(LACKS, ""))
    if kind:
        table.attrs[LACKS] = kind
    elif why.startswith(OF_TRACE) and WINDOW in record.metadata:
        table.attrs[LACKS] = OF_RANGE + why.removeprefix(OF_TRACE)


Class = TypeVar("Class")

LACKS = "lacks"
"""Key in a table's ``attrs``: one sentence on what the trace does not hold."""


class _LikeAnyTable(type(pd.DataFrame)):  # type: ignore[misc]
    """`pandas.testing` asks whether one table is of the other's class: to it they are all alike."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, pd.DataFrame)


class TableWithReason(pd.DataFrame, metaclass=_LikeAnyTable):
    """A DataFrame that shows ``attrs["lacks"]``, in print and in a notebook.

    What is made of it and has rows is a plain DataFrame.
    """

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return _made_of_it

    def __repr__(self) -> str:
        said = _sentence(self)
        if said and self.empty:
            return f"{said}\nColumns: {', '.join(map(str, self.columns))}"
        return f"{super().__repr__()}\n\n{said}" if said else super().__repr__()

    def _repr_html_(self) -> str | None:
        table = super()._repr_html_()  # type: ignore[misc]  # not in the stubs
        said = _sentence(self)
        return f"<p>{html.escape(said)}</p>\n{table}" if said and table is not None else table


def _made_of_it(*args: Any, **kwargs: Any) -> pd.DataFrame:
    table = pd.DataFrame(*args, **kwargs)
    return table if len(table) else TableWithReason(table)


def _sentence(table: pd.DataFrame) -> str:
    why = printable(what_is_lacking(table)).removesuffix(".")
    return f"{'Note' if len(table) else 'Empty'}: {why}." if why else ""


def what_is_lacking(table: pd.DataFrame) -> str:
    """Why a table is empty; "" where nothing is said of it."""
    return str(table.attrs.get(LACKS, ""))


def with_reason(result: Result) -> Result:
    """The same; a table of which something is said to be lacking shows that."""
    if isinstance(result, pd.DataFrame) and what_is_lacking(result):
        table: Any = TableWithReason(result)
        table.attrs.update(result.attrs)
        return table  # type: ignore[no-any-return]
    return result


def with_reasons(kind: type[Class]) -> type[Class]:
    """The same class, whose own public methods return tables `with_reason`."""
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


WHOLE = "whole"
"""Key in a table's ``attrs``: why a range of time cannot be cut out of it, in a few words."""

NO_TIMES = "cProfile counts calls and notes no times of them"


def of_the_whole_run(table: pd.DataFrame, why: str) -> pd.DataFrame:
    """The same table, whose ``attrs["whole"]`` says why it follows no range of time."""
    table.attrs[WHOLE] = why
    return table


def is_beyond_the_range(record: Record, table: pd.DataFrame) -> bool:
    """Whether the record is of a range of time, and the table of the whole run nonetheless."""
    return WINDOW in record.metadata and WHOLE in table.attrs


def what_follows_no_range(table: pd.DataFrame) -> str:
    """What to say of it where a range was asked for; "" if it follows ranges or has no rows."""
    if WHOLE not in table.attrs or not len(table):
        return ""
    return f"these rows are of the whole run, not of that range: {table.attrs[WHOLE]}"
