"""`gpuprof convert A B`: a trace in another format, which the name of B says."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from gpuprof_widgets.commands.exports import STDOUT, write_bytes
from gpuprof_widgets.commands.outputs import OutputFile, Writing
from gpuprof_widgets.commands.traces import load, progress, trace_argument, window_options
from gpuprof_widgets.exceptions import OptionError

if TYPE_CHECKING:
    from gpuprof_widgets.profiles import Profile


def _archive(profile: Profile, target: str) -> None:
    profile.save(target)


def _json(profile: Profile, target: str) -> None:
    from gpuprof_widgets.trace.chrome_writer import chrome_trace

    write_bytes(b"".join(chrome_trace(profile.trace)), target)


def _packed_json(profile: Profile, target: str) -> None:
    from gpuprof_widgets.trace.chrome_writer import chrome_trace

    write_bytes(gzip.compress(b"".join(chrome_trace(profile.trace)), mtime=0), target)


def _prof(profile: Profile, target: str) -> None:
    profile.save_pstats(target)


def _page(profile: Profile, target: str) -> None:
    write_bytes(profile.report().encode(), target)


WRITERS: dict[str, Callable[[Profile, str], None]] = {
    ".gpuprof": _archive,
    ".zip": _archive,
    ".json.gz": _packed_json,
    ".json": _json,
    ".prof": _prof,
    ".pstats": _prof,
    ".html": _page,
}
"""How a file is written, by the end of its name; the first that fits."""


_HELP = """Write SOURCE as TARGET, in the format that the end of its name says.

\b
.gpuprof        everything, as `gpuprof run -o` writes it
.json .json.gz  a Chrome trace for Perfetto; -: the same to standard output
.prof           the Python calls, for pstats and snakeviz
.html           the linked views"""


@click.command(
    "convert",
    cls=Writing,
    help=_HELP,
    epilog="\b\nExample:\n  gpuprof convert run.gpuprof run.json.gz\n"
    "  gpuprof convert run.gpuprof - > run.json",
)
@trace_argument("source")
@click.argument("target", type=OutputFile())
@window_options
def convert(source: str, target: str, window: tuple[int, int] | None, step: int | None) -> None:
    write = _writer(target)
    profile = load(source, window, step)
    with progress(f"writing {target}"):
        write(profile, target)


def _writer(target: str) -> Callable[[Profile, str], None]:
    if target == STDOUT:
        return _json
    found = (write for end, write in WRITERS.items() if target.lower().endswith(end))
    write = next(found, None)
    if write is None:
        raise OptionError(f"{target}: what to write is said by its end: {', '.join(WRITERS)}")
    return write
