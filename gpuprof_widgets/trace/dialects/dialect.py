"""What a Chrome trace of some program says in its own words, and how it is told in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpuprof_widgets.trace.events import EventFlows, Events, FlowEnd, Names
from gpuprof_widgets.trace.gather import Gathered


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Parts:
    """What a trace is assembled from, on the clock of the file (ns).

    ``flows`` are arrows of any kind between rows of ``events``: who leaves rows out or sorts them
    anew has to renumber those. ``forward_flows`` are fwdbwd arrows, found by thread and time.
    ``moments`` (instants) and ``threadless`` (async slices, objects) are rows as well, which no
    dialect has to keep up: they are read where none has translated the parts.
    ``metadata`` is added to the record's; ``notes`` (one line each) say what could not be read.
    """

    events: Events
    names: Names
    counters: pd.DataFrame
    forward_flows: tuple[Sequence[FlowEnd], Sequence[FlowEnd]] = ((), ())
    flows: EventFlows = field(default_factory=EventFlows)
    moments: NDArray[np.int64] = field(default_factory=_no_rows)
    threadless: NDArray[np.int64] = field(default_factory=_no_rows)
    notes: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """Chrome traces of one program: how they are told from others, and what their rows mean.

    ``translate`` gets the parts as any Chrome trace has them, and everything that was in the file;
    it returns the parts with our categories, tracks, ids and counters.
    """

    name: str
    recognises: Callable[[Parts, Gathered], bool]
    translate: Callable[[Parts, Gathered], Parts]
