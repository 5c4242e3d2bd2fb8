"""What the critical path consists of, and what each op would save if it cost nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.critical_path import critical_path
from gpuprof_widgets.analyses.what_if import what_ifs
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.panel import Bars, Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
    Column("name", "On the path", "text"),
    Column("kind", "Bound by", "text"),
    Column("pieces", "Pieces", "count", "count"),
    Column("time_ns", "Time", "ns", "time"),
    Column("share", "Share", "share", "share", "time_ns"),
    Column("saved_ns", "Saved if it cost nothing", "ns"),
)
BETWEEN = "(between ops)"


def critical_path_panel(record: Record) -> Panel | None:
    """A row per op and kind of bound; its events are the pieces of the path.

    What an op would save stands on the longest of its rows only: it is of all of them together.
    """
    path = critical_path(record)
    if not len(path) or not len(record.trace.index.gpu):
        return None
    path = path.assign(label=_labels(path))
    grouped = path.groupby(["label", "kind"], sort=False)
    rows = grouped["dur_ns"].agg(pieces="size", time_ns="sum").reset_index()
    order = np.argsort(-rows["time_ns"].to_numpy(), kind="stable")
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows))
    rows = rows.iloc[order].reset_index(drop=True).rename(columns={"label": "name"})
    saved = what_ifs(record)
    saving = rows["name"].map(dict(zip(saved["name"], saved["saved_ns"], strict=True)))
    rows["saved_ns"] = saving.mask(rows["name"].duplicated())  # once, so that nobody adds it up
    rows["share"] = rows["time_ns"] / max(int(rows["time_ns"].sum()), 1)
    events = path[["start_ns", "end_ns", "row", "track"]]
    return Panel(
        "Critical path",
        COLUMNS,
        rows,
        events.assign(group=place[grouped.ngroup().to_numpy()]),
        notes=(
            "The chain of work that made the run as long as it is; what is not on it could be "
            "slower for free.",
            "The last column replays the run without the op and all that it launched: once per op, "
            "for all its rows together. What two ops would save need not add up.",
        ),
        bars=Bars("", "kind", "time_ns"),
    )


def _labels(path: pd.DataFrame) -> pd.Series:
    """The op where there is one, else the slice's own name."""
    own = path["name"].where(path["name"] != "", BETWEEN)
    return path["op_name"].where(path["op"] >= 0, own)
