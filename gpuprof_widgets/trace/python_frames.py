"""Recorded Python frames as functions: whose each is, and the calls that they count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.schema import LANGUAGE

_PLACE = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<name>.*)$", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

BUILT_IN = "~"
"""The file that cProfile gives to what has none."""

Ints = NDArray[np.int64]


def calls_from_slices(trace: Trace, label: str) -> Calls:
    """What cProfile would have counted, from the exact ``python_function`` slices.

    ``label``: the run's region. As in cProfile, only its thread counts, ``total_ns`` counts a
    function once where it calls itself, and ``primitive_calls`` leaves such calls out.
    """
    slices = trace.slices
    counted = (slices["category"] == "python_function") & (slices["count"] > 0)
    frames = slices[counted & _on_thread_of(trace, label)]
    row = np.full(len(slices) + 1, -1, dtype=np.int64)  # the last entry answers for parent -1
    row[frames.index] = np.arange(len(frames))
    parent = row[frames["parent"].to_numpy()]
    function, places = _functions(frames["name"])
    ts, dur = frames["ts"].to_numpy(), frames["dur"].to_numpy()
    own = links.self_times(ts, ts + dur, parent)
    inner = parent >= 0
    caller, callee = function[parent[inner]], function[inner]
    edge = np.full(len(frames), -1, dtype=np.int64)
    edge[inner], pairs = pd.factorize(caller * len(places) + callee)
    return Calls(
        functions=places.join(_sums(function, len(places), parent, own, dur)),
        edges=pd.DataFrame(
            {"caller": pairs // max(len(places), 1), "callee": pairs % max(len(places), 1)}
        ).join(_sums(edge, len(pairs), parent, own, dur)),
    )


def _on_thread_of(trace: Trace, label: str) -> NDArray[np.bool_]:
    """Whether a slice is on the thread of the region with this name; all are if there is none."""
    slices = trace.slices
    lane = trace.tracks["lane"].to_numpy()[slices["track"].to_numpy()]
    region = np.flatnonzero((slices["category"] == "user_annotation") & (slices["name"] == label))
    return np.asarray(lane == lane[region[0]] if len(region) else np.ones(len(slices), dtype=bool))


def _functions(names: pd.Series) -> tuple[Ints, pd.DataFrame]:
    """Per frame the row of its function, and the functions' ``file``, ``line`` and ``name``."""
    frame_name, distinct = pd.factorize(names)
    places = pd.Index([place(name) for name in distinct], dtype=object, tupleize_cols=False)
    function_of_name, functions = pd.factorize(places)
    table = pd.DataFrame(list(functions), columns=["file", "line", "name"])
    return function_of_name[frame_name].astype(np.int64), table.astype({"line": np.int64})


def functions_of_frames(trace: Trace) -> tuple[pd.DataFrame, Ints]:
    """``file``, ``line`` and ``name`` of all frames' functions, and per slice the row of its own.

    -1 is what is no frame.
    """
    frames = np.flatnonzero((trace.slices["category"] == "python_function").to_numpy())
    of_frame, table = _functions(trace.slices["name"].iloc[frames])
    function = np.full(len(trace), -1, np.int64)
    function[frames] = of_frame
    return table, function


def place(name: str) -> tuple[str, int, str]:
    """File, line and name of a frame as torch writes it: ``train.py(12): step``.

    Built-in functions have cProfile's file ``~`` and no address, so that their calls add up.
    """
    found = _PLACE.match(name)
    if found:
        return found["file"], int(found["line"]), found["name"]
    return BUILT_IN, 0, _ADDRESS.sub("", name)


def frames_of(record: Record) -> str:
    """What its frames are of, as a legend says it: Python, if nothing else is known."""
    return str(record.metadata.get(LANGUAGE, "Python")) or "functions"


def function_kind(record: Record) -> str:
    """What a frame of this record is called: a Python function, if nothing else is known."""
    return f"{record.metadata.get(LANGUAGE, 'Python')} function".strip()


def with_cell_labels(trace: Trace, cell_labels: Mapping[str, str]) -> Trace:
    """The trace with frames of the notebook's cells named after them: ``Cell [3](12): step``."""
    names = trace.slices["name"].cat
    renamed = names.rename_categories([_labelled(name, cell_labels) for name in names.categories])
    return replace(trace, slices=trace.slices.assign(name=renamed))


def _labelled(name: str, cell_labels: Mapping[str, str]) -> str:
    found = _PLACE.match(name)
    if not found:
        return name
    # torch leaves out the part of the path that is on sys.path, or the root's slash.
    for file, label in cell_labels.items():
        if file.endswith(found["file"]):
            return f"{label}({found['line']}): {found['name']}"
    return name


def _sums(code: Ints, rows: int, parent: Ints, own: Ints, dur: Ints) -> pd.DataFrame:
    """Calls and times of the frames of each code; -1 is left out."""
    counted = code >= 0
    outermost = counted & ~links.below_its_like(parent, code + 1)
    total = np.zeros(rows, dtype=np.int64)
    np.add.at(total, code[outermost], dur[outermost])
    self_ns = np.zeros(rows, dtype=np.int64)
    np.add.at(self_ns, code[counted], own[counted])
    return pd.DataFrame(
        {
            "calls": np.bincount(code[counted], minlength=rows),
            "primitive_calls": np.bincount(code[outermost], minlength=rows),
            "self_ns": self_ns,
            "total_ns": total,
        }
    )
