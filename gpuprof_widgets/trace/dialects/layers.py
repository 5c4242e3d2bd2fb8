"""Layers that a program tells by the names of its ops alone: each op stands in a region of its own.

A layer's ops may run at once and on several threads, so that no one slice is as long as the layer:
its regions are pieces, and a call begins with each run of its first node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.dialects.rows import joined, marked
from gpuprof_widgets.trace.events import EventFlows, Events, text_codes
from gpuprof_widgets.trace.schema import RESUMED


@dataclass(frozen=True)
class Place:
    """Of a node: its layer, "" for none, and whether it is of the backward pass."""

    layer: str = ""
    is_backward: bool = False


def in_layers(
    events: Events, flows: EventFlows, nodes: NDArray[np.object_], places: dict[str, Place]
) -> tuple[Events, EventFlows]:
    """The events behind the regions of layers, and the arrows between them.

    ``nodes``: of each event its node, "" for none; ``places``: where each node is.
    """
    place = [places.get(node, Place()) for node in nodes.tolist()]
    rows = np.array([row for row, one in enumerate(place) if one.layer], dtype=np.int64)
    if not len(rows):
        return events, flows
    kinds = ["module_backward" if place[row].is_backward else "module" for row in rows]
    layers = [place[row].layer for row in rows]
    runs = pd.DataFrame({
        "process": events.process.codes[rows],
        "layer": layers,
        "kind": kinds,
        "node": nodes[rows],
        "ts": events.ts[rows],
    })  # fmt: skip
    first = runs.sort_values("ts", kind="stable").groupby(["process", "layer", "kind"])["node"]
    resumed = first.transform("first").sort_index() != runs["node"]
    regions = Events(
        ts=events.ts[rows],
        dur=events.dur[rows],
        name=text_codes(layers),
        category=text_codes(kinds),
        process=events.process.take(rows),
        thread=events.thread.take(rows),
        args={RESUMED: marked(resumed.to_numpy(), np.ones(len(rows)))},
    )
    moved = replace(flows, source=flows.source + len(rows), target=flows.target + len(rows))
    return joined(regions, events), moved
