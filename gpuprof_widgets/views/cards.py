"""The cards above the findings: the figures by which one sees at a glance how a run went.

A card is a function and a row of `CARDS`. It returns None where a record cannot answer, and where
its answer would mislead: no share of a GPU without one, no communication of a single process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.breakdown import EXPOSED, breakdown
from gpuprof_widgets.analyses.collectives import collective_calls
from gpuprof_widgets.analyses.columns import format_bytes, format_ns, format_share
from gpuprof_widgets.analyses.findings.communication import NO_SHORTER, saved_without_communication
from gpuprof_widgets.analyses.findings.finding import (
    are_op_names,
    code,
    function_name,
    gpu_name,
    run_ns,
    share_of,
    shorter,
    table_range,
)
from gpuprof_widgets.analyses.findings.kernels import more_communication
from gpuprof_widgets.analyses.findings.python_time import python_ns
from gpuprof_widgets.analyses.gpu_work import device_busy, devices_at_work
from gpuprof_widgets.analyses.host_states import CPU_OPS
from gpuprof_widgets.analyses.memory import fullest, memory_peak
from gpuprof_widgets.analyses.operators import operators
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.python_time import has_python_alone, python_time
from gpuprof_widgets.analyses.reasons import which_other_kind
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NONE
from gpuprof_widgets.views.page_panels import panels

UNITS: dict[str, Callable[[float], str]] = {
    "ns": format_ns,
    "share": format_share,
    "bytes": format_bytes,
}


@dataclass(frozen=True)
class Card:
    """A figure and the place on the page that explains it.

    ``label``: one to three words; ``figure``: in ``unit``, a key of `UNITS`; ``detail``: a few
    words beside it, names in backticks; ``about``: a sentence on what it is; ``view``: a key of
    `page.VIEWS`, or of `PANELS` for a tab; ``start_ns``, ``end_ns``, ``rows``: what to light up.
    """

    label: str
    figure: float
    unit: str
    about: str
    view: str
    detail: str = ""
    start_ns: int | None = None
    end_ns: int | None = None
    rows: tuple[int, ...] = ()

    @property
    def value(self) -> str:
        """The figure as text."""
        return UNITS[self.unit](self.figure)


def recorded_time(record: Record) -> Card | None:
    """Return the time to which all shares refer; of Python's calls alone their time."""
    if which_other_kind(record.trace):
        return None
    if spent := run_ns(record):
        about = "From the first event to the last. All shares of the time are shares of this."
        return Card("Recorded time", spent, "ns", about, "timeline")
    if spent := python_ns(record):
        return Card("Python time", spent, "ns", "Time of all Python functions.", "python_time")
    return None


def gpu_busy(record: Record) -> Card | None:
    """Return the share of the time in which GPUs ran anything, on average of all that did."""
    table = device_busy(record)
    table = table[table["slices"] > 0]
    if not len(table):
        return None
    names = [gpu_name(device) for device in table["device"]]
    shares = [format_share(share) for share in table["busy_share"]]
    each = ", ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True))
    several = len(table) > 1
    detail = f"{len(table)} GPUs" if several else format_ns(int(table["busy_ns"].sum()))
    about = f"Share of the time in which a kernel, copy or memset ran: {each}."
    share = share_of(int(table["busy_ns"].sum()), int(table["span_ns"].sum()))
    return Card("GPUs busy" if several else "GPU busy", share, "share", about, "breakdown", detail)


def cpu_in_ops(record: Record) -> Card | None:
    """Return the share of the main thread's time in ops, of a record without GPU work."""
    table = breakdown(record)
    row = table[(table["device"] < 0) & (table["class"] == CPU_OPS) & (table["time_ns"] > 0)]
    if not len(row) or len(record.trace.index.gpu) or not record.trace.index.is_op.any():
        return None
    spent, share = int(row["time_ns"].iloc[0]), float(row["share"].iloc[0])
    about = "Share of the time in which the thread that runs the code was in an op."
    return Card("CPU in ops", share, "share", about, "breakdown", format_ns(spent))


def exposed_communication(record: Record) -> Card | None:
    """Return the share of the time in which GPUs only communicated; without a GPU, the CPU."""
    if not len(collective_calls(record)):
        return None
    table = breakdown(record)
    at_work = devices_at_work(record.trace) or [NONE]
    table = table[(table["class"] == EXPOSED) & table["device"].isin(at_work)]
    spent, whole = int(table["time_ns"].sum()), int(table["span_ns"].sum())
    about = "Share of the time in which communication ran and no compute hid it."
    saved = saved_without_communication(record) if spent else None
    if saved is not None and saved < table["time_ns"].max():
        about += f" Without communication {shorter(saved, record) if saved > 0 else NO_SHORTER}."
    detail, share = format_ns(spent), share_of(spent, whole)
    return Card("Exposed communication", share, "share", about, "collectives", detail)


NEGLIGIBLE = 0.01
"""Share of the time below which a wait for input is not worth a card."""


def input_wait(record: Record) -> Card | None:
    """Return the share of the time that went into waiting for the DataLoader, from 1 % on."""
    table = waits(record)
    table = table[table["kind"] == "dataloader"]
    spent = int(table["dur_ns"].sum())
    share = share_of(spent, run_ns(record))
    if share < NEGLIGIBLE:
        return None
    start, end = table_range(table.iloc[0])
    return Card(
        "Input wait",
        share,
        "share",
        "Share of the time in which the loop waited for its next batch.",
        "timeline",
        format_ns(spent),
        start,
        end,
        tuple(table["row"].astype(int)),
    )


OF_ALL = {
    "device": "the GPU time of all kernels, copies and memsets",
    "cpu": "the CPU self time of all rows of the op table, annotations and runtime calls included",
}
"""What the share of the top op is of."""


def top_op(record: Record) -> Card | None:
    """Return the op with most GPU time of its own, else with most CPU time, and its share.

    Communication, which mostly belongs to regions, is no op: the card says where it takes more.
    """
    table = operators(record)
    table = table[are_op_names(table)] if len(table) else table
    if not len(table) or has_python_alone(record):
        return None
    top = table.iloc[0]
    side = "device" if top["device_self_ns"] else "cpu"
    spent, share = int(top[f"{side}_self_ns"]), float(top[f"{side}_self_share"])
    if not spent:
        return None
    name, of = str(top["name"]), OF_ALL[side]
    more = more_communication(record, name, spent) if side == "device" else 0
    after = f"After communication ({format_share(more)}) " if more else ""
    about = f"{after}{code(name)} has the most: {format_ns(spent)}, {format_share(share)} of {of}."
    label, index = "Top computing op" if more else "Top op", record.trace.index
    calls = np.flatnonzero(index.named(frozenset({name})) & index.in_category("cpu_op"))
    longest_first = tuple(calls[np.argsort(-index.dur[calls], kind="stable")].tolist())
    return Card(label, share, "share", about, "op_table", code(name), rows=longest_first)


def top_function(record: Record) -> Card | None:
    """Return the Python function with most time of its own, where no ops were recorded."""
    if not has_python_alone(record) or not len(table := python_time(record)):
        return None
    (label,) = function_labels(table.head(1))
    spent, name = int(table["self_ns"].iloc[0]), function_name(label)
    about = f"`{name}` has the most self time of all Python functions."
    return Card("Top function", spent, "ns", about, "python_time", f"`{name}`")


def peak_memory(record: Record) -> Card | None:
    """Return the most that the fullest GPU held at once; the CPU's where no GPU is recorded."""
    rows = fullest(memory_peak(record))
    if not len(rows):
        return None
    peak: pd.Series = rows.iloc[0]
    device, size = str(peak["device"]), int(peak["allocated_bytes"])
    where = "the CPU" if device == "CPU" else device
    about = f"The most memory that was allocated on {where} at once."
    return Card("Peak memory", size, "bytes", about, "memory", device)


CARDS: dict[str, Callable[[Record], Card | None]] = {
    "recorded_time": recorded_time,
    "gpu_busy": gpu_busy,
    "cpu_in_ops": cpu_in_ops,
    "exposed_communication": exposed_communication,
    "input_wait": input_wait,
    "top_op": top_op,
    "top_function": top_function,
    "peak_memory": peak_memory,
}
"""The cards by name, in the order in which they stand."""


def cards(record: Record) -> dict[str, Card]:
    """Return the cards that the record can answer, by name."""
    known = {name: card_of(record) for name, card_of in CARDS.items()}
    return {name: card for name, card in known.items() if card is not None}


def page_cards(shown: Iterable[Card], record: Record, shown_rows: int) -> list[dict[str, Any]]:
    """Return the cards as the page gets them, each with at most ``shown_rows`` events."""
    tabs = panels(record)
    return [
        {
            "label": card.label,
            "value": card.value,
            "detail": card.detail,
            "about": card.about,
            "panel": card.view if card.view in tabs else "",
            "view": card.view,
            "start": card.start_ns,
            "end": card.end_ns,
            "rows": sorted(card.rows[:shown_rows]),
            "events": len(card.rows),
        }
        for card in shown
    ]
