"""What stands beside the events of a file that we write, because JSON events cannot say it.

With it a trace reads back equal (see `restore`); other readers ignore it. Integers of all rows are
packed, links between rows as distances.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import NONE, WRITTEN_CATEGORY

KEY = "gpuprof_widgets"
METADATA = "metadata"
VERSION = 1

PACKED_COLUMNS = ("track", "depth", "parent", "count", "launch", "op", "forward")
RELATIVE_COLUMNS = ("parent", "launch", "op", "forward")
"""Row links, stored as distances: near ones repeat, and pack to a few bytes."""


def beside(trace: Trace) -> dict[str, Any]:
    """The rows' order and owners, the tracks and arrows, and the bounds of a window."""
    columns = {name: trace.slices[name].to_numpy() for name in PACKED_COLUMNS}
    columns |= {name: distances(columns[name]) for name in RELATIVE_COLUMNS}
    flows = trace.flows
    kinds = {"categories": _own_categories(trace)} if WRITTEN_CATEGORY in trace.args else {}
    return {
        **kinds,
        "version": VERSION,
        "rows": len(trace.slices),
        "start_ns": trace.start_ns,
        "end_ns": trace.end_ns,
        "tracks": trace.tracks.astype(object).to_dict("list"),
        "columns": {name: pack(values) for name, values in columns.items()},
        "flows": {
            "kinds": list(flows["kind"].cat.categories),
            "kind": pack(flows["kind"].cat.codes),
            "source": pack(flows["source"]),
            "target": pack(flows["target"]),
        },
    }


def _own_categories(trace: Trace) -> dict[str, Any]:
    """Our categories, where the events have those of the program that wrote them first."""
    category = trace.slices["category"].cat
    return {"names": list(category.categories), "of": pack(category.codes)}


def pack(values: Any) -> str:
    """Integers as base64 of zlib of little-endian int32."""
    return base64.b64encode(zlib.compress(np.asarray(values, dtype="<i4").tobytes(), 1)).decode()


def unpack(text: str, most: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The integers that `pack` packed, which a file that was made to can hold no more of."""
    unpacked = zlib.decompressobj().decompress(base64.b64decode(text), 4 * most + 1)
    return np.frombuffer(unpacked, dtype="<i4").astype(np.int32)


def distances(rows: Any) -> Any:
    """Row links as distances to the own row (always positive or negative, never 0); 0 is none."""
    own = np.arange(len(rows))
    return np.where(rows == NONE, 0, own - rows)


def rows_at(distance: Any) -> Any:
    """The row links that `distances` turned."""
    own = np.arange(len(distance), dtype=np.int32)
    return np.where(distance == 0, NONE, own - distance).astype(np.int32)
