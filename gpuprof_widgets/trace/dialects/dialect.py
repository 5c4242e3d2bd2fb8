"""What a Chrome trace of some program says in its own words, and how it is told in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from gpuprof_widgets.trace.events import EventFlows, Events, FlowEnd, Names
from gpuprof_widgets.trace.gather import Gathered


@dataclass(frozen=True)
class Parts:
    """What a trace is assembled from, on the clock of the file (ns).

    ``flows`` are arrows of any kind between rows of ``events``: who leaves rows out or sorts them
    anew has to renumber those. ``forward_flows`` are fwdbwd arrows, found by thread and time.
    ``metadata`` is added to the record's; ``notes`` (one line each) say what could not be read.
    """

    events: Events
    names: Names
    counters: pd.DataFrame
    forward_flows: tuple[Sequence[FlowEnd], Sequence[FlowEnd]] = ((), ())
    flows: EventFlows = field(default_factory=EventFlows)
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
