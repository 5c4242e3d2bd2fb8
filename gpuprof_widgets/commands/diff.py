"""`gpuprof diff A B`: what changed from one run to another."""

from __future__ import annotations

from typing import Any

import click

from gpuprof_widgets.commands.outputs import Writing
from gpuprof_widgets.commands.reports import answer, check, report_options
from gpuprof_widgets.commands.traces import load, trace_argument

TABLES = ("ops", "kernels", "modules", "lines", "functions", "breakdown", "steps", "call_tree")
"""What ``--table`` can name: methods of `Comparison`."""


@click.command(
    "diff",
    cls=Writing,
    epilog="\b\nExamples:\n  gpuprof diff before.gpuprof after.gpuprof\n"
    "  gpuprof diff before.json.gz after.json.gz -o diff.html\n"
    "  gpuprof diff before.gpuprof after.gpuprof --table kernels --top 5",
)
@trace_argument("before", metavar="A")
@trace_argument("after", metavar="B")
@click.option(
    "--per",
    type=click.Choice(["step", "run"]),
    help="compare an average step, or the whole runs (default: steps where both have any)",
)
@report_options(TABLES)
def diff(before: str, after: str, per: str | None, **given: Any) -> None:
    """Compare two runs: what is added, gone, more, less, or noise. Differences are B less A."""
    check(TABLES, **given)
    from gpuprof_widgets.comparisons import Comparison

    a, b = (load(run, one_of_several=True) for run in (before, after))
    answer(Comparison(a, b, per), **given)
