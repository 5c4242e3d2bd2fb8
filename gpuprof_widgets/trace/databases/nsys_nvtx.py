"""NVTX ranges and marks of an export of Nsight Systems.

A range that was pushed and popped nests on its thread, and owns what is in it. A range that was
started and ended by its number may begin on one thread, end on another, and cross all others: these
are drawn on rows of their own, as many as are open at once, and own nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof_widgets.trace.databases.activity import Group, of_one, texts
from gpuprof_widgets.trace.databases.nsys_target import process_of, thread_of
from gpuprof_widgets.trace.databases.nvtx_ops import emitted_group
from gpuprof_widgets.trace.databases.nvtx_rows import UNNAMED, crossing_group
from gpuprof_widgets.trace.databases.readings import Reading
from gpuprof_widgets.trace.databases.sqlite_tables import MISSING, Table, Texts

CATEGORY, MARK, PUSH_POP, START_END, DOMAIN = 33, 34, 59, 60, 75
TEXT_PUSH_POP, TEXT_START_END = 70, 71
"""ENUM_NSYS_EVENT_TYPE; those of 70 on come from NVTXT files."""


def nvtx_groups(reading: Reading, strings: dict[int, str], *, several: bool) -> list[Group]:
    """Ranges on their threads, ranges across threads, and marks."""
    held = _held(reading)
    said = _texts(held, strings)
    kind = held["eventType"]
    domain = _domains(held, said)
    pushed = np.isin(kind, (PUSH_POP, TEXT_PUSH_POP))
    started = np.isin(kind, (START_END, TEXT_START_END))
    marked = kind == MARK
    _count_others(reading, kind[~(pushed | started | marked | np.isin(kind, (CATEGORY, DOMAIN)))])
    return [
        _pushed(held.chosen(pushed), said[pushed], domain[pushed], several),
        _started(held.chosen(started), said[started], domain[started]),
        _marks(held.chosen(marked), said[marked], domain[marked]),
    ]


def _held(reading: Reading) -> Table:
    """All rows that have a start; ranges without an end get the recording's (old exports: 0)."""
    columns = ["end", "eventType", "textId", "globalTid", "domainId"]
    held = reading.moments("NVTX_EVENTS", "start", columns, ["text"])
    start, end = held["start"], held["end"]
    ranges = np.isin(held["eventType"], (PUSH_POP, TEXT_PUSH_POP, START_END, TEXT_START_END))
    open_ = ranges & ((end == MISSING) | (end < start))
    if open_.any():
        reading.notes.append(
            f"{np.count_nonzero(open_):,} of {np.count_nonzero(ranges):,} NVTX ranges were open "
            "when the recording ended; they end with it"
        )
    last = max(reading.latest, int(end.max(initial=0)))
    ends = np.where(open_, np.maximum(last, start), np.maximum(end, start))
    return Table(len(held), {**held.ints, "end": ends}, held.texts)


def _texts(held: Table, strings: dict[int, str]) -> Texts:
    """The text beside a row, else the registered one that it names."""
    pairs = zip(held.texts["text"].tolist(), held["textId"].tolist(), strict=True)
    said = np.empty(len(held), object)
    said[:] = [text or strings.get(number) or UNNAMED for text, number in pairs]
    return said


def _domains(held: Table, said: Texts) -> Texts:
    """The name of each row's domain; None for the one that needs none."""
    process = process_of(held["globalTid"])
    made = np.flatnonzero(held["eventType"] == DOMAIN)
    known = {
        (p, number): name
        for p, number, name in zip(
            process[made].tolist(), held["domainId"][made].tolist(), said[made], strict=True
        )
    }
    numbers = zip(process.tolist(), held["domainId"].tolist(), strict=True)
    found = np.empty(len(held), object)
    found[:] = [
        known.get((p, number), f"domain {number}") if number > 0 else None for p, number in numbers
    ]
    return found


def _pushed(held: Table, said: Texts, domain: Texts, several: bool) -> Group:
    process, thread = process_of(held["globalTid"]), thread_of(held["globalTid"])
    ours = np.array([name is None for name in domain], bool)
    group = emitted_group(held["start"], held["end"], said, process, thread, ours, several=several)
    return group.with_args(domain=domain)


def _started(held: Table, said: Texts, domain: Texts) -> Group:
    process = process_of(held["globalTid"])
    return crossing_group(held["start"], held["end"], said, process).with_args(domain=domain)


def _marks(held: Table, said: Texts, domain: Texts) -> Group:
    process, thread = texts(process_of(held["globalTid"])), texts(thread_of(held["globalTid"]))
    none = np.zeros(len(held), np.int64)
    category = of_one("cpu_instant_event", len(held))
    return Group(held["start"], none, said, category, process, thread, {"domain": domain})


def _count_others(reading: Reading, kinds: NDArray[np.int64]) -> None:
    values, counts = np.unique(kinds, return_counts=True)
    reading.notes += [
        f"{count:,} NVTX events of type {'unknown' if kind == MISSING else kind} are not read"
        for kind, count in zip(values.tolist(), counts.tolist(), strict=True)
    ]
