"""The page of many ranks without script: findings, each rank's time, who waits for whom.

It uses only tags and styles that notebooks leave standing (see `table_renderers`). Colours are
transparent enough for light and dark themes, and never say anything that the numbers do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.columns import format_ns
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.ranks.tables import self_times
from gpuprof_widgets.trace.arrays import Ints
from gpuprof_widgets.views.page import finding_lines
from gpuprof_widgets.views.report import html_summary, text_summary
from gpuprof_widgets.views.table import Colour, Column, Fill, Table
from gpuprof_widgets.views.table_renderers import html_table, plain_table, rgba

PARTS: dict[str, tuple[str, Colour]] = {
    "computing_ns": ("Computing", (0, 114, 178, 0.55)),
    "waiting_ns": ("Waiting for ranks", (213, 94, 0, 0.6)),
    "moving_ns": ("Moving data", (240, 228, 66, 0.65)),
    "copying_ns": ("Copying", (204, 121, 167, 0.6)),
    "idle_ns": ("Idle", (128, 128, 128, 0.2)),
}
"""Heading and colour of the parts of a rank's time (Okabe and Ito's)."""

ALL_FINDINGS = "run.findings()"
WORTH_A_COLUMN = 0.01  # of a rank's time, or of all waiting
WORTH_A_ROW = 0.001  # of the slowest rank's time in Python
RANKS_MOST = 64
"""Ranks in the first table; of more those that others waited for most."""
MATRIX_MOST = 16
"""Ranks of which the matrix of waits is shown; of more the longest waits are listed."""
LISTED = 12
SIDE_BY_SIDE_IN_TEXT = 4
"""Ranks of which plain text has a column each."""
FUNCTIONS = "Self time of the Python functions in which the ranks differ most"
STEPS_MOST = 12
"""Steps that the table shows: those in which the ranks differ most."""
HEAT = (213, 94, 0)
RANK = Column("name", "Rank")
WAITS = (
    RANK,
    Column("waits_for", "Waits for"),
    Column("wait_ns", "Time", "ns"),
    Column("share", "Share of waiting", "share"),
)
COLLECTIVES = (
    Column("name", "Collective"),
    Column("bytes", "Message", "bytes"),
    Column("group", "Group"),
    Column("count", "Count", "count"),
    Column("skew_ns", "Total skew", "ns"),
    Column("transfer_ns", "Moving data", "ns"),
    Column("usual_ns", "Moving data, median", "ns"),
    Column("bus_bytes_per_s", "Bus bandwidth", "bytes/s"),
)
SLOWEST_AND_FASTEST = (
    Column("name", "Function"),
    Column("spread_ns", "Difference", "ns"),
    Column("slowest", "Slowest"),
    Column("fastest", "Fastest"),
)

Legend = list[tuple[str, Colour]]
"""What the colours of a table's fills mean."""


@dataclass(frozen=True)
class RanksTables:
    """The content of the page: tables of `analyses.ranks`, findings and notes.

    ``on_gpu``: whether the ranks' time is that of GPUs; else it is that of their main threads.
    """

    on_gpu: bool
    findings: Sequence[Finding]
    notes: Sequence[str]
    overview: pd.DataFrame
    stragglers: pd.DataFrame
    waits: pd.DataFrame
    collectives: pd.DataFrame
    steps: pd.DataFrame
    functions: pd.DataFrame


def ranks_bundle(tables: RanksTables) -> dict[str, str]:
    """Return `ranks_html` and `ranks_text` by their MIME types."""
    return {"text/plain": ranks_text(tables), "text/html": ranks_html(tables)}


def ranks_html(tables: RanksTables) -> str:
    """Return findings, notes and tables, for readers whose notebook runs no script."""
    below = "".join(
        f'<div style="margin-top:10px">{html_table(table)}{_html_legend(legend)}</div>'
        for table, legend in _with_legends(tables)
    )
    return html_summary(tables.findings, [below], notes=tables.notes, all_in=ALL_FINDINGS)


def page_tables(tables: RanksTables) -> list[dict[str, Any]]:
    """Return the tables below the live timelines: `plain_table`, and each one's ``legend``."""
    return [
        plain_table(table) | {"legend": [[words, list(colour)] for words, colour in legend]}
        for table, legend in _with_legends(tables)
    ]


def _with_legends(tables: RanksTables) -> list[tuple[Table, Legend]]:
    """Return all tables, each with what its colours mean: only that of the ranks has a legend.

    It comes first, unless there are Python calls alone.
    """
    functions = _functions_table(tables, side_by_side=MATRIX_MOST)
    if not len(tables.overview):
        return [(functions, [])] if functions else []
    legend = [(_heading(key, tables), PARTS[key][1]) for key in _shown_parts(tables)]
    others = (_waits_table(tables), _collectives_table(tables), _steps_table(tables), functions)
    return [(_ranks_table(tables), legend), *((table, []) for table in others if table)]


def ranks_text(tables: RanksTables) -> str:
    """Return findings, notes, and the tables of ranks and functions, below 80 columns."""
    shown = [_ranks_table(tables)] if len(tables.overview) else []
    functions = _functions_table(tables, side_by_side=SIDE_BY_SIDE_IN_TEXT)
    shown += [functions] if functions else []
    return text_summary(tables.findings, shown, notes=tables.notes, all_in=ALL_FINDINGS)


def finding_lines_of(findings: Sequence[tuple[Finding, int]]) -> list[dict[str, Any]]:
    """Return the findings as the page gets them, each with the position of its timeline."""
    lines = finding_lines([finding for finding, _ in findings], 0)
    return [line | {"of": at} for line, (_, at) in zip(lines, findings, strict=True)]


def _ranks_table(tables: RanksTables) -> Table:
    """Return the parts of each rank's time, as bars too, and how long others waited for it."""
    ranks, longest = len(tables.overview), _longest(tables)
    awaited = tables.stragglers.head(RANKS_MOST)[["rank", "last", "delay_ns"]]
    rows = tables.overview.merge(awaited, on="rank")
    left_out = (
        f" (the {len(rows)} of {ranks} that others waited for most)" if len(rows) < ranks else ""
    )
    columns = (
        RANK,
        Column("span_ns", "Time", "ns"),
        Column("bar", "Parts"),
        *(Column(key, _heading(key, tables), "ns") for key in _shown_parts(tables)),
        Column("last", "Came last", "count"),
        Column("delay_ns", "Delay", "ns"),
    )
    worst = max(int(rows["delay_ns"].max()), 1)
    return Table(
        f"Time of each rank{left_out}",
        columns,
        rows.assign(name=rows["rank"].astype(str), bar=""),
        expendable=("bar", "span_ns"),
        fills={
            "bar": [_time_bar(row, longest) for row in rows.to_dict("records")],
            "delay_ns": _heat(rows["delay_ns"] / worst),
        },
    )


def _html_legend(legend: Legend) -> str:
    entries = " ".join(
        f'<span style="background:{rgba(colour)};padding:0 6px">&nbsp;</span> '
        f'<span style="margin-right:10px">{words}</span>'
        for words, colour in legend
    )
    return f"<div>{entries}</div>" if legend else ""


def _shown_parts(tables: RanksTables) -> list[str]:
    """Return the parts of the time, without copies where these take next to nothing."""
    copying = tables.overview["copying_ns"].max() > WORTH_A_COLUMN * _longest(tables)
    return [key for key in PARTS if key != "copying_ns" or copying]


def _longest(tables: RanksTables) -> int:
    return max(int(tables.overview["span_ns"].max()), 1)


def _heading(part: str, tables: RanksTables) -> str:
    """Return the heading of a part of the time.

    A main thread outside of ops and collectives is not idle: it runs Python, or reads data.
    """
    return "In no op" if part == "idle_ns" and not tables.on_gpu else PARTS[part][0]


def _time_bar(row: Mapping[Any, int], longest: int) -> Fill:
    """Return a bar with the parts side by side, as long as their time."""
    edges = [0, *accumulate(row[key] for key in PARTS)]
    colours = [colour for _, colour in PARTS.values()]
    return tuple(
        (colour, start / longest, end / longest)
        for colour, (start, end) in zip(colours, pairwise(edges), strict=True)
    )


def _heat(shares: Iterable[float]) -> list[Fill]:
    """Return a fill per share: the larger the share, the stronger the colour."""
    return [(((*HEAT, 0.5 * min(s, 1)), 0, 1),) if s > 0.02 else () for s in shares]


def _heated(title: str, noun: str, times: pd.DataFrame, shares: pd.DataFrame) -> Table:
    """Return ``times`` as a table with its index as names, and cells coloured by the shares."""
    columns = (Column("name", noun), *(Column(label, label, "ns") for label in map(str, times)))
    fills = {str(label): _heat(column) for label, column in shares.items()}
    return Table(title, columns, times.assign(name=times.index), fills=fills)


def _waits_table(tables: RanksTables) -> Table | None:
    """Return the waits, ranks by ranks, without ranks that cost next to nothing.

    Beyond `MATRIX_MOST` ranks the longest waits are listed instead.
    """
    waits, ranks = tables.waits, sorted(tables.overview["rank"].tolist())
    if not len(waits):
        return None
    if len(ranks) > MATRIX_MOST:
        rows = waits.head(LISTED).astype({"rank": str, "waits_for": str})
        title = f"Who waits for whom: the {len(rows)} longest waits"
        return Table(title, WAITS, rows.rename(columns={"rank": "name"}))
    of_cause = waits.groupby("waits_for")["share"].sum()
    causes = of_cause.index[of_cause >= WORTH_A_COLUMN]
    left_out = "" if len(causes) == len(of_cause) else " (ranks that cost less than 1 % left out)"
    times = waits.pivot(index="rank", columns="waits_for", values="wait_ns")
    times = times.reindex(index=ranks, columns=causes).rename(index=str, columns="for {}".format)
    shares = times / waits["wait_ns"].max()
    return _heated(f"Who waits for whom{left_out}", "Rank waits", times, shares)


def _collectives_table(tables: RanksTables) -> Table | None:
    """Return, by operation and size, how long the ranks waited and how fast data then moved."""
    if not len(tables.collectives):
        return None
    keys = ["name", "dtype", "bytes", "group", "ranks"]
    groups = tables.collectives.groupby(keys, sort=False).agg(
        count=("collective", "size"),
        skew_ns=("skew_ns", "sum"),
        transfer_ns=("transfer_ns", "sum"),
        usual_ns=("transfer_ns", "median"),
        bus_bytes_per_s=("bus_bytes_per_s", "median"),
    )
    groups = groups.reset_index()
    groups["all_ns"] = groups["skew_ns"] + groups["transfer_ns"]
    rows = groups.sort_values("all_ns", ascending=False).head(LISTED)
    of_ranks = (rows["ranks"].astype(str) + " ranks").where(rows["ranks"] > 0)
    rows = rows.assign(
        name=(rows["name"] + " " + rows["dtype"]).str.strip(),
        bytes=rows["bytes"].where(rows["bytes"] >= 0),
        group=rows["group"].where(rows["group"] != "", of_ranks),
        bus_bytes_per_s=rows["bus_bytes_per_s"].where(rows["bus_bytes_per_s"] > 0),
    )
    return Table("Collectives, on all ranks", COLLECTIVES, rows)


def _steps_table(tables: RanksTables) -> Table | None:
    """Return each rank's time without waiting in the steps in which the ranks differ most."""
    table = tables.steps
    if not 2 <= table["rank"].nunique() <= MATRIX_MOST:
        return None
    spread = table.groupby("step")["own_ns"].agg(np.ptp).sort_values(ascending=False)
    chosen = sorted(spread.index[:STEPS_MOST])
    left_out = "" if len(chosen) == len(spread) else f" ({len(chosen)} of {len(spread)})"
    title = f"Time in each step, without waiting for other ranks{left_out}"
    last = table.drop_duplicates(["step", "rank"], keep="last")
    times, imbalance = (
        last.pivot(index="step", columns="rank", values=key)
        .loc[chosen]
        .rename(index=lambda step: "all" if step < 0 else str(step), columns="rank {}".format)
        for key in ("own_ns", "imbalance")
    )
    return _heated(title, "Step", times, imbalance)


def _functions_table(tables: RanksTables, *, side_by_side: int) -> Table | None:
    """Return all functions together, then those in whose self times the ranks differ most.

    Up to ``side_by_side`` ranks have a column each; of more ranks the slowest and the fastest are
    shown. None without ranks to compare; a single rank is shown where there is nothing else.
    """
    ranks, function_ns = self_times(tables.functions)
    if not ranks or (len(ranks) == 1 and len(tables.overview)):
        return None
    rank_ns = function_ns.sum(axis=0)
    differing = np.ptp(function_ns, axis=1) if len(ranks) > 1 else function_ns[:, 0]
    rows = min(max(int((differing >= WORTH_A_ROW * rank_ns.max()).sum()), 1), LISTED)
    functions = ["all functions", *function_labels(tables.functions.head(rows))]
    self_ns = np.vstack([rank_ns, function_ns[:rows]])
    spread = np.ptp(self_ns, axis=1)
    names = [f"rank {rank}" for rank in ranks]
    if len(ranks) <= side_by_side:
        shown = pd.DataFrame(np.column_stack([spread, self_ns]), functions, ["Difference", *names])
        more = (self_ns - self_ns.min(axis=1, keepdims=True)) / max(spread[1], 1)
        return _heated(FUNCTIONS, "Function", shown, pd.DataFrame(more, functions, names))
    ends = {
        "name": functions,
        "spread_ns": spread,
        "slowest": _named_times(names, self_ns, self_ns.argmax(axis=1)),
        "fastest": _named_times(names, self_ns, self_ns.argmin(axis=1)),
    }
    return Table(FUNCTIONS, SLOWEST_AND_FASTEST, pd.DataFrame(ends))


def _named_times(names: Sequence[str], times: Ints, places: Ints) -> list[str]:
    """Return a text per row of times: the name and the time at the row's place."""
    return [f"{names[at]}: {format_ns(row[at])}" for row, at in zip(times, places, strict=True)]
