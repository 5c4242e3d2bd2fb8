"""`gpuprof view TRACE`: the linked views as one HTML page."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path

import click

from gpuprof_widgets.commands.exports import STDOUT, write_bytes
from gpuprof_widgets.commands.outputs import OutputFile, Writing
from gpuprof_widgets.commands.traces import load, progress, trace_argument, window_options
from gpuprof_widgets.printable import printable


@click.command(
    "view",
    cls=Writing,
    epilog="\b\nExample:\n  gpuprof view trace.json.gz -o report.html --no-open",
)
@trace_argument()
@click.option(
    "-o",
    "--output",
    type=OutputFile(),
    metavar="FILE",
    help="write the page here; -: to standard output (default: a temporary file)",
)
@click.option(
    "--open/--no-open", "opens", default=None, help="open it in a browser (default: without -o)"
)
@window_options
def view(
    trace: str,
    output: str | None,
    opens: bool | None,
    window: tuple[int, int] | None,
    step: int | None,
) -> None:
    """Write the linked views of TRACE as one HTML page, which needs no server and no network."""
    profile = load(trace, window, step)
    with progress("drawing"):
        page = profile.report().encode()
    target = output or _temporary(trace)
    write_bytes(page, target)
    if target == STDOUT:
        return
    click.echo(printable(target))
    if opens or (opens is None and output is None):
        webbrowser.open(Path(target).absolute().as_uri())


def _temporary(trace: str) -> str:
    """A file that stays until the system clears its temporary folder: the browser reads it."""
    stem = Path(trace).name.partition(".")[0] or "gpuprof"
    return str(Path(tempfile.mkdtemp(prefix="gpuprof-"), f"{stem}.html"))
