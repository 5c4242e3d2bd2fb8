"""`gpuprof ranks DIR`: the ranks of a distributed run, side by side."""

from __future__ import annotations

from typing import Any

import click

from gpuprof_widgets.commands.outputs import InputPath, Writing
from gpuprof_widgets.commands.reports import answer, check, report_options

TABLES = ("stragglers", "waits", "breakdown", "steps", "collectives", "functions", "alignment")
"""What ``--table`` can name: methods of what `gpuprof_widgets.ranks()` returns."""


@click.command(
    "ranks",
    cls=Writing,
    epilog="\b\nExamples:\n  gpuprof ranks traces/\n"
    "  gpuprof ranks 'run.rank*.gpuprof' -o ranks.html\n"
    "  gpuprof ranks traces/ --table stragglers --csv -",
)
@click.argument("paths", nargs=-1, required=True, type=InputPath())
@click.option("--cluster", metavar="ADDRESS", help="read the files on this Dask cluster")
@report_options(TABLES)
def ranks(paths: tuple[str, ...], cluster: str | None, **given: Any) -> None:
    """Compare the ranks of one run: who was late, who waited, who moved data.

    PATHS: the folder with the files of all ranks (profiles, traces, databases of nvprof and Nsight
    Systems, files of cProfile), a glob, or the files.
    """
    check(TABLES, **given)
    from gpuprof_widgets.many_ranks import ranks as read

    found = read(paths[0] if len(paths) == 1 else list(paths), cluster=cluster)
    answer(found, notes=found.notes, **given)
