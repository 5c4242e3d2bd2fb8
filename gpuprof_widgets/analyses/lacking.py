"""How an analysis says what a trace lacks: an empty table with the reason beside it.

An analysis knows what it looks for; that the trace is of a kind whose rows are not known at all is
said here for all of them.
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

TENSORFLOW = (
    "this is a TensorFlow timeline: gpuprof does not yet tell its rows apart "
    "(which are kernels, copies or ops of the CPU)"
)

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
    why: str,
) -> Callable[[Callable[Arguments, pd.DataFrame]], Callable[Arguments, pd.DataFrame]]:
    """Of an analysis: where its table has no rows, ``attrs["lacks"]`` says why."""

    def explained(
        analysis: Callable[Arguments, pd.DataFrame],
    ) -> Callable[Arguments, pd.DataFrame]:
        @functools.wraps(analysis)
        def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> pd.DataFrame:
            table = analysis(*args, **kwargs)
            if not len(table):
                table.attrs.setdefault(LACKS, why)
            return table

        return explaining

    return explained


def what_is_lacking(table: pd.DataFrame) -> str:
    """Why a table is empty; "" where nothing is said of it."""
    return str(table.attrs.get(LACKS, ""))


def what_kind_is_not_known(trace: Trace) -> str:
    """Why nothing can be told apart in this trace, in one sentence; "" where it can.

    TensorFlow 1 writes ops and kernels alike as of the category ``Op``, on tracks that it calls
    ``/gpu:0/stream:7 Compute`` (tensorflow/python/client/timeline.py).
    """
    process = trace.tracks["process"]
    if len(process) and bool((process == SNAPSHOT_PROCESS).all()):
        return SNAPSHOT
    categories = trace.slices["category"]
    return TENSORFLOW if len(categories) and bool((categories == "Op").all()) else ""


def explained(analysis: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same analysis of a record (its first argument), whose empty tables say that."""

    @functools.wraps(analysis)
    def explaining(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        table = analysis(*args, **kwargs)
        if isinstance(table, pd.DataFrame) and not len(table):
            record: Any = args[0]
            if kind := what_kind_is_not_known(record.trace):
                table.attrs[LACKS] = kind
        return table

    return explaining


def with_explained_methods(kind: type[Class]) -> type[Class]:
    """The same class of records, whose own public methods are `explained`."""
    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("_"):
            setattr(kind, name, explained(method))
    return kind
