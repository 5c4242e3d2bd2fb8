"""A table to a file or to standard output: whole, in full precision, times in ns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuprof_widgets.commands.outputs import OutputFile
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.printable import SOURCE, printable
from gpuprof_widgets.trace.files import write_whole
from gpuprof_widgets.trace.writers.tables import TABLE_FORMATS

STDOUT = "-"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FORMATS = tuple(TABLE_FORMATS)
"""The file formats of tables, as the options that ask for them are called."""


def export_options(command: Decorated) -> Decorated:
    """Add ``--csv FILE`` and the like for every format of tables; ``-`` is standard output."""
    for name in reversed(FORMATS):
        command = click.option(
            f"--{name}",
            type=OutputFile(),
            metavar="FILE",
            help=f"write the table as a .{name} file; -: to standard output",
        )(command)
    return command


def export(table: Any, targets: dict[str, str | None]) -> bool:
    """Write the table to every target that is given, by format; whether there was any."""
    wanted = {name: target for name, target in targets.items() if target is not None}
    if list(wanted.values()).count(STDOUT) > 1:
        raise click.UsageError("only one table can go to standard output")
    for name, target in wanted.items():
        write_bytes(TABLE_FORMATS[name](table), target)
    return bool(wanted)


def write_bytes(data: bytes, target: str) -> None:
    """To this file, whole or not at all, or to standard output."""
    if target != STDOUT:
        write_whole(Path(target), lambda file: file.write(data))
        return
    if sys.stdout.isatty():
        data = _for_terminal(data)
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _for_terminal(data: bytes) -> bytes:
    """The text without the control codes that names may hold; a pipe gets them as they are."""
    try:
        return printable(data.decode(), keep=SOURCE).encode()
    except UnicodeDecodeError:
        raise OptionError("this is not for a terminal: name a file, or pipe it on") from None
