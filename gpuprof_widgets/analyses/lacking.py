"""How an analysis says what a trace lacks: an empty table with the reason beside it.

An analysis knows what it looks for; that the file is of another kind altogether is said here for
all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import pandas as pd

from gpuprof_widgets.trace.memory_snapshot import SNAPSHOT_PROCESS
from gpuprof_widgets.trace.model import Trace

Arguments = ParamSpec("Arguments")

Result = TypeVar("Result")
Class = TypeVar("Class")

SNAPSHOT = (
    "this is a CUDA memory snapshot: it has what was allocated and released, and neither ops, "
    "kernels nor Python's time"
)

LACKS = "lacks"
"""Key in a table's ``attrs``: one sentence on what the trace does not hold."""


def lacking(columns: Sequence[str], why: str) -> pd.DataFrame:
    """A table with these columns and no rows; ``attrs["lacks"]`` says why, in one sentence."""
    table = pd.DataFrame(columns=list(columns))
    table.attrs[LACKS] = why
    return table


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


def what_is_lacking(table: pd.DataFrame) -> str:
    """Why a table is empty; "" where nothing is said of it."""
    return str(table.attrs.get(LACKS, ""))


def which_other_kind(trace: Trace) -> str:
    """What the file is, in one sentence, if it is none of a run's time; "" if it is."""
    process = trace.tracks["process"]
    return SNAPSHOT if len(process) and bool((process == SNAPSHOT_PROCESS).all()) else ""


def explained(analysis: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same analysis of a record (its first argument), whose empty tables say that."""

    @functools.wraps(analysis)
    def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        table = analysis(*args, **kwargs)
        if isinstance(table, pd.DataFrame) and not len(table):
            record: Any = args[0]
            if kind := which_other_kind(record.trace):
                table.attrs[LACKS] = kind
        return table

    return explaining


def with_explained_methods(kind: type[Class]) -> type[Class]:
    """The same class of records, whose own public methods are `explained`."""
    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("_"):
            setattr(kind, name, explained(method))
    return kind
