"""`gpuprof operators TRACE` and the like: a command per row of `ANALYSES`."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.commands.exports import FORMATS, export, export_options
from gpuprof_widgets.commands.outputs import Writing
from gpuprof_widgets.commands.signature import keywords_of, options_of
from gpuprof_widgets.commands.traces import (
    load,
    part_of,
    print_notes,
    progress,
    trace_argument,
    window_options,
)

if TYPE_CHECKING:
    import pandas as pd

    from gpuprof_widgets.profiles import Profile

ROWS = 20
"""Rows that are printed unless ``--top`` says otherwise; files get all."""


def command_of(name: str) -> click.Command:
    """Return the command of that analysis."""
    analysis = ANALYSES[name]
    example = filter(None, (name, "trace.json.gz", analysis.example))

    @trace_argument()
    @click.option("--sort", metavar="KEY", help="column to sort by; +KEY: rising, -KEY: falling")
    @click.option("--top", type=click.IntRange(min=1), metavar="N", help=_TOP)
    @window_options
    @export_options
    def run(**given: Any) -> None:
        table_command(analysis, **given)

    command = click.command(
        name,
        cls=Writing,
        help=_help(analysis),
        short_help=analysis.question,
        epilog=f"\b\nExample:\n  gpuprof {' '.join(example)} --top 5",
    )(run)
    own = options_of(analysis.function)
    command.params[1:1] = own
    return command


COUNTS = ("calls", "primitive_calls")
"""Columns that are not printed of a sampled run: they hold how often samples found something."""

_TOP = f"rows to keep (printed: {ROWS} if not given; files: all)"


def table_command(
    analysis: Analysis,
    *,
    trace: str,
    sort: str | None,
    top: int | None,
    window: tuple[int, int] | None,
    step: int | None,
    **given: Any,
) -> None:
    """Load, analyse, sort, cut, and write or print."""
    from gpuprof_widgets.analyses.table_with_reason import LACKS
    from gpuprof_widgets.analyses.whole_run import what_follows_no_range

    targets = {name: given.pop(name) for name in FORMATS}
    own = keywords_of(analysis.function)
    if "step" in own:
        given["step"], step = step, None
    if "top" in own and own["top"].default is not None:
        given["top"] = sys.maxsize  # cut below, after sorting
    is_part = window is not None or step is not None
    whole = load(trace)
    profile = part_of(whole, window, step)
    with progress(f"computing {analysis.name}"):
        table = analysis.function(profile, **given)
        if sort is not None:
            table = _sorted(analysis, profile, table, sort, given)
        if is_part and not len(table) and (rows := len(analysis.function(whole, **given))):
            table.attrs[LACKS] = f"no rows in that range; the whole trace has {rows:,}"
    key = sort or (own["sort"].default if "sort" in own else None)
    show_or_export(table, top=top, sort=key, targets=targets)
    if note := what_follows_no_range(table) if is_part else "":
        print_notes([note])


def _sorted(
    analysis: Analysis, profile: Profile, table: pd.DataFrame, key: str, given: dict[str, Any]
) -> pd.DataFrame:
    """By a column, or by a key that only the analysis knows, such as torch's names."""
    from gpuprof_widgets.commands.sorting import sort_columns, sorted_by

    if not sort_columns(table, key) and "sort" in keywords_of(analysis.function):
        return analysis.function(profile, **given, sort=key)
    return sorted_by(table, key)


def show_or_export(
    table: pd.DataFrame,
    *,
    top: int | None,
    sort: str | None = None,
    targets: dict[str, str | None],
    notes: tuple[str, ...] = (),
) -> None:
    """Write the rows to the targets, or print the first of them; say what the trace lacks.

    ``notes`` stand below what is printed, and on stderr where it is written.
    """
    from gpuprof_widgets.analyses.columns import heading
    from gpuprof_widgets.analyses.lacking import NOBODY
    from gpuprof_widgets.analyses.operators import self_time_lines
    from gpuprof_widgets.analyses.table_with_reason import LACKS, what_is_lacking
    from gpuprof_widgets.commands.printing import print_table, terminal_table
    from gpuprof_widgets.commands.sorting import sort_columns
    from gpuprof_widgets.commands.tree import with_paths
    from gpuprof_widgets.printable import printable
    from gpuprof_widgets.trace.schema import SAMPLED

    lacks = what_is_lacking(table)
    if export(table if top is None else table.head(top), targets):
        if lacks:
            click.echo(f"note: {printable(lacks)}", err=True)
        print_notes(notes)
        return
    # Where the trace lacks what is asked for, a row of all that belongs to nobody says nothing.
    shown = table.head(0 if lacks else ROWS if top is None else top)
    said = self_time_lines(table)
    said += [str(table.attrs[key]) for key in (LACKS, "note") if key in table.attrs]
    if not len(table) and not lacks:
        said.append("no rows: the trace has nothing of that kind")
    if len(shown) < len(table) and top is None and not lacks:
        said.append(f"{len(shown):,} of {len(table):,} rows; --top N prints more")
    by = sort_columns(table, sort) if sort else []
    # A column of one value sorts nothing, as the GPU's time where there is no GPU.
    kept = heading(by[0]) if by and table[by[0]].nunique() > 1 else ""
    if SAMPLED in table.attrs:
        shown = shown.drop(columns=[name for name in COUNTS if name in shown])
    shown = with_paths(shown, table, is_sorted=sort is not None)
    if nobody := table.attrs.get(NOBODY):
        shown = shown.assign(name=shown["name"].replace("", nobody))
    print_table(terminal_table(shown, notes=[*said, *notes], keep=kept))


def _help(analysis: Analysis) -> str:
    """The question, and what the analysis says of its columns."""
    return f"{analysis.question}\n\n{help_of(analysis.function.__doc__ or '')}"


def help_of(docstring: str) -> str:
    """A docstring as click shows it: lists keep their lines, names lose their backticks."""
    text = re.sub(r"`+([^`]+)`+", r"\1", inspect.cleandoc(docstring))
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        f"\b\n{paragraph}" if re.match(r"[-*] |\|", paragraph) else paragraph
        for paragraph in paragraphs
    )
