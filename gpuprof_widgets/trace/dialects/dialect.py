"""Dialects of Chrome traces, and the tools to translate one: rows, layers of ops.

A dialect gets the `Parts` of a Chrome trace as the format describes them and returns them with our
categories, tracks, ids and counters. `taken`, `joined`, `recoded`... are its tools: new events from
given ones, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.arrays import Ints, Mask, Rows
from gpuprof_widgets.trace.events import (
    EventFlows,
    Events,
    FlowEnd,
    Names,
    from_codes,
    joined_texts,
    no_rows,
    text_codes,
    typed,
)
from gpuprof_widgets.trace.gather import Gathered
from gpuprof_widgets.trace.schema import NODE, NONE, RESUMED

Texts = NDArray[np.object_]


@dataclass(frozen=True)
class Parts:
    """The parts from which a trace is assembled, on the clock of the file (ns).

    ``flows`` are arrows of any kind between rows of ``events``: who drops or sorts rows has to
    renumber them. ``forward_flows`` are fwdbwd arrows, matched by thread and time. ``moments``
    (instants) and ``threadless`` (async slices, objects) are rows as well; a dialect need not keep
    them up to date, as only untranslated parts use them. ``metadata`` is added to the record's;
    ``notes`` (one line each) say what could not be read. ``zero_ns`` is when the clock was 0, in ns
    since 1970 (0: unknown). ``objects_by``: whether lanes of objects are by "name" or "category".
    """

    events: Events
    names: Names
    counters: pd.DataFrame
    forward_flows: tuple[Sequence[FlowEnd], Sequence[FlowEnd]] = ((), ())
    flows: EventFlows = field(default_factory=EventFlows)
    moments: Ints = field(default_factory=no_rows)
    threadless: Ints = field(default_factory=no_rows)
    notes: Sequence[str] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    zero_ns: int = 0
    objects_by: Literal["name", "category"] = "name"


@dataclass(frozen=True)
class Dialect:
    """Chrome traces of one program: how to recognise them, and what their rows mean.

    ``translate`` gets the parts as any Chrome trace has them, and everything that was in the file;
    it returns the parts with our categories, tracks, ids and counters.
    """

    recognises: Callable[[Parts, Gathered], bool]
    translate: Callable[[Parts, Gathered], Parts]


def taken(events: Events, rows: Rows) -> Events:
    """Return these rows of the events, in this order."""
    new = _new_numbers(rows, len(events))
    args = {
        key: values.set_axis(pd.Index(new[values.index], dtype=np.int64))[new[values.index] >= 0]
        for key, values in events.args.items()
    }
    return Events(
        ts=events.ts[rows],
        dur=events.dur[rows],
        name=events.name.take(rows).remove_unused_categories(),
        category=events.category.take(rows).remove_unused_categories(),
        process=events.process.take(rows).remove_unused_categories(),
        thread=events.thread.take(rows).remove_unused_categories(),
        args={key: values for key, values in args.items() if len(values)},
    )


def kept_flows(flows: EventFlows, rows: Rows, count: int) -> EventFlows:
    """Return the arrows between these rows of ``count`` events, renumbered to the rows' order."""
    new = _new_numbers(rows, count)
    source, target = new[flows.source], new[flows.target]
    kept = (source >= 0) & (target >= 0)
    kinds = [kind for kind, is_kept in zip(flows.kind, kept.tolist(), strict=True) if is_kept]
    return EventFlows(source[kept], target[kept], kinds)


def _new_numbers(rows: Rows, count: int) -> Rows:
    new = np.full(count, NONE, dtype=np.int64)
    new[rows] = np.arange(len(rows))
    return new


def joined(first: Events, second: Events) -> Events:
    """Return the rows of both, one after the other."""
    args: dict[str, Any] = dict(first.args)
    for key, values in second.args.items():
        moved = values.set_axis(values.index + len(first))
        args[key] = pd.concat([args[key], moved]) if key in args else moved
    return Events(
        ts=np.concatenate([first.ts, second.ts]),
        dur=np.concatenate([first.dur, second.dur]),
        name=joined_texts([first.name, second.name]),
        category=joined_texts([first.category, second.category]),
        process=joined_texts([first.process, second.process]),
        thread=joined_texts([first.thread, second.thread]),
        args=args,
    )


def recoded(values: pd.Categorical, rows: Mask, text: str) -> pd.Categorical:
    """Return the values with this text in these rows; unused texts leave the dictionary."""
    texts = [*map(str, values.categories), text]
    codes = np.where(rows, len(texts) - 1, values.codes)
    return from_codes(codes.astype(np.int32), texts).remove_unused_categories()


def texts_of(values: pd.Series | None, count: int) -> Texts:
    """Return an arg of each of ``count`` events as text, "" for events without it."""
    texts = np.full(count, "", dtype=object)
    if values is not None:
        texts[values.index.to_numpy()] = [str(value) for value in values]
    return texts


def marked(mask: Mask, values: NDArray[Any]) -> pd.Series:
    """Return an arg that the marked events have: the value at their place."""
    rows = np.flatnonzero(mask)
    return typed(values[rows].tolist(), rows)


@dataclass(frozen=True)
class Place:
    """The layer ("" for none) and the pass of a node, which is an op's name in its program."""

    layer: str = ""
    is_backward: bool = False


def in_layers(
    events: Events, flows: EventFlows, places_of: Callable[[Collection[str]], Mapping[str, Place]]
) -> tuple[Events, EventFlows]:
    """Put the events behind the regions of layers; also return the arrows between the events.

    Some programs tell layers by the names of ops alone (arg `NODE`), which ``places_of`` reads. The
    ops of a layer may run at once and on several threads, so that no single slice is as long as the
    layer: each op gets a region, and a call of the layer begins with each run of its first node.
    """
    nodes = np.where(events.category == "cpu_op", texts_of(events.args.get(NODE), len(events)), "")
    places = places_of(set(nodes))
    place = [places.get(node, Place()) for node in nodes.tolist()]
    rows = np.array([row for row, at in enumerate(place) if at.layer], dtype=np.int64)
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
