"""The commands that report: `gpuprof view`, `findings`, `convert`, `diff` and `ranks`.

``view`` writes the page of a trace, ``findings`` prints its sentences, and ``convert`` writes it in
another format, given by the ending of a name. ``diff`` and ``ranks`` compare several traces, as
words, as a page, or as one of its tables (`report_options`, `answer`).
"""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from gpuprof_widgets.commands import files
from gpuprof_widgets.commands.analysis import show_or_export
from gpuprof_widgets.exceptions import OptionError, printable
from gpuprof_widgets.exports import WRITERS, export, part_of, with_ranges_in, writer_for
from gpuprof_widgets.trace.remote import path_of

if TYPE_CHECKING:
    import pandas as pd

    from gpuprof_widgets.comparisons import Comparison
    from gpuprof_widgets.many_ranks.profiles import RankProfiles
SHOWN = 5
"""Findings that are printed without ``--all``, as many as the page shows unfolded."""

WIDTH = 79

CHROME_TRACE = WRITERS["chrome"]

DIFF_TABLES = ("ops", "kernels", "modules", "lines", "functions", "breakdown", "steps", "call_tree")
"""Values of ``--table``: methods of `Comparison`."""

RANKS_TABLES = (
    "stragglers",
    "waits",
    "breakdown",
    "steps",
    "collectives",
    "functions",
    "alignment",
)
"""Values of ``--table``: methods of `RankProfiles`."""


@click.command(
    "view",
    cls=files.Writing,
    epilog="\b\nExample:\n  gpuprof view trace.json.gz -o report.html --no-open",
)
@files.trace_argument()
@click.option(
    "-o",
    "--output",
    type=files.OutputFile(),
    metavar="FILE",
    help="write the page here; -: to standard output (default: a temporary file)",
)
@click.option(
    "--open/--no-open", "opens", default=None, help="open it in a browser (default: without -o)"
)
@files.window_options
def view(
    trace: str,
    output: str | None,
    opens: bool | None,
    window: tuple[int, int] | None,
    step: int | None,
) -> None:
    """Write the linked views of TRACE as one HTML page that needs no server and no network."""
    profile = files.load(trace, window, step)
    with files.progress("drawing"):
        page = profile.report().encode()
    if output is None:  # it stays until the system clears its temporary folder
        stem = path_of(trace).name.partition(".")[0] or "gpuprof"
        target = str(Path(tempfile.mkdtemp(prefix="gpuprof-"), f"{stem}.html"))
    else:
        target = output
    files.write_bytes(page, target)
    if target == files.STDIO:
        return
    click.echo(printable(target))
    if opens or (opens is None and output is None):
        webbrowser.open(Path(target).absolute().as_uri())


@click.command(
    "findings",
    epilog="\b\nExample:\n  gpuprof findings trace.json.gz --limit dataloader_share=0.1 --all",
)
@files.trace_argument()
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="change a threshold (a name that is none, as all=0, lists the names); may be repeated",
)
@click.option(
    "--all", "every", is_flag=True, help=f"print all findings, not just the first {SHOWN}"
)
@files.window_options
def findings(
    trace: str,
    limits: tuple[str, ...],
    every: bool,
    window: tuple[int, int] | None,
    step: int | None,
) -> None:
    """Say why TRACE is slow: the costliest reason first, each with what to do about it."""
    from gpuprof_widgets.analyses.findings.places import lack_of_places
    from gpuprof_widgets.commands.printing import print_text

    thresholds = dict(map(_threshold, limits))
    whole = files.load(trace)
    profile = files.part_of(whole, window, step)
    with files.progress("looking for what is slow"):
        ranked = profile.findings(**thresholds)
    shown = ranked if every else ranked[:SHOWN]
    lines: list[str] = []
    for number, finding in enumerate(shown, 1):
        start = f"{number}. "
        indent = " " * len(start)
        lines += wrap(finding.text, WIDTH, initial_indent=start, subsequent_indent=indent)
        lines += wrap(finding.remedy, WIDTH, initial_indent=indent, subsequent_indent=indent)
    if len(shown) < len(ranked):
        lines.append(f"{len(ranked) - len(shown)} more: --all")
    print_text("\n".join(lines or ["nothing stands out"]))
    files.print_notes([note for note in [lack_of_places(whole)] if note])


def _threshold(text: str) -> tuple[str, float]:
    """Parse ``NAME=VALUE``; `Profile.findings` checks the name."""
    from gpuprof_widgets.analyses.findings import FINDINGS
    from gpuprof_widgets.analyses.findings.thresholds import thresholds_of

    name, equals, value = text.partition("=")
    whole = isinstance(thresholds_of(*FINDINGS.values()).get(name), int)
    try:
        return name, int(value) if whole else float(value if equals else "none")
    except ValueError:
        raise OptionError(f"--limit takes NAME=VALUE with a number, not {text!r}") from None


class NamedRange(click.ParamType):  # type: ignore[type-arg]  # click 8.1 takes none
    """A name and a range of a trace, as ``slow=1.5ms:3ms``."""

    name = "NAME=T0:T1"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, int]]:
        if isinstance(value, tuple):
            return value
        name, equals, times = str(value).rpartition("=")
        if not equals or not name:
            self.fail("a range has a name and two times of the trace, as slow=1.5ms:3ms")
        return name, files.Window().convert(times, param, ctx)


def _help_of_convert() -> str:
    """Return the endings and what each means."""
    rows = [(" ".join(writer.endings), writer.name) for writer in WRITERS.values()]
    width = max(len(endings) for endings, _ in rows)
    lines = "\n".join(f"{endings:{width}}  {name}" for endings, name in rows)
    return (
        "Convert SOURCE to TARGET; the ending of TARGET chooses the format.\n\n"
        f"\b\n{lines}\n\nIf TARGET is -, standard output gets {CHROME_TRACE.name}."
    )


def _choices() -> str:
    """Return the choices of each format; formats with the same choices share one text."""
    endings: dict[str, list[str]] = defaultdict(list)
    for writer in WRITERS.values():
        endings[writer.choice].append(writer.endings[0])
    return "; ".join(f"for {', '.join(endings[words])}: {words}" for words in endings if words)


@click.command(
    "convert",
    cls=files.Writing,
    help=_help_of_convert(),
    epilog="\b\nExamples:\n  gpuprof convert run.gpuprof run.json.gz\n"
    "  gpuprof convert run.gpuprof timeline.svg --what timeline\n"
    "  gpuprof convert run.gpuprof gpu.collapsed --what device\n"
    "  gpuprof convert run.gpuprof to_share.gpuprof --redact\n"
    "  gpuprof convert run.gpuprof - > run.json",
)
@files.trace_argument("source")
@click.argument("target", type=files.OutputFile())
@click.option("--what", metavar="NAME", help=_choices())
@click.option(
    "--range",
    "ranges",
    type=NamedRange(),
    multiple=True,
    help="mark this range on a separate track; may be repeated",
)
@click.option(
    "--redact",
    is_flag=True,
    help="leave out host and user names, folders, environment and source code",
)
@files.window_options
def convert(
    source: str,
    target: str,
    what: str | None,
    ranges: tuple[tuple[str, tuple[int, int]], ...],
    redact: bool,
    window: tuple[int, int] | None,
    step: int | None,
) -> None:
    writer = CHROME_TRACE if target == files.STDIO else writer_for(target)
    part = part_of(writer, what, target)
    profile = files.load(source, window, step)
    with files.progress(f"writing {target}"):
        if redact:
            profile = profile.redacted()
        if target != files.STDIO:
            export(
                profile,
                target,
                what=part or None,
                ranges=dict(ranges),
                say=lambda note: click.echo(f"note: {printable(note)}", err=True),
            )
            return
        sys.stdout.flush()
        writer.write(with_ranges_in(profile, dict(ranges)), part, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def report_options(tables: Sequence[str]) -> Callable[[files.Decorated], files.Decorated]:
    """Add ``-o FILE`` for the page, and ``--table NAME`` with the options of tables."""
    options = (
        click.option(
            "-o",
            "--output",
            type=files.OutputFile(),
            metavar="FILE",
            help="write the page with all views here; -: to standard output",
        ),
        click.option("--table", type=click.Choice(tables), help="print one table instead"),
        click.option("--sort", metavar="KEY", help="column that sorts the table; +KEY: ascending"),
        click.option(
            "--top", type=click.IntRange(min=1), metavar="N", help="rows of the table to keep"
        ),
        files.export_options,
    )

    def decorate(command: files.Decorated) -> files.Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def check(tables: Sequence[str], **given: Any) -> None:
    """Raise a usage error before anything is read, if options are for a table that is not named."""
    asked = [name for name in ("sort", "top", *files.FORMATS) if given[name] is not None]
    if asked and given["table"] is None:
        raise click.UsageError(f"--{asked[0]} needs a table: add --table {'|'.join(tables)}")


def answer(report: Comparison | RankProfiles, *, notes: Sequence[str] = (), **given: Any) -> None:
    """Write the page, print the chosen table, or print the words."""
    from gpuprof_widgets.commands.printing import print_text, sorted_by

    table, sort, output = given["table"], given["sort"], given["output"]
    if output is not None:
        with files.progress("drawing"):
            page = report.report().encode()
        files.write_bytes(page, output)
        if table is None:
            files.print_notes(notes)
    if table is not None:
        with files.progress(f"computing {table}"):
            rows: pd.DataFrame = getattr(report, table)()
        rows = rows if sort is None else sorted_by(rows, sort)
        targets = {name: given[name] for name in files.FORMATS}
        show_or_export(rows, top=given["top"], sort=sort, targets=targets, notes=notes)
    elif output is None:
        print_text(report._repr_mimebundle_()["text/plain"])


@click.command(
    "diff",
    cls=files.Writing,
    epilog="\b\nExamples:\n  gpuprof diff before.gpuprof after.gpuprof\n"
    "  gpuprof diff before.json.gz after.json.gz -o diff.html\n"
    "  gpuprof diff before.gpuprof after.gpuprof --table kernels --top 5",
)
@files.trace_argument("before", metavar="A")
@files.trace_argument("after", metavar="B")
@click.option(
    "--per",
    type=click.Choice(["step", "run"]),
    help="compare an average step, or the whole runs (default: step, if both runs have steps)",
)
@report_options(DIFF_TABLES)
def diff(before: str, after: str, per: str | None, **given: Any) -> None:
    """Compare two runs: what was added, is gone, takes more, takes less, or is noise.

    A is before, B is after; differences are B minus A.
    """
    check(DIFF_TABLES, **given)
    from gpuprof_widgets.comparisons import Comparison

    a, b = (files.load(run, one_of_several=True) for run in (before, after))
    answer(Comparison(a, b, per), **given)


@click.command(
    "ranks",
    cls=files.Writing,
    epilog="\b\nExamples:\n  gpuprof ranks traces/\n"
    "  gpuprof ranks 'run.rank*.gpuprof' -o ranks.html\n"
    "  gpuprof ranks traces/ --table stragglers --csv -",
)
@click.argument("paths", nargs=-1, required=True, type=files.InputPath())
@click.option("--cluster", metavar="ADDRESS", help="read the files on this Dask cluster")
@report_options(RANKS_TABLES)
def ranks(paths: tuple[str, ...], cluster: str | None, **given: Any) -> None:
    """Compare the ranks of one run: who was late, who waited, who moved data.

    PATHS: the folder with the files of all ranks, a glob, or the files. They are profiles, traces,
    databases of nvprof and Nsight Systems, or files of cProfile.
    """
    check(RANKS_TABLES, **given)
    from gpuprof_widgets.many_ranks.profiles import ranks as read

    profiles = read(paths[0] if len(paths) == 1 else list(paths), cluster=cluster)
    answer(profiles, notes=profiles.notes, **given)
