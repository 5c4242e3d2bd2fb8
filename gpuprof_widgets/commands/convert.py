"""`gpuprof convert A B`: a trace in another format, given by the ending of B."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import click

from gpuprof_widgets.commands.outputs import STDIO, OutputFile, Writing
from gpuprof_widgets.commands.traces import Window, load, progress, trace_argument, window_options
from gpuprof_widgets.exceptions import printable
from gpuprof_widgets.exports import WRITERS, export, part_of, with_ranges_in, writer_for

CHROME_TRACE = WRITERS["chrome"]


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
        return name, Window().convert(times, param, ctx)


def _help() -> str:
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


def _say(note: str) -> None:
    click.echo(f"note: {printable(note)}", err=True)


@click.command(
    "convert",
    cls=Writing,
    help=_help(),
    epilog="\b\nExamples:\n  gpuprof convert run.gpuprof run.json.gz\n"
    "  gpuprof convert run.gpuprof timeline.svg --what timeline\n"
    "  gpuprof convert run.gpuprof gpu.collapsed --what device\n"
    "  gpuprof convert run.gpuprof to_share.gpuprof --redact\n"
    "  gpuprof convert run.gpuprof - > run.json",
)
@trace_argument("source")
@click.argument("target", type=OutputFile())
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
@window_options
def convert(
    source: str,
    target: str,
    what: str | None,
    ranges: tuple[tuple[str, tuple[int, int]], ...],
    redact: bool,
    window: tuple[int, int] | None,
    step: int | None,
) -> None:
    writer = CHROME_TRACE if target == STDIO else writer_for(target)
    part = part_of(writer, what, target)
    profile = load(source, window, step)
    with progress(f"writing {target}"):
        if redact:
            profile = profile.redacted()
        if target != STDIO:
            export(profile, target, what=part or None, ranges=dict(ranges), say=_say)
            return
        sys.stdout.flush()
        writer.write(with_ranges_in(profile, dict(ranges)), part, sys.stdout.buffer)
        sys.stdout.buffer.flush()
