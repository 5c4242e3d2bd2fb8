"""Slices that a Chrome trace says by two events: where they begin and where they end.

The format ("Trace Event Format", Google) has three such pairs: ``B`` and ``E`` nest on a thread;
``b`` and ``e`` (of old ``S`` and ``F``) nest under one category and id, on no thread; ``N`` and
``D`` are the life of an object. Events need not be in order. As in Perfetto and chrome://tracing,
an end closes the innermost open slice of its name, or the innermost one where it says no name or
one that is not open; what never ends lasts until the trace does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.events import Events
from gpuprof_widgets.trace.gather import events_of, times
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.trace.trace_events import Event

BEGINS = frozenset("BbSN")
ENDS = frozenset("EeFD")

DEEPEST = 64
"""So far up an end looks for the slice of its name, so that no file makes this search long."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Begun:
    """Slices put together of two events each, instants after them, and the number of their ``key``.

    ``open``: how many never end; ``lone``: how many ends had nothing to end; ``untimed``: how many
    events do not say when they are.
    """

    events: Events
    key: Ints
    open: int
    lone: int
    untimed: int


def begun(written: Sequence[Event], keys: Iterable[Hashable], last: int) -> Begun:
    """What these events (in file order) begin and end; ``last`` is the trace's end (ns)."""
    ts, _, timed = times(written)
    key = _numbers(keys)
    order = np.lexsort((ts, key))
    order = order[timed[order]]
    first, second, lone = _matched(written, key, order)
    instants = [row for row in order.tolist() if written[row].ph not in BEGINS | ENDS]
    rows = np.concatenate([first, np.array(instants, dtype=np.int64)])
    until = np.where(second >= 0, ts[second], np.maximum(ts[first], last))
    nothing = np.zeros(len(instants), dtype=np.int64)
    slices = [
        _slice(written[b], written[e].args if e >= 0 else None)
        for b, e in zip(first.tolist(), second.tolist(), strict=True)
    ]
    events = events_of(
        [*slices, *(written[row] for row in instants)],
        ts[rows],
        np.concatenate([until - ts[first], nothing]),
    )
    untimed = int(np.count_nonzero(~timed))
    return Begun(events, key[rows], int(np.count_nonzero(second < 0)), lone, untimed)


def _matched(written: Sequence[Event], key: Ints, order: Ints) -> tuple[Ints, Ints, int]:
    """Rows of beginnings in the order of time, of their ends (-1: none), and how many are lone."""
    opened: dict[int, list[int]] = defaultdict(list)
    end: dict[int, int] = {}
    lone = 0
    for row, number in zip(order.tolist(), key[order].tolist(), strict=True):
        event, stack = written[row], opened[number]
        if event.ph in BEGINS:
            stack.append(row)
            end[row] = NONE
        elif event.ph in ENDS and stack:
            end[stack.pop(_ended(event.name, stack, written))] = row
        elif event.ph in ENDS:
            lone += 1
    return np.array(list(end), np.int64), np.array(list(end.values()), np.int64), lone


def _ended(name: str, stack: Sequence[int], written: Sequence[Event]) -> int:
    """The place on the stack, from its top, of what an end of this name ends."""
    if name and written[stack[-1]].name != name:
        for place in range(-1, -min(len(stack), DEEPEST) - 1, -1):
            if written[stack[place]].name == name:
                return place
    return -1


def _slice(begin: Event, told_at_the_end: dict[str, object] | None) -> Event:
    """One event of the two; what the end says in its args counts where both say something."""
    args = {**(begin.args or {}), **told_at_the_end} if told_at_the_end else begin.args
    return msgspec.structs.replace(begin, ph="X", args=args)


def _numbers(keys: Iterable[Hashable]) -> Ints:
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
