"""`gpuprof operators TRACE` and the like: a command per row of `ANALYSES`."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import click
import pandas as pd

from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.analyses.columns import PLACES, PSTATS_KEYS, UNITS
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
from gpuprof_widgets.exceptions import OptionError

if TYPE_CHECKING:
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
    from gpuprof_widgets.analyses.reasons import LACKS, range_note

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
    if note := range_note(table) if is_part else "":
        print_notes([note])


def _sorted(
    analysis: Analysis, profile: Profile, table: pd.DataFrame, key: str, given: dict[str, Any]
) -> pd.DataFrame:
    """By a column, or by a key that only the analysis knows, such as torch's names."""
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
    from gpuprof_widgets.analyses.operators import self_time_lines
    from gpuprof_widgets.analyses.reasons import LACKS, NOBODY, why_empty
    from gpuprof_widgets.commands.printing import print_table, terminal_table, with_paths
    from gpuprof_widgets.exceptions import printable
    from gpuprof_widgets.trace.schema import SAMPLED

    lacks = why_empty(table)
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


SHARED = ("sort", "top", "step")
"""Keywords that every command has as options of its own."""


def keywords_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What the analysis takes besides the record."""
    _, *parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter for parameter in parameters}


def options_of(function: Callable[..., Any]) -> list[click.Parameter]:
    """An option per keyword of the analysis, but for those that only a program can give.

    What a call has to name first (``attribution(level)``) is an argument here as well.
    """
    from gpuprof_widgets.analyses.added import option_kinds  # loads numpy

    kinds = option_kinds(function)
    options = (
        option_of(parameter, kinds[name])
        for name, parameter in keywords_of(function).items()
        if name not in SHARED
    )
    return [option for option in options if option is not None]


def option_of(parameter: inspect.Parameter, kind: Any) -> click.Parameter | None:
    """The option or argument of one keyword, by its type; None where its values cannot be typed.

    A `TypeError` where it cannot be left out either.
    """
    name, default = parameter.name, parameter.default
    flag = f"--{name.replace('_', '-')}"
    plain: Any = Time() if name.endswith("_ns") else _typed(kind)
    if default is parameter.empty:
        if plain is None:
            raise TypeError(f"a command line has no option of type {kind} for {name}")
        return click.Argument([name], type=plain)
    if isinstance(default, bool):
        return click.Option([f"{flag}/--no-{flag[2:]}", name], default=default)
    said = None if default in (None, "") else f"default: {default}"
    if plain is None:
        return None
    return click.Option([flag, name], type=plain, default=default, help=said)


def _typed(kind: Any) -> Any:
    """The type of what is typed for such a keyword: of several the text; None for none of them."""
    if get_origin(kind) in (Union, UnionType):
        parts = [_typed(part) for part in get_args(kind) if part is not NoneType]
        return next((part for part in (str, float, int) if part in parts), None)
    return kind if kind in (int, float, str) else None


def sort_columns(table: pd.DataFrame, key: str) -> list[str]:
    """The column that a key names: ``cpu_self`` or ``cpu_self_ns``, after a sign; none if unknown.

    A table of Python functions takes pstats' keys as well, of which some name several columns.
    Raises `OptionError` where a key without its unit names two.
    """
    name = key.lstrip("+-")
    if name in table.columns:
        return [name]
    found = [name + unit for unit in UNITS if name + unit in table.columns]
    if len(found) > 1:
        raise OptionError(f"{name!r} could be {' or '.join(found)}: sort by one of these")
    return found or list(_pstats_keys(table).get(name, ()))


def _pstats_keys(table: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Those that a table of Python functions has the columns of; none of any other table."""
    if not set(PLACES) <= set(table.columns):
        return {}
    return {key: names for key, names in PSTATS_KEYS.items() if set(names) <= set(table.columns)}


def sorted_by(table: pd.DataFrame, key: str) -> pd.DataFrame:
    """Its rows by the column of that key: numbers largest first, names from A, lines of a file from
    the first; ``+`` rising, ``-`` falling.
    """
    columns = sort_columns(table, key)
    if not columns:
        raise OptionError(_unknown(table, key))
    rising = [
        column in PLACES or not pd.api.types.is_numeric_dtype(table[column]) for column in columns
    ]
    if key[0] in "+-":
        rising = [key[0] == "+"] * len(columns)
    return table.sort_values(columns, ascending=rising, kind="stable", ignore_index=True)


def _unknown(table: pd.DataFrame, key: str) -> str:
    names = list(map(str, table.columns))
    pstats = list(_pstats_keys(table))
    close = difflib.get_close_matches(key.lstrip("+-"), names + pstats, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"there is no column {key!r} to sort by.{hint} Columns are {', '.join(names)}" + (
        f"; pstats' keys: {', '.join(pstats)}." if pstats else "."
    )
