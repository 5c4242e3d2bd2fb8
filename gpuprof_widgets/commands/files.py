"""The files of a command: the TRACE that it reads, the part selected by options, and its outputs.

A command with parameters of the types `InputPath` and `OutputFile` has the class `Writing`, which
refuses to overwrite inputs and read-only files before anything is read or run. Outputs are written
whole or not at all; tables in full precision, times in ns.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuprof_widgets.exceptions import SOURCE, OptionError, TraceError, printable
from gpuprof_widgets.trace.files import write_whole
from gpuprof_widgets.trace.remote import is_url, path_of, shown
from gpuprof_widgets.trace.writers.tables import TABLE_FORMATS

if TYPE_CHECKING:
    from gpuprof_widgets.profiles import Profile

STDIO = "-"
"""Standard input among the inputs, standard output among the outputs."""

FORMATS = tuple(TABLE_FORMATS)
"""The file formats of tables, which are also the names of the options that ask for them."""

LONG_S = 1.0
"""Seconds of work from which on a terminal shows that something is going on."""

_NS = {"": 1, "ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|)")

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class InputPath(click.Path):
    """An input of a command: a file, a folder or a glob of files, a URL of these, or ``-``."""

    def __init__(self) -> None:
        super().__init__(allow_dash=True)


class OutputFile(click.Path):
    """A file that a command writes, or ``-``."""

    def __init__(self) -> None:
        super().__init__(allow_dash=True, dir_okay=False)


class Window(click.ParamType):  # type: ignore[type-arg]  # click 8.1 takes none
    """Two moments of a trace with a colon between them; without a unit they are ns."""

    name = "T0:T1"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        start, colon, end = str(value).partition(":")
        t0, t1 = _nanoseconds(start), _nanoseconds(end)
        if not colon or t0 is None or t1 is None:
            self.fail("a range is two times of the trace, as 1500:3000 (ns) or 1.5ms:3ms")
        if t0 >= t1:
            self.fail(f"the end of a range must be after its start, unlike in {value}")
        return t0, t1


class Time(click.ParamType):  # type: ignore[type-arg]  # as above
    """A time with a unit; without one it is ns."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        ns = value if isinstance(value, int) else _nanoseconds(str(value))
        if ns is None:
            self.fail(f"a time is a number and ns, us, ms or s, as 1.5ms, not {value!r}")
        return ns


def _nanoseconds(text: str) -> int | None:
    """Return whole nanoseconds; None where the text is no time."""
    match = _TIME.fullmatch(text.replace(",", "").strip())
    return None if match is None else int(Decimal(match[1]) * _NS[match[2]])


def trace_argument(
    name: str = "trace", *, metavar: str | None = None
) -> Callable[[Decorated], Decorated]:
    """Return an argument: a file or URL that `gpuprof_widgets.load` opens, or ``-`` for stdin."""
    return click.argument(name, type=InputPath(), metavar=metavar)


def window_options(command: Decorated) -> Decorated:
    """Add ``--window`` and ``--step``, which select a part of the trace."""
    window = click.option("--window", type=Window(), help="only this range, such as 1.5ms:3ms")
    step = click.option("--step", type=int, metavar="N", help="only the step with this number")
    return window(step(command))


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


def load(
    path: str,
    window: tuple[int, int] | None = None,
    step: int | None = None,
    *,
    one_of_several: bool = False,
) -> Profile:
    """Read a file, or standard input, and return the profile or the selected part of it.

    Notes on unreadable parts go to stderr, with the file's name where it is ``one_of_several``.
    """
    from gpuprof_widgets.profiles import Profile
    from gpuprof_widgets.trace.readers import parse

    with progress(f"reading {'standard input' if path == STDIO else shown(path)}"):
        if path == STDIO:
            record = parse(sys.stdin.buffer.read(), Path("standard input"))
            profile = Profile(record.trace, record.calls, record.metadata, record.calls_of_workers)
        else:
            profile = Profile.load(path)
    print_notes(profile.metadata.get("notes"), shown(path) if one_of_several else "")
    return part_of(profile, window, step)


def part_of(profile: Profile, window: tuple[int, int] | None, step: int | None) -> Profile:
    """Return the given step and window of the profile."""
    from gpuprof_widgets.analyses.columns import format_ns
    from gpuprof_widgets.analyses.regions import steps

    with progress("choosing the part"):
        if step is not None:
            table = steps(profile)
            rows = table[table["step"] == step]
            if not len(table):
                raise OptionError("the trace marks no steps: choose a range by --window T0:T1")
            if not len(rows):
                numbers = ", ".join(map(str, table["step"]))
                raise OptionError(f"the trace has no step {step}; its steps are {numbers}")
            profile = profile.window(int(rows["start_ns"].iloc[0]), int(rows["end_ns"].iloc[0]))
        if window is None:
            return profile
        trace, (t0, t1) = profile.trace, window
        if len(trace) and (t1 <= trace.start_ns or t0 > trace.end_ns):
            raise OptionError(
                f"the window from {format_ns(t0)} to {format_ns(t1)} is outside of the trace, "
                f"which is from {format_ns(trace.start_ns)} to {format_ns(trace.end_ns)}"
            )
        return profile.window(t0, t1)


def print_notes(notes: object, file: str = "") -> None:
    """Print a record's notes on stderr, with the file's name if given."""
    prefix = f"{file}: " if file else ""
    for note in notes if isinstance(notes, list | tuple) else ():
        click.echo(printable(f"Note: {prefix}{str(note).removesuffix('.')}."), err=True)


@contextmanager
def progress(doing: str) -> Iterator[None]:
    """Show on a terminal's stderr what is being done, once it takes long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    status = Console(stderr=True).status(Text(f"{printable(doing)} ..."))
    waiting = threading.Timer(LONG_S, status.start)
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
        waiting.join()
        status.stop()


class Writing(click.Command):
    """A command that refuses, before it begins, to write over what it reads."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check the files, then run the command."""
        check_outputs(_values(ctx, OutputFile), _values(ctx, InputPath))
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
    """Yield the state of every file of this machine that the input stands for.

    A folder stands for the traces in it by name, else for all of its files.
    """
    if path == STDIO:
        with suppress(OSError, ValueError):  # no file of the system, as in tests
            yield os.fstat(sys.stdin.fileno())
        return
    path = str(path_of(path))
    if is_url(path):
        return
    files: Sequence[str | Path] = [path]
    state, folder = _state(path), Path(path).expanduser()
    if state is None or stat.S_ISDIR(state.st_mode):
        from gpuprof_widgets.many_ranks.files import trace_files

        try:
            files = trace_files(path)
        except TraceError:
            if not folder.is_dir():
                raise
            files = list(folder.iterdir())
    yield from filter(None, map(_state, files))


def _state(path: str | Path) -> os.stat_result | None:
    try:
        return Path(path).expanduser().stat()
    except OSError:
        return None


def export(table: Any, targets: dict[str, str | None]) -> bool:
    """Write the table to every given target, by format; return whether there was any."""
    wanted = {name: target for name, target in targets.items() if target is not None}
    if list(wanted.values()).count(STDIO) > 1:
        raise click.UsageError("only one table can go to standard output")
    for name, target in wanted.items():
        write_bytes(TABLE_FORMATS[name](table), target)
    return bool(wanted)


def write_bytes(data: bytes, target: str) -> None:
    """Write to this file, whole or not at all, or to standard output.

    A terminal gets text without the control codes that names may hold; a pipe gets them unchanged.
    """
    if target != STDIO:
        write_whole(Path(target), lambda file: file.write(data))
        return
    if sys.stdout.isatty():
        try:
            data = printable(data.decode(), keep=SOURCE).encode()
        except UnicodeDecodeError:
            raise OptionError(
                "the output is binary, not for a terminal: name a file, or pipe it"
            ) from None
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
