"""The page of many ranks without script: findings, each rank's time, who waits for whom.

Only tags and styles that notebooks leave standing, as in `static`; colours are transparent enough
for light and dark themes, and never say anything that the numbers do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.quantity import (
    format_bandwidth,
    format_bytes,
    format_ns,
    format_share,
)
from gpuprof_widgets.analyses.ranks.functions import self_times
from gpuprof_widgets.printable import printable
from gpuprof_widgets.views.figure import finding_lines
from gpuprof_widgets.views.static import html_findings, text_findings
from gpuprof_widgets.views.table_renderers import CELL
from gpuprof_widgets.views.text import TEXT_WIDTH, escaped, shortened, wrapped

PARTS = {
    "computing_ns": ("Computing", "rgba(0,114,178,0.55)"),
    "waiting_ns": ("Waiting for ranks", "rgba(213,94,0,0.6)"),
    "moving_ns": ("Moving data", "rgba(240,228,66,0.65)"),
    "copying_ns": ("Copying", "rgba(204,121,167,0.6)"),
    "idle_ns": ("Idle", "rgba(128,128,128,0.2)"),
}
"""Heading and colour of the parts of a rank's time (Okabe and Ito's)."""

BAR_WIDTH = 260
WORTH_A_COLUMN = 0.01  # of a rank's time, or of all waiting
WORTH_A_ROW = 0.001  # of the slowest rank's time in Python
RANKS_MOST = 64
"""Ranks in the first table; of more those that were awaited most."""
MATRIX_MOST = 16
"""Ranks of which the matrix of waits is shown; of more the longest waits are listed."""
LISTED = 12
SIDE_BY_SIDE_IN_TEXT = 4
"""Ranks of which plain text has a column each."""
FUNCTIONS = "Self time of the Python functions in which the ranks differ most"
STEPS_MOST = 12
"""Steps that the table shows: those in which the ranks differ most."""
HEAT = "213,94,0"


@dataclass(frozen=True)
class RanksTables:
    """What the page shows: tables of `analyses.ranks`, findings and notes.

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


@dataclass(frozen=True)
class _Cell:
    text: str
    style: str = ""
    left: bool = False


def ranks_html(tables: RanksTables) -> str:
    """Findings, notes and tables, for readers whose notebook runs no script."""
    found = html_findings(list(tables.findings))
    notes = "".join(f"<div>Note: {escaped(note)}.</div>" for note in tables.notes)
    return f'<div class="gpuprof-static">{found}{notes}{ranks_tables_html(tables)}</div>'


def ranks_tables_html(tables: RanksTables) -> str:
    """The tables alone: what stands below the live timelines."""
    of_times = (_ranks_table, _waits_table, _collectives_table, _steps)
    shown = (*(of_times if len(tables.overview) else ()), _functions_table)
    return "".join(table(tables) for table in shown)


def ranks_text(tables: RanksTables) -> str:
    """Findings and the table of ranks, below 80 columns."""
    lines = text_findings(list(tables.findings))
    lines += [line for note in tables.notes for line in wrapped(f"Note: {note}.")]
    if len(tables.overview):
        lines += ["", "Time of each rank", *_text_rows(_grid_of_ranks(tables, bar=False))]
    if _compares_functions(tables):
        grid = _grid_of_functions(tables, side_by_side=SIDE_BY_SIDE_IN_TEXT)
        lines += ["", FUNCTIONS, *_text_rows(grid)]
    return "\n".join(lines)


def _text_rows(grid: Sequence[Sequence[_Cell]]) -> list[str]:
    """The lines of a table, the first column cut to the room that the others leave."""
    columns = list(zip(*grid, strict=True))
    widths = [max(len(cell.text) for cell in column) for column in columns]
    widths[0] = min(widths[0], TEXT_WIDTH - sum(width + 2 for width in widths[1:]))
    return [
        "  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True))
        for row in grid
    ]


def _padded(cell: _Cell, width: int) -> str:
    text = shortened(printable(cell.text), width)
    return text.ljust(width) if cell.left else text.rjust(width)


def finding_lines_of(found: Sequence[tuple[Finding, int]]) -> list[dict[str, Any]]:
    """The findings as the page gets them, each with the position of the timeline it is about."""
    lines = finding_lines([finding for finding, _ in found], 0)
    return [line | {"of": at} for line, (_, at) in zip(lines, found, strict=True)]


def _ranks_table(tables: RanksTables) -> str:
    head, *rows = _grid_of_ranks(tables, bar=True)
    legend = " ".join(
        f'<span style="background:{PARTS[key][1]};padding:0 6px">&nbsp;</span> '
        f'<span style="margin-right:10px">{_heading(key, tables)}</span>'
        for key in _shown_parts(tables)
    )
    ranks = len(tables.overview)
    left_out = f" (the {len(rows)} of {ranks} that were awaited most)" if len(rows) < ranks else ""
    return _table(f"Time of each rank{left_out}", head, rows, below=f"<div>{legend}</div>")


def _shown_parts(tables: RanksTables) -> list[str]:
    """The parts of the time, without copies where these take next to nothing."""
    copying = tables.overview["copying_ns"].max() > WORTH_A_COLUMN * _longest(tables)
    return [key for key in PARTS if key != "copying_ns" or copying]


def _longest(tables: RanksTables) -> int:
    return max(int(tables.overview["span_ns"].max()), 1)


def _grid_of_ranks(tables: RanksTables, *, bar: bool) -> list[list[_Cell]]:
    late = tables.stragglers.set_index("rank")
    parts, awaited = _shown_parts(tables), set(late.index[:RANKS_MOST])
    head = [_Cell("Rank"), *([_Cell("Time"), _Cell("")] if bar else [])]
    head += [_Cell(_heading(key, tables)) for key in parts]
    grid = [[*head, _Cell("Came last"), _Cell("Delay")]]
    worst = max(int(late["delay_ns"].max()), 1)
    for row in tables.overview[tables.overview["rank"].isin(awaited)].to_dict("records"):
        cells = [_Cell(str(row["rank"]))]
        if bar:
            cells += [_Cell(format_ns(row["span_ns"])), _time_bar(row, _longest(tables))]
        cells += [_Cell(format_ns(row[key])) for key in parts]
        delay = int(late["delay_ns"][row["rank"]])
        cells += [_Cell(f"{int(late['last'][row['rank']])}×")]
        grid.append([*cells, _Cell(format_ns(delay), _heat(delay / worst))])
    return grid


def _heading(part: str, tables: RanksTables) -> str:
    """A main thread outside of ops and collectives is not idle: it runs Python, or reads data."""
    return "In no op" if part == "idle_ns" and not tables.on_gpu else PARTS[part][0]


def _time_bar(row: Mapping[Any, int], longest: int) -> _Cell:
    """The parts side by side, as long as their time."""
    at, stops = 0.0, []
    for key, (_, colour) in PARTS.items():
        upto = at + 100 * row[key] / longest
        stops.append(f"{colour} {at:.2f}% {upto:.2f}%")
        at = upto
    stops.append(f"transparent {at:.2f}%")
    style = f"min-width:{BAR_WIDTH}px;background:linear-gradient(to right,{','.join(stops)});"
    return _Cell("", style)


def _waits_table(tables: RanksTables) -> str:
    waits = tables.waits
    if not len(waits):
        return ""
    ranks = sorted({*tables.overview["rank"].tolist()})
    if len(ranks) > MATRIX_MOST:
        rows = [
            [_Cell(str(row.rank)), _Cell(str(row.waits_for)), _Cell(format_ns(row.wait_ns)),
             _Cell(format_share(row.share))]
            for row in _rows(waits.head(LISTED))
        ]  # fmt: skip
        head = [_Cell("Rank"), _Cell("waits for"), _Cell("in all"), _Cell("of all waiting")]
        return _table(f"Who waits for whom: the longest {len(rows)}", head, rows)
    waited = {(row.rank, row.waits_for): int(row.wait_ns) for row in _rows(waits)}
    worst = max(waited.values())
    of_cause = waits.groupby("waits_for")["share"].sum()
    causes = of_cause.index[of_cause >= WORTH_A_COLUMN].tolist()
    head = [_Cell("Rank waits"), *(_Cell(f"for {rank}") for rank in causes)]
    rows = [
        [_Cell(str(rank)), *(_waited(waited.get((rank, cause), 0), worst) for cause in causes)]
        for rank in ranks
    ]
    left_out = "" if len(causes) == len(of_cause) else " (ranks that cost less than 1 % left out)"
    return _table(f"Who waits for whom{left_out}", head, rows)


def _waited(ns: int, worst: int) -> _Cell:
    return _Cell(format_ns(ns) if ns else "–", _heat(ns / worst))


def _heat(share: float) -> str:
    """A background the stronger, the larger the share of the largest."""
    return f"background:rgba({HEAT},{0.6 * share:.2f});" if share > 0.02 else ""


def _collectives_table(tables: RanksTables) -> str:
    """By operation and size: how long the ranks waited, and how fast data then moved."""
    if not len(tables.collectives):
        return ""
    keys = ["name", "dtype", "bytes", "group", "ranks"]
    groups = tables.collectives.groupby(keys, sort=False).agg(
        count=("collective", "size"),
        skew_ns=("skew_ns", "sum"),
        transfer_ns=("transfer_ns", "sum"),
        usual_ns=("transfer_ns", "median"),
        bus=("bus_bytes_per_s", "median"),
    )
    groups = groups.reset_index()
    groups["all_ns"] = groups["skew_ns"] + groups["transfer_ns"]
    groups = groups.sort_values("all_ns", ascending=False).head(LISTED)
    head = [_Cell("Collective", left=True), *map(_Cell, _COLLECTIVE_HEADINGS)]
    rows = [
        [
            _Cell(f"{row.name} {row.dtype}".strip(), left=True),
            _Cell(format_bytes(row.bytes) if row.bytes >= 0 else "?"),
            _Cell(row.group or (str(row.ranks) + " ranks" if row.ranks > 0 else "")),
            _Cell(f"{row.count:,}"),
            _Cell(format_ns(row.skew_ns)),
            _Cell(format_ns(row.transfer_ns)),
            _Cell(format_ns(row.usual_ns)),
            _Cell(format_bandwidth(row.bus) if row.bus > 0 else ""),
        ]
        for row in _rows(groups)
    ]
    return _table("Collectives, on all ranks", head, rows)


_COLLECTIVE_HEADINGS = (
    *("Message", "Group", "Count", "Skew in all", "Moving data", "each, median", "Bus bandwidth"),
)


def _steps(tables: RanksTables) -> str:
    """Own time of each rank in the steps in which the ranks differ most."""
    table = tables.steps
    ranks = sorted(table["rank"].unique().tolist())
    if len(ranks) < 2 or len(ranks) > MATRIX_MOST:
        return ""
    spread = table.groupby("step")["own_ns"].agg(np.ptp).sort_values(ascending=False)
    chosen = sorted(spread.index[:STEPS_MOST])
    own = {(row.step, row.rank): row for row in _rows(table)}
    head = [_Cell("Step"), *(_Cell(f"rank {rank}") for rank in ranks)]
    rows = [
        [_Cell("all" if step < 0 else str(step)), *(_own(own.get((step, rank))) for rank in ranks)]
        for step in chosen
    ]
    shown = "" if len(chosen) == len(spread) else f" ({len(chosen)} of {len(spread)})"
    return _table(f"Time in each step, less waiting for other ranks{shown}", head, rows)


def _own(row: Any) -> _Cell:
    if row is None:
        return _Cell("–")
    return _Cell(format_ns(row.own_ns), _heat(min(max(row.imbalance, 0.0), 1.0)))


def _functions_table(tables: RanksTables) -> str:
    """Self times of the functions in which the ranks differ most."""
    if not _compares_functions(tables):
        return ""
    head, *rows = _grid_of_functions(tables, side_by_side=MATRIX_MOST)
    return _table(FUNCTIONS, head, rows)


def _compares_functions(tables: RanksTables) -> bool:
    """Whether there are those of several ranks, or nothing else."""
    ranks, _ = self_times(tables.functions)
    return len(ranks) > 1 or (len(ranks) == 1 and not len(tables.overview))


def _grid_of_functions(tables: RanksTables, *, side_by_side: int) -> list[list[_Cell]]:
    """All functions together, then those in which the ranks differ most.

    Of up to ``side_by_side`` ranks each has its column, of more the slowest and fastest.
    """
    ranks, times = self_times(tables.functions)
    of_rank = times.sum(axis=0)
    telling = np.ptp(times, axis=1) if len(ranks) > 1 else times[:, 0]
    rows = min(max(int((telling >= WORTH_A_ROW * of_rank.max()).sum()), 1), LISTED)
    labels = ["all functions", *function_labels(tables.functions.head(rows))]
    shown = np.vstack([of_rank, times[:rows]])
    worst = max(int(np.ptp(times[0])), 1)
    heading = ["Difference", "Slowest", "Fastest"]
    if len(ranks) <= side_by_side:
        heading = ["Difference", *(f"rank {rank}" for rank in ranks)]
    grid = [[_Cell("Function", left=True), *map(_Cell, heading)]]
    for label, own in zip(labels, shown, strict=True):
        cells = [_Cell(label, left=True), _Cell(format_ns(int(np.ptp(own))))]
        if len(ranks) <= side_by_side:
            more = (own - own.min()) / worst
            cells += [
                _Cell(format_ns(int(ns)), _heat(min(float(share), 1.0)))
                for ns, share in zip(own, more, strict=True)
            ]
        else:
            ends = (int(own.argmax()), int(own.argmin()))
            cells += [_Cell(f"rank {ranks[at]}: {format_ns(int(own[at]))}") for at in ends]
        grid.append(cells)
    return grid


def _rows(table: pd.DataFrame) -> Iterable[Any]:
    return table.itertuples(index=False)


def _table(
    caption: str, head: Sequence[_Cell], rows: Sequence[Sequence[_Cell]], *, below: str = ""
) -> str:
    top = "".join(_td(cell, "columnheader") for cell in head)
    body = "".join(
        "<tr>"
        + "".join(_td(cell, "" if at else "rowheader") for at, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div style="margin-top:10px"><strong>{escaped(caption)}</strong></div>'
        f'<table style="border-collapse:collapse"><tr>{top}</tr>{body}</table>{below}'
    )


def _td(cell: _Cell, role: str) -> str:
    side = "left" if cell.left else "right"
    told = f' role="{role}"' if role else ""
    text = escaped(cell.text)
    text = f"<strong>{text}</strong>" if role == "columnheader" else text
    return f'<td{told} style="{CELL}text-align:{side};{cell.style}">{text}</td>'
