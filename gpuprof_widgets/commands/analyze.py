"""`gpuprof analyze TRACE`: what MegEngine's profile_analyze answers, under the same options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuprof_widgets.commands.analysis import ROWS, show_or_export
from gpuprof_widgets.commands.exports import FORMATS, export_options
from gpuprof_widgets.commands.outputs import Writing
from gpuprof_widgets.commands.traces import (
    Time,
    load,
    progress,
    trace_argument,
    window_options,
)

if TYPE_CHECKING:
    import pandas as pd

    from gpuprof_widgets.profiles import Profile


@click.command(
    "analyze",
    cls=Writing,
    epilog="\b\nExamples:\n  gpuprof analyze trace.json.gz --aggregate-by type --top 10\n"
    "  gpuprof analyze trace.json.gz --type aten::addmm --order-by -computation --min-time 10us",
)
@trace_argument()
@click.option("-t", "--top", type=click.IntRange(min=1), metavar="N", help=f"rows (default {ROWS})")
@click.option("--type", "types", multiple=True, metavar="OP", help="only this op; may be repeated")
@click.option(
    "--input-dtype", metavar="DTYPE", help="only ops with such an input, as fp16 or float"
)
@click.option(
    "--aggregate-by", type=click.Choice(["type", "name"]), help="a row per op, or op in its module"
)
@click.option(
    "--aggregate", type=click.Choice(["sum", "mean", "max", "min"]), help="how (default: sum)"
)
@click.option(
    "--order-by",
    default="time",
    metavar="[+-]COLUMN",
    help="largest first, or with + smallest first (default: time)",
)
@click.option("--min-time", "min_ns", type=Time(), help="only calls that take as long, as 10us")
@click.option("--max-time", "max_ns", type=Time(), help="only calls that take no longer")
@click.option(
    "--print-only",
    type=click.Choice(["summary", "device", "host"]),
    help="one part (default: summary and device; without a GPU, host)",
)
@window_options
@export_options
def analyze(**given: Any) -> None:
    """Ops of TRACE one by one, or added up: time, work, speed and shapes.

    Device self time is the GPU work that an op launched, host self time its CPU time; FLOPs and
    bytes come from recorded shapes (--shapes).
    """
    targets = {name: given.pop(name) for name in FORMATS}
    part, top = given.pop("print_only"), given.pop("top")
    place = given.pop("trace"), given.pop("window"), given.pop("step")
    asked = _keywords(**given)
    profile = load(*place)
    with progress("computing the op analysis"):
        tables = _tables(profile, part, **asked)
    shown = list(tables)
    if any(targets.values()):
        shown = shown[-1:]  # a file holds one table
    for number, name in enumerate(shown):
        if len(shown) > 1:
            click.echo("\n" * (number > 0) + name)
        show_or_export(tables[name], top=top, targets=targets)


def _keywords(*, aggregate_by: str | None, aggregate: str | None, **rest: Any) -> dict[str, Any]:
    if aggregate is not None and aggregate_by is None:
        raise click.UsageError("--aggregate adds up what --aggregate-by type or name groups")
    return {**rest, "by": aggregate_by or "call", "aggregate": aggregate or "sum"}


def _tables(profile: Profile, part: str | None, **given: Any) -> dict[str, pd.DataFrame]:
    """The parts that are asked for, by their headings."""
    from gpuprof_widgets.analyses.analyze import analyze as analysis
    from gpuprof_widgets.analyses.analyze import op_totals
    from gpuprof_widgets.analyses.op_rows import gpu_rows

    tables = {} if part in ("device", "host") else {"summary": op_totals(profile)}
    if part != "summary":
        side = part or ("device" if len(gpu_rows(profile.trace)) else "host")
        tables[side] = analysis(profile, side=side, **given)
    return tables
