"""The files that a command writes: none of them is one that it reads, or one that is kept as it is.

A command whose files are of the types `InputPath` and `OutputFile` is of the class `Writing`, which
looks at them before anything is read or run.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuprof_widgets.exceptions import SOURCE, OptionError, TraceError, printable
from gpuprof_widgets.trace.files import write_whole
from gpuprof_widgets.trace.writers.tables import TABLE_FORMATS

STD = "-"
"""Standard input among the inputs, standard output among the outputs."""


class InputPath(click.Path):
    """What a command reads: a file, a folder or a glob of files, or ``-``."""

    def __init__(self) -> None:
        super().__init__(allow_dash=True)


class OutputFile(click.Path):
    """A file that a command writes, or ``-``."""

    def __init__(self) -> None:
        super().__init__(allow_dash=True, dir_okay=False)


class Writing(click.Command):
    """A command that refuses, before it begins, to write over what it reads."""

    def invoke(self, ctx: click.Context) -> Any:
        """Look at its files, then run it."""
        outputs, inputs = _values(ctx, OutputFile), _values(ctx, InputPath)
        check_outputs(outputs, inputs)
        return super().invoke(ctx)


def _values(ctx: click.Context, kind: type[click.Path]) -> list[str]:
    """What is given for the parameters of this type."""
    given = [ctx.params.get(each.name or "") for each in ctx.command.params if _is(each, kind)]
    lists = (each if isinstance(each, tuple) else (each,) for each in given if each is not None)
    return [path for paths in lists for path in paths]


def _is(parameter: click.Parameter, kind: type[click.Path]) -> bool:
    return isinstance(parameter.type, kind)


def check_outputs(outputs: Iterable[str], inputs: Iterable[str]) -> None:
    """An `OptionError` where one of the outputs is there already and must stay as it is.

    That is an input (by whatever name: a link to it, another spelling of its path), a file without
    any permission to write, which root could replace all the same, and what is no regular file,
    such as ``/dev/stdout``: a file would take its place.
    """
    there = [(path, state) for path in outputs if path != STD and (state := _state(path))]
    if not there:
        return
    read = [state for path in inputs for state in _states(path)]
    for path, state in there:
        if any(os.path.samestat(state, other) for other in read):
            raise OptionError(f"{path}: this is the input, which is not overwritten; name another")
        if not stat.S_ISREG(state.st_mode):
            raise OptionError(f"{path}: this is no regular file; name one, or - if it can be piped")
        if not state.st_mode & 0o222:
            raise OptionError(f"{path}: this file is read-only; name another, or make it writable")


def _states(path: str) -> Iterator[os.stat_result]:
    """Of every file that this input stands for."""
    if path == STD:
        yield from _state_of_stdin()
    elif state := _state(path):
        files = _files_in(path) if stat.S_ISDIR(state.st_mode) else [path]
        yield from filter(None, map(_state, files))
    else:
        yield from filter(None, map(_state, _files_in(path)))


def _files_in(path: str) -> list[Path]:
    """The traces of a folder by their names, else all of its files; or what a glob stands for."""
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


def _state_of_stdin() -> Iterator[os.stat_result]:
    """Nothing where it is no file of the system, as in tests."""
    try:
        yield os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return


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
