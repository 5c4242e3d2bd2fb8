"""`gpuprof operators TRACE` and the like, a command per row of `ANALYSES`, and `gpuprof analyze`.

`command_of` makes the command, with an option per keyword of the analysis (`options_of`).
`show_or_export` prints or writes its table. ``analyze`` has the options of MegEngine's
profile_analyze. The list of commands loads this module at every start, so what needs pandas is
imported in functions.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from textwrap import fill
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import click

from gpuprof_widgets.analyses import ANALYSES, Analysis
from gpuprof_widgets.analyses.docstrings import OPTIONS, lists_of, meanings_of, paragraphs_of
from gpuprof_widgets.commands import files
from gpuprof_widgets.exceptions import printable

if TYPE_CHECKING:
    import pandas as pd


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
    keywords = keywords_of(analysis.function)
    example = filter(None, (name, "trace.json.gz", analysis.example))

    @files.trace_argument()
    @click.option("--sort", metavar="KEY", help="sort column; +KEY: ascending, -KEY: descending")
    @click.option("--top", type=click.IntRange(min=1), metavar="N", help=_TOP)
    @files.window_options
    @files.export_options
    def run(
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
        from gpuprof_widgets.commands.printing import sort_columns, sorted_by

        targets = {name: given.pop(name) for name in files.FORMATS}
        if "step" in keywords:
            given["step"], step = step, None
        if "top" in keywords and keywords["top"].default is not None:
            given["top"] = sys.maxsize  # cut below, after sorting
        is_part = window is not None or step is not None
        whole = files.load(trace)
        profile = files.part_of(whole, window, step)
        with files.progress(f"computing {analysis.name}"):
            table = analysis.function(profile, **given)
            if sort is not None and "sort" in keywords and not sort_columns(table, sort):
                # A key that only the analysis knows, such as torch's names.
                table = analysis.function(profile, **given, sort=sort)
            elif sort is not None:
                table = sorted_by(table, sort)
            if is_part and not len(table) and (rows := len(analysis.function(whole, **given))):
                table.attrs[LACKS] = f"no rows in that range; the whole trace has {rows:,}"
        key = sort or (keywords["sort"].default if "sort" in keywords else None)
        show_or_export(table, top=top, sort=key, targets=targets)
        if note := range_note(table) if is_part else "":
            files.print_notes([note])

    command = click.command(
        name,
        cls=files.Writing,
        help=_help(analysis),
        short_help=analysis.question,
        epilog=f"\b\nExample:\n  gpuprof {' '.join(example)} --top 5",
    )(run)
    command.params[1:1] = options_of(analysis.function)
    return command


def show_or_export(
    table: pd.DataFrame,
    *,
    top: int | None,
    sort: str | None = None,
    targets: dict[str, str | None],
    notes: Sequence[str] = (),
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
    from gpuprof_widgets.trace.schema import SAMPLED

    lacks = why_empty(table)
    if files.export(table if top is None else table.head(top), targets):
        if lacks:
            click.echo(f"note: {printable(lacks)}", err=True)
        files.print_notes(notes)
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
    """Return the question and the analysis' docstring; what its options mean stands at these.

    Lists keep their lines, names lose their backticks.
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
    shown = [analysis.question]
    for paragraph in map(_without_backticks, paragraphs):
        shown.append(f"\b\n{paragraph}" if re.match(r"[-*] |\|", paragraph) else paragraph)
    return "\n\n".join(shown)


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

    Raises `TypeError` if such a keyword has no default either.
    """
    name, default = parameter.name, parameter.default
    flag = f"--{name.replace('_', '-')}"
    plain: Any = files.Time() if name.endswith("_ns") else _typed(kind)
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


class Seconds(files.Time):
    """A time; without a unit it is in seconds, as for `profile_analyze` (``1e-4``)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(Decimal(str(value)) * 10**9)
        except (InvalidOperation, OverflowError, ValueError):  # a unit, or no (finite) number
            return super().convert(value, param, ctx)


@click.command(
    "analyze",
    cls=files.Writing,
    epilog="\b\nExamples:\n  gpuprof analyze trace.json.gz --aggregate-by type --top 10\n"
    "  gpuprof analyze trace.json.gz --type aten::addmm --order-by -computation --min-time 10us",
)
@files.trace_argument()
@click.option(
    "-t", "--top", type=click.IntRange(min=0), metavar="N", help=f"rows (default {ROWS}; 0: all)"
)
@click.option("--type", "types", multiple=True, metavar="OP", help="only this op; may be repeated")
@click.option(
    "--opr-name", "op_name", metavar="REGEX", help="only ops whose name matches from its start"
)
@click.option(
    "--input-dtype", metavar="DTYPE", help="only ops with an input of this type (fp16, float, ...)"
)
@click.option(
    "--aggregate-by",
    type=click.Choice(["type", "name"]),
    help="a row per op (type), or per op at its place in the model (name)",
)
@click.option(
    "--aggregate",
    type=click.Choice(["sum", "mean", "max", "min"]),
    help="how the calls of a row are combined (default: sum)",
)
@click.option(
    "--order-by",
    default="time",
    metavar="[+-]COLUMN",
    help="sort by this column, largest first; +COLUMN: smallest first (default: time)",
)
@click.option(
    "--min-time",
    "min_ns",
    type=Seconds(),
    help="only calls that take at least this long, such as 10us or 1e-5 (seconds)",
)
@click.option("--max-time", "max_ns", type=Seconds(), help="only calls that take at most this long")
@click.option(
    "--print-only",
    type=click.Choice(["summary", "device", "host"]),
    help="print only this part (default: summary and device; without a GPU, summary and host)",
)
@click.option("--show-host", is_flag=True, help="print the host's part as well")
@click.option("--copy-time", is_flag=True, help="has no effect: the summary always has it")
@click.option(
    "--top-end-key",
    type=click.Choice(["end", "kern"]),
    default="end",
    help="end: times end with the kernel; for kern, see `gpuprof launches`",
)
@click.option(
    "--dump-only-opr", is_flag=True, help="print only names and types, one op per line, to diff"
)
@click.option(
    "--confluence", "--wiki", is_flag=True, help="print tables that wikis and Markdown take"
)
@files.window_options
@files.export_options
def analyze(
    *,
    trace: str,
    top: int | None,
    aggregate_by: str | None,
    aggregate: str | None,
    print_only: str | None,
    show_host: bool,
    copy_time: bool,  # always in the summary
    top_end_key: str,
    dump_only_opr: bool,
    confluence: bool,
    window: tuple[int, int] | None,
    step: int | None,
    **given: Any,
) -> None:
    """List or aggregate the ops of TRACE: time, work, speed and shapes.

    Device self time is the GPU work that an op launched. Host self time is its CPU time. FLOPs and
    bytes come from recorded shapes (--shapes).
    """
    from gpuprof_widgets.analyses.analyze import analyze as analysis
    from gpuprof_widgets.analyses.analyze import op_totals
    from gpuprof_widgets.analyses.reasons import why_empty
    from gpuprof_widgets.commands.printing import print_markdown, terminal_table

    if top_end_key == "kern":
        raise click.UsageError(
            "`gpuprof launches TRACE` shows how long each kernel waited after its launch "
            "(queue); the times here end with the kernel (--top-end-key end)"
        )
    if aggregate is not None and aggregate_by is None:
        raise click.UsageError("--aggregate needs groups: add --aggregate-by type or name")
    targets = {name: given.pop(name) for name in files.FORMATS}
    given |= {"by": aggregate_by or "call", "aggregate": aggregate or "sum"}
    profile = files.load(trace, window, step)
    with files.progress("computing the op analysis"):
        tables = {} if print_only in ("device", "host") else {"summary": op_totals(profile)}
        if print_only != "summary":
            side = print_only or ("device" if len(profile.trace.index.gpu) else "host")
            for part in [side, "host"] if show_host and print_only is None else [side]:
                tables[part] = analysis(profile, side=part, **given)
    if dump_only_opr:
        tables.pop("summary", None)
    is_file = any(targets.values())
    shown = list(tables)[-1:] if is_file else list(tables)  # a file holds one table
    for number, name in enumerate(shown):
        table = tables[name]
        first = table.head(ROWS if top is None else top or len(table))
        if len(shown) > 1 and not dump_only_opr:
            click.echo("\n" * (number > 0) + name)
        if is_file or why_empty(table) or not (dump_only_opr or confluence):
            show_or_export(table, top=sys.maxsize if top == 0 else top, targets=targets)
        elif dump_only_opr:
            # The name and type of each op, or of each group the calls: nothing that varies.
            columns = ["name", "type"] if "row" in table else ["name", "calls"]
            for pair in (table if top is None else first)[columns].itertuples(index=False):
                click.echo(printable(" ".join(dict.fromkeys(map(str, pair)))))
        else:
            print_markdown(terminal_table(first))
