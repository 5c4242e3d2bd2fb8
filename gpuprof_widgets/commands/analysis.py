"""`gpuprof operators TRACE` and the like: a command per row of `ANALYSES`.

`command_of` makes the command, with an option per keyword of the analysis (`options_of`).
`show_or_export` prints or writes its table. The list of commands loads this module at every start,
so what needs pandas is imported in functions.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from textwrap import fill
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import click

from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.analyses.docstrings import OPTIONS, lists_of, meanings_of, paragraphs_of
from gpuprof_widgets.commands.outputs import FORMATS, Writing, export, export_options
from gpuprof_widgets.commands.traces import (
    Time,
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

WIDTH = 96
"""Columns of a list in the help, as in the docstrings."""

_TOP = f"rows to keep (default: {ROWS} if printed, all in a file)"

COUNTS = ("calls", "primitive_calls")
"""Columns that are not printed of a sampled run, where they count samples instead of calls."""

SHARED = ("sort", "top", "step")
"""Keywords of analyses that every command has as options anyway."""


def command_of(name: str) -> click.Command:
    """Return the command of an analysis."""
    analysis = ANALYSES[name]
    example = filter(None, (name, "trace.json.gz", analysis.example))

    @trace_argument()
    @click.option("--sort", metavar="KEY", help="sort column; +KEY: ascending, -KEY: descending")
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
    command.params[1:1] = options_of(analysis.function)
    return command


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
    """Load the trace, compute the table, sort and cut it, and write or print it."""
    from gpuprof_widgets.analyses.reasons import LACKS, range_note

    targets = {name: given.pop(name) for name in FORMATS}
    keywords = keywords_of(analysis.function)
    if "step" in keywords:
        given["step"], step = step, None
    if "top" in keywords and keywords["top"].default is not None:
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
    key = sort or (keywords["sort"].default if "sort" in keywords else None)
    show_or_export(table, top=top, sort=key, targets=targets)
    if note := range_note(table) if is_part else "":
        print_notes([note])


def _sorted(
    analysis: Analysis, profile: Profile, table: pd.DataFrame, key: str, given: dict[str, Any]
) -> pd.DataFrame:
    """Sort by a column, or by a key that only the analysis knows, such as torch's names."""
    from gpuprof_widgets.commands.printing import sort_columns, sorted_by

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
    """Write the rows to the targets, or print the first of them; add what the trace lacks.

    ``notes`` are printed below the table, or on stderr where it is written to a file.
    """
    from gpuprof_widgets.analyses.columns import heading
    from gpuprof_widgets.analyses.operators import self_time_lines
    from gpuprof_widgets.analyses.reasons import LACKS, NOBODY, NOTE, why_empty
    from gpuprof_widgets.commands.printing import (
        print_table,
        sort_columns,
        terminal_table,
        with_paths,
    )
    from gpuprof_widgets.exceptions import printable
    from gpuprof_widgets.trace.schema import SAMPLED

    lacks = why_empty(table)
    if export(table if top is None else table.head(top), targets):
        if lacks:
            click.echo(f"note: {printable(lacks)}", err=True)
        print_notes(notes)
        return
    # Where the trace lacks the data, a single row without an owner would say nothing.
    shown = table.head(0 if lacks else ROWS if top is None else top)
    lines = self_time_lines(table)
    lines += [str(table.attrs[key]) for key in (LACKS, NOTE) if key in table.attrs]
    if not len(table) and not lacks:
        lines.append("no rows: the trace has nothing of that kind")
    if len(shown) < len(table) and top is None and not lacks:
        lines.append(f"{len(shown):,} of {len(table):,} rows; --top N prints more")
    by = sort_columns(table, sort) if sort else []
    # A column of one value sorts nothing, such as GPU time without a GPU.
    kept = heading(by[0]) if by and table[by[0]].nunique() > 1 else ""
    if SAMPLED in table.attrs:
        shown = shown.drop(columns=[name for name in COUNTS if name in shown])
    shown = with_paths(shown, table, is_sorted=sort is not None)
    if nobody := table.attrs.get(NOBODY):
        shown = shown.assign(name=shown["name"].replace("", nobody))
    print_table(terminal_table(shown, notes=[*lines, *notes], keep=kept))


def _help(analysis: Analysis) -> str:
    """Return the question and the analysis' docstring.

    What its options mean stands at these, below the docstring.
    """
    paragraphs = paragraphs_of(analysis.function)
    keywords = keywords_of(analysis.function).items()
    needed = {name for name, given in keywords if given.default is inspect.Parameter.empty}
    for above, items in lists_of(analysis.function, OPTIONS).items():
        if not items:
            continue  # prose below the heading stays
        arguments = [
            fill(f"- {', '.join(names)}: {meaning}", WIDTH, subsequent_indent="  ")
            for names, meaning in items.items()
            if needed.intersection(names)
        ]
        at = paragraphs.index(above)
        paragraphs[at : at + 2] = ["Arguments:", "\n".join(arguments)] if arguments else []
    return f"{analysis.question}\n\n{help_of(paragraphs)}"


def help_of(paragraphs: Sequence[str]) -> str:
    """Return a docstring for click: lists keep their lines, names lose their backticks."""
    return "\n\n".join(
        f"\b\n{paragraph}" if re.match(r"[-*] |\|", paragraph) else paragraph
        for paragraph in map(_without_backticks, paragraphs)
    )


def _without_backticks(text: str) -> str:
    return re.sub(r"`+([^`]+)`+", r"\1", text)


def keywords_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of an analysis besides the record."""
    _, *parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter for parameter in parameters}


def options_of(function: Callable[..., Any]) -> list[click.Parameter]:
    """Return an option per keyword of the analysis, except those that only a program can give.

    A parameter without a default (``attribution(level)``) becomes an argument.
    """
    from gpuprof_widgets.analyses.added import option_kinds  # loads numpy

    kinds = option_kinds(function)
    meanings = meanings_of(function, OPTIONS)
    options = (
        option_of(parameter, kinds[name], _without_backticks(meanings.get(name, "")))
        for name, parameter in keywords_of(function).items()
        if name not in SHARED
    )
    return [option for option in options if option is not None]


def option_of(parameter: inspect.Parameter, kind: Any, meaning: str = "") -> click.Parameter | None:
    """Return the option or argument of one keyword by its type; None if it cannot be typed.

    ``meaning``: a sentence for its help.

    Raises `TypeError` if such a keyword has no default either.
    """
    name, default = parameter.name, parameter.default
    flag = f"--{name.replace('_', '-')}"
    plain: Any = Time() if name.endswith("_ns") else _typed(kind)
    if default is parameter.empty:
        if plain is None:
            raise TypeError(f"a command line has no option of type {kind} for {name}")
        return click.Argument([name], type=plain)
    if isinstance(default, bool):
        both = f"{flag}/--no-{flag[2:]}"
        return click.Option([both, name], default=default, help=meaning.removesuffix("."))
    default_text = "" if default in (None, "") else f"default: {default}"
    help_text = "; ".join(filter(None, (meaning.removesuffix("."), default_text))) or None
    if plain is None:
        return None
    return click.Option([flag, name], type=plain, default=default, help=help_text)


def _typed(kind: Any) -> Any:
    """Return str, float or int for a keyword of that type, str first in a union; else None."""
    if get_origin(kind) in (Union, UnionType):
        parts = [_typed(part) for part in get_args(kind) if part is not NoneType]
        return next((part for part in (str, float, int) if part in parts), None)
    return kind if kind in (int, float, str) else None
