"""`gpuprof analyze TRACE`: MegEngine's profile_analyze, with the same options."""

from __future__ import annotations

import sys
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import click

from gpuprof_widgets.commands.analysis import ROWS, show_or_export
from gpuprof_widgets.commands.outputs import FORMATS, Writing, export_options
from gpuprof_widgets.commands.traces import Time, load, progress, trace_argument, window_options
from gpuprof_widgets.exceptions import printable

if TYPE_CHECKING:
    import pandas as pd

    from gpuprof_widgets.profiles import Profile


class Seconds(Time):
    """A time; without a unit it is in seconds, as for `profile_analyze` (``1e-4``)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(Decimal(str(value)) * 10**9)
        except (InvalidOperation, OverflowError, ValueError):  # a unit, or no (finite) number
            return super().convert(value, param, ctx)


@click.command(
    "analyze",
    cls=Writing,
    epilog="\b\nExamples:\n  gpuprof analyze trace.json.gz --aggregate-by type --top 10\n"
    "  gpuprof analyze trace.json.gz --type aten::addmm --order-by -computation --min-time 10us",
)
@trace_argument()
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
@window_options
@export_options
def analyze(**given: Any) -> None:
    """List or aggregate the ops of TRACE: time, work, speed and shapes.

    Device self time is the GPU work that an op launched. Host self time is its CPU time. FLOPs and
    bytes come from recorded shapes (--shapes).
    """
    from gpuprof_widgets.analyses.reasons import why_empty

    targets = {name: given.pop(name) for name in FORMATS}
    as_lines, as_wiki = given.pop("dump_only_opr"), given.pop("confluence")
    part, top, has_host = given.pop("print_only"), given.pop("top"), given.pop("show_host")
    place = given.pop("trace"), given.pop("window"), given.pop("step")
    del given["copy_time"]
    asked = _keywords(**given)
    profile = load(*place)
    with progress("computing the op analysis"):
        tables = _tables(profile, part, has_host, **asked)
    if as_lines:
        tables.pop("summary", None)
    shown = list(tables)
    if any(targets.values()):
        shown = shown[-1:]  # a file holds one table
    top = sys.maxsize if top == 0 else top
    as_text = None if any(targets.values()) else _lines if as_lines else _wiki if as_wiki else None
    for number, name in enumerate(shown):
        if len(shown) > 1 and not as_lines:
            click.echo("\n" * (number > 0) + name)
        if as_text is not None and not why_empty(tables[name]):
            as_text(tables[name], top)
        else:
            show_or_export(tables[name], top=top, targets=targets)


def _keywords(
    *, aggregate_by: str | None, aggregate: str | None, top_end_key: str, **rest: Any
) -> dict[str, Any]:
    if top_end_key == "kern":
        raise click.UsageError(
            "`gpuprof launches TRACE` shows how long each kernel waited after its launch "
            "(queue); the times here end with the kernel (--top-end-key end)"
        )
    if aggregate is not None and aggregate_by is None:
        raise click.UsageError("--aggregate needs groups: add --aggregate-by type or name")
    return {**rest, "by": aggregate_by or "call", "aggregate": aggregate or "sum"}


def _tables(
    profile: Profile, part: str | None, has_host: bool, **given: Any
) -> dict[str, pd.DataFrame]:
    """Return the chosen parts by their headings."""
    from gpuprof_widgets.analyses.analyze import analyze as analysis
    from gpuprof_widgets.analyses.analyze import op_totals

    tables = {} if part in ("device", "host") else {"summary": op_totals(profile)}
    if part != "summary":
        side = part or ("device" if len(profile.trace.index.gpu) else "host")
        sides = [side, "host"] if has_host and part is None else [side]
        tables |= {side: analysis(profile, side=side, **given) for side in sides}
    return tables


def _lines(table: pd.DataFrame, top: int | None) -> None:
    """Print the name and type of each op, or of each group the calls: nothing that varies."""
    columns = ["name", "type"] if "row" in table else ["name", "calls"]
    for pair in table[columns].head(sys.maxsize if top is None else top).itertuples(index=False):
        click.echo(printable(" ".join(dict.fromkeys(map(str, pair)))))


def _wiki(table: pd.DataFrame, top: int | None) -> None:
    from gpuprof_widgets.commands.printing import print_markdown, terminal_table

    print_markdown(terminal_table(table.head(ROWS if top is None else top)))
