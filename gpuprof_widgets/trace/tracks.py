"""The tracks of a trace: which thread or stream every event belongs to, and their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.events import Events, Names
from gpuprof_widgets.trace.schema import NONE, RUNTIME_ENDINGS, TRACK_COLUMNS, TRACK_KINDS

KIND_OF_CATEGORY = {
    "cpu_op": "cpu",
    "user_annotation": "cpu",
    "overhead": "cpu",
    "cpu_instant_event": "cpu",
    "cell_line": "cpu",
    "module": "cpu",
    "module_backward": "cpu",
    "python_function": "python",
    "worker": "worker",
    "worker_idle": "worker",
    "gpu_user_annotation": "annotation",
    "kernel": "gpu",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
}
DEVICE_KINDS = ("annotation", "gpu", "copy")
SUFFIX = {"python": " · Python", "annotation": " · annotations", "copy": " · copies"}


def kind_of(category: str) -> str:
    """The kind of track on which slices of this category lie."""
    if category.endswith(RUNTIME_ENDINGS):
        return "cpu"
    return KIND_OF_CATEGORY.get(category, "other")


def lay_out(events: Events, names: Names, rank: int) -> tuple[pd.DataFrame, NDArray[np.int32]]:
    """The tracks table in display order, and the track of every event."""
    kinds = [TRACK_KINDS.index(kind_of(c)) for c in events.category.categories]
    kind = np.array(kinds, dtype=np.int64)[events.category.codes]
    process, thread = events.process.codes.astype(np.int64), events.thread.codes.astype(np.int64)
    lane = process * len(events.thread.categories) + thread
    key = lane * len(TRACK_KINDS) + kind
    _, first, track, rows = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    table = _described(events, names, kind, first, rows, rank)
    table["lane"] = lane[first]
    order = _display_order(table)
    position = np.empty(len(order), dtype=np.int32)
    position[order] = np.arange(len(order))
    table = table.iloc[order].reset_index(drop=True)
    table["lane"] = pd.factorize(table["lane"])[0]
    return with_types(table), position[track].astype(np.int32)


def _described(
    events: Events,
    names: Names,
    kind: NDArray[np.int64],
    first: NDArray[np.intp],
    rows: NDArray[np.intp],
    rank: int,
) -> pd.DataFrame:
    """One row per track, unsorted: names, device and stream from its first event."""
    table = pd.DataFrame(
        {
            "kind": pd.Series([TRACK_KINDS[k] for k in kind[first]], dtype=object),
            "process": pd.Series(list(events.process.take(first)), dtype=object),
            "thread": pd.Series(list(events.thread.take(first)), dtype=object),
            "category": pd.Series(list(events.category.take(first)), dtype=object),
            "rank": rank,
            "events": rows,
            "first": first,
        }
    )
    on_device = table["kind"].isin(DEVICE_KINDS).to_numpy()
    device = _arg(events, "device", first, table["process"], np.int32)
    stream = _arg(events, "stream", first, table["thread"], np.int64)
    table["device"] = np.where(on_device, device, NONE)
    table["stream"] = np.where(on_device, stream, NONE)
    lanes = zip(table["process"], table["thread"], strict=True)
    table["process_order"] = [names.process_order.get(process, 0.0) for process in table["process"]]
    table["thread_order"] = [names.thread_order.get(lane, 0.0) for lane in lanes]
    table["label"] = pd.Series(
        [_label(row, names) for row in table.to_dict("records")], dtype=object
    )
    return table


def _arg(
    events: Events,
    key: str,
    rows: NDArray[np.intp],
    written: pd.Series,
    kind: type[np.integer[Any]],
) -> list[int]:
    """The number under this key in the events' args, else in the id as it is written."""
    known = events.args.get(key)
    return [
        _number(known.get(row, text) if known is not None else text, kind)
        for row, text in zip(rows.tolist(), written, strict=True)
    ]


def _number(value: Any, kind: type[np.integer[Any]] = np.int64) -> int:
    """The number that this is or says; `NONE` if it is none, or beyond this kind of integer."""
    whole = isinstance(value, float) and value.is_integer()
    try:
        number = int(value) if whole else int(str(value).removeprefix("stream "))
    except ValueError:
        return NONE
    return number if abs(number) <= np.iinfo(kind).max else NONE


def _label(row: dict[Any, Any], names: Names) -> str:
    lane = (row["process"], row["thread"])
    if row["category"] == "cuda_sync":
        stream = _number(row["thread"])  # -1: the host waits
        of = "" if stream == NONE else f" · stream {stream}"
        return f"GPU {row['process']}{of} · synchronisation"
    if row["kind"] in DEVICE_KINDS:
        text = f"GPU {row['device']} · stream {row['stream']}"
    else:
        text = names.threads.get(lane, "").strip() or f"thread {row['thread']}"
        if row["kind"] == "other":
            process = names.processes.get(row["process"], row["process"]).strip()
            text = f"{process} · {text}" if process else text
    return text + SUFFIX.get(row["kind"], "")


def _display_order(table: pd.DataFrame) -> NDArray[np.intp]:
    """CPU threads first (busiest process, main thread, then busiest), devices, the rest.

    The rest is in the order that the file asks for, process by process.
    """
    kind = table["kind"].map(TRACK_KINDS.index).to_numpy()
    cpu = table["kind"].isin(["cpu", "python", "worker"]).to_numpy()
    section = np.where(cpu, 0, np.where(table["kind"] == "other", 2, 1))
    by_process = table["events"].where(cpu, 0).groupby(table["process"]).transform("sum")
    by_lane = table["events"].groupby([table["lane"], section]).transform("sum")
    other_thread = (table["process"] != table["thread"]).to_numpy()
    lane_first = table.groupby([table["lane"], section])["first"].transform("min")
    process_first = table.groupby([table["process"], section])["first"].transform("min")
    rest = section == 2
    keys = (
        kind,
        table["lane"],
        lane_first,
        np.where(rest, table["thread_order"], 0),
        np.where(rest, process_first, 0),
        np.where(rest, table["process_order"], 0),
        np.where(cpu, -by_lane, 0),
        np.where(cpu, other_thread, False),
        table["stream"],
        table["device"],
        np.where(cpu, -by_process, 0),
        section,
    )
    return np.lexsort(keys)


def with_types(columns: Mapping[str, Any] | pd.DataFrame) -> pd.DataFrame:
    """A tracks table of these columns, with the types of `TRACK_COLUMNS`."""
    kinds = pd.Index(TRACK_KINDS, dtype=object)
    table: dict[str, Any] = {
        name: np.asarray(columns[name], dtype=object) for name in TRACK_COLUMNS
    }
    typed = {
        name: pd.Categorical(values, categories=kinds)
        if TRACK_COLUMNS[name] == "category"
        else pd.Series(values.astype(TRACK_COLUMNS[name]))
        for name, values in table.items()
    }
    return pd.DataFrame(typed)
