"""What annotations cover on the GPU: rows that Kineto writes, and databases do not hold."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.databases.activity import Group, of_one
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.owners import in_categories, is_gpu


def gpu_annotations(trace: Trace, start: int) -> Group:
    """Per annotation and stream a row from the first to the last slice that it launched there.

    That is `nvtx_gpu_proj_trace` of Nsight Systems. ``start``: of the trace on the file's clock.
    """
    slices, tracks = trace.slices, trace.tracks
    pairs = _pairs(trace)
    pairs["track"] = slices["track"].to_numpy()[pairs["gpu"]]
    pairs["ts"] = slices["ts"].to_numpy()[pairs["gpu"]]
    pairs["end"] = pairs["ts"] + slices["dur"].to_numpy()[pairs["gpu"]]
    place = tracks[["process", "thread", "device", "stream"]]
    placed = pairs.join(place, on="track").groupby(["owner", "process", "thread"], sort=False)
    table = placed.agg(
        ts=("ts", "min"), end=("end", "max"), device=("device", "first"), stream=("stream", "first")
    ).reset_index()
    return Group(
        ts=table["ts"].to_numpy(np.int64) + start,
        dur=(table["end"] - table["ts"]).to_numpy(np.int64),
        name=slices["name"].to_numpy(object)[table["owner"]],
        category=of_one("gpu_user_annotation", len(table)),
        process=table["process"].to_numpy(object),
        thread=table["thread"].to_numpy(object),
        args={key: table[key].to_numpy(np.int64) for key in ("device", "stream")},
    )


def _pairs(trace: Trace) -> pd.DataFrame:
    """Each GPU slice (``gpu``) with each annotation around its launch (``owner``)."""
    slices = trace.slices
    annotation = in_categories(slices["category"], ("user_annotation",))
    parent = slices["parent"].to_numpy()
    gpu = np.flatnonzero(is_gpu(slices["category"]))
    owner = slices["op"].to_numpy()[gpu]
    found = []
    while len(gpu := gpu[owner >= 0]):
        owner = owner[owner >= 0]
        here = annotation[owner]
        found.append((gpu[here], owner[here]))
        owner = parent[owner]
    columns = zip(*found, strict=True) if found else ([np.empty(0, np.intp)],) * 2
    return pd.DataFrame(dict(zip(("gpu", "owner"), map(np.concatenate, columns), strict=True)))
