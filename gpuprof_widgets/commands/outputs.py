"""The files that a command writes: checked before it runs, and written whole or not at all.

A command with parameters of the types `InputPath` and `OutputFile` has the class `Writing`, which
refuses to overwrite inputs and read-only files before anything is read or run. `export_options` and
`export` write tables in full precision, times in ns.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuprof_widgets.exceptions import SOURCE, OptionError, TraceError, printable
from gpuprof_widgets.trace.files import write_whole
from gpuprof_widgets.trace.remote import is_url, path_of
from gpuprof_widgets.trace.writers.tables import TABLE_FORMATS

STDIO = "-"
"""Standard input among the inputs, standard output among the outputs."""

FORMATS = tuple(TABLE_FORMATS)
"""The file formats of tables, which are also the names of the options that ask for them."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class InputPath(click.Path):
    """An input of a command: a file, a folder or a glob of files, a URL of these, or ``-``."""

    def __init__(self) -> None:
        super().__init__(allow_dash=True)


class OutputFile(click.Path):
    """A file that a command writes, or ``-``."""

    def __init__(self) -> None:
        super().__init__(allow_dash=True, dir_okay=False)


class Writing(click.Command):
    """A command that refuses, before it begins, to write over what it reads."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check the files, then run the command."""
        outputs, inputs = _values(ctx, OutputFile), _values(ctx, InputPath)
        check_outputs(outputs, inputs)
        return super().invoke(ctx)


def _values(ctx: click.Context, kind: type[click.Path]) -> list[str]:
    """Return the paths given for the parameters of this type."""
    parameters = [p for p in ctx.command.params if isinstance(p.type, kind)]
    values = [ctx.params.get(parameter.name or "") for parameter in parameters]
    given = [value for value in values if value is not None]
    return [path for value in given for path in (value if isinstance(value, tuple) else (value,))]


def check_outputs(outputs: Iterable[str], inputs: Iterable[str]) -> None:
    """Raise an `OptionError` if an output exists and must not be replaced.

    These must not be replaced: an input (under any name, such as a link or another spelling of its
    path), a file that nobody may write (root could replace it all the same), and anything but a
    regular file, such as ``/dev/stdout``.
    """
    existing = [(path, state) for path in outputs if path != STDIO and (state := _state(path))]
    if not existing:
        return
    read = [state for path in inputs for state in _states(path)]
    for path, state in existing:
        if any(os.path.samestat(state, input_state) for input_state in read):
            raise OptionError(f"{path}: this is the input, and is not overwritten; name another")
        if not stat.S_ISREG(state.st_mode):
            raise OptionError(
                f"{path}: this is not a regular file; name one, or - if the output can be piped"
            )
        if not state.st_mode & 0o222:
            raise OptionError(f"{path}: this file is read-only; name another, or make it writable")


def _states(path: str) -> Iterator[os.stat_result]:
    """Yield the state of every file of this machine that the input stands for."""
    path = path if path == STDIO else str(path_of(path))
    if path == STDIO:
        with suppress(OSError, ValueError):  # no file of the system, as in tests
            yield os.fstat(sys.stdin.fileno())
    elif is_url(path):
        return
    elif state := _state(path):
        files = _files_in(path) if stat.S_ISDIR(state.st_mode) else [path]
        yield from filter(None, map(_state, files))
    else:
        yield from filter(None, map(_state, _files_in(path)))


def _files_in(path: str) -> list[Path]:
    """Return the traces of a folder by name, else all of its files; or the files of a glob."""
    from gpuprof_widgets.many_ranks.files import trace_files

    try:
        return trace_files(path)
    except TraceError:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise
        return list(folder.iterdir())


def _state(path: str | Path) -> os.stat_result | None:
    try:
        return Path(path).expanduser().stat()
    except OSError:
        return None


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
    """Write the table to every given target, by format; return whether there was any."""
    wanted = {name: target for name, target in targets.items() if target is not None}
    if list(wanted.values()).count(STDIO) > 1:
        raise click.UsageError("only one table can go to standard output")
    for name, target in wanted.items():
        write_bytes(TABLE_FORMATS[name](table), target)
    return bool(wanted)


def write_bytes(data: bytes, target: str) -> None:
    """Write to this file, whole or not at all, or to standard output."""
    if target != STDIO:
        write_whole(Path(target), lambda file: file.write(data))
        return
    if sys.stdout.isatty():
        data = _for_terminal(data)
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _for_terminal(data: bytes) -> bytes:
    """Return the text without the control codes that names may hold; a pipe gets them unchanged."""
    try:
        return printable(data.decode(), keep=SOURCE).encode()
    except UnicodeDecodeError:
        raise OptionError(
            "the output is binary, not for a terminal: name a file, or pipe it"
        ) from None
