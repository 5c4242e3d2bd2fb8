"""Events with fewer rows, other categories, other args: what translating a dialect takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.events import EventFlows, Events, from_codes, typed
from gpuprof_widgets.trace.schema import NONE

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]


def taken(events: Events, rows: Rows) -> Events:
    """These rows of the events, in this order."""
    new = _new_numbers(rows, len(events))
    return Events(
        ts=events.ts[rows],
        dur=events.dur[rows],
        name=events.name.take(rows).remove_unused_categories(),
        category=events.category.take(rows).remove_unused_categories(),
        process=events.process.take(rows).remove_unused_categories(),
        thread=events.thread.take(rows).remove_unused_categories(),
        args={
            key: moved for key, values in events.args.items() if len(moved := _moved(values, new))
        },
    )


def kept_flows(flows: EventFlows, rows: Rows, count: int) -> EventFlows:
    """The arrows between these rows of ``count`` events, as they are numbered among them."""
    new = _new_numbers(rows, count)
    source, target = new[flows.source], new[flows.target]
    left = (source >= 0) & (target >= 0)
    kinds = [kind for kind, kept in zip(flows.kind, left.tolist(), strict=True) if kept]
    return EventFlows(source[left], target[left], kinds)


def joined(first: Events, second: Events) -> Events:
    """The rows of both, one after the other."""
    return Events(
        ts=np.concatenate([first.ts, second.ts]),
        dur=np.concatenate([first.dur, second.dur]),
        **{
            column: _both(getattr(first, column), getattr(second, column))
            for column in ("name", "category", "process", "thread")
        },
        args=_joined_args(first, second),
    )


def recoded(values: pd.Categorical, rows: Mask, text: str) -> pd.Categorical:
    """The values, with this text in these rows; what none has any more is not in the dictionary."""
    texts = [*map(str, values.categories), text]
    used, codes = np.unique(np.where(rows, len(texts) - 1, values.codes), return_inverse=True)
    return from_codes(codes.astype(np.int32), [texts[code] for code in used])


def texts_of(values: pd.Series | None, count: int) -> NDArray[np.object_]:
    """An arg of each of ``count`` events as text, "" where it has none."""
    texts = np.full(count, "", dtype=object)
    if values is not None:
        texts[values.index.to_numpy()] = [str(value) for value in values]
    return texts


def marked(mask: Mask, numbers: NDArray[Any]) -> pd.Series:
    """An arg of the marked events: of each the number at its place."""
    rows = np.flatnonzero(mask)
    return typed(numbers[rows].tolist(), rows)


def _new_numbers(rows: Rows, count: int) -> Rows:
    new = np.full(count, NONE, dtype=np.int64)
    new[rows] = np.arange(len(rows))
    return new


def _moved(values: pd.Series, new: Rows) -> pd.Series:
    at = new[values.index.to_numpy(dtype=np.int64)]
    return values.set_axis(pd.Index(at, dtype=np.int64))[at >= 0]


def _both(first: pd.Categorical, second: pd.Categorical) -> pd.Categorical:
    texts = [*map(str, first.categories), *map(str, second.categories)]
    shifted = np.where(
        second.codes >= 0, second.codes.astype(np.int32) + len(first.categories), NONE
    )
    return from_codes(np.concatenate([first.codes, shifted]).astype(np.int32), texts)


def _joined_args(first: Events, second: Events) -> Mapping[str, pd.Series]:
    args: dict[str, Any] = dict(first.args)
    for key, values in second.args.items():
        moved = values.set_axis(values.index + len(first))
        args[key] = pd.concat([args[key], moved]) if key in args else moved
    return args
