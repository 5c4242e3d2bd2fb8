"""The TRACE that a command takes: a file or ``-``, and the part selected by options."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuprof_widgets.commands.outputs import STDIO, InputPath
from gpuprof_widgets.exceptions import OptionError, printable
from gpuprof_widgets.trace.remote import shown

if TYPE_CHECKING:
    from gpuprof_widgets.profiles import Profile

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

LONG_S = 1.0
"""Seconds of work from which on a terminal shows that something is going on."""

_NS = {"": 1, "ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_TIME = re.compile(r"(\d+)(?:\.(\d+))?\s*(ns|us|µs|ms|s|)")


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
    """Return whole nanoseconds, computed in integers; None where the text is no time."""
    match = _TIME.fullmatch(text.replace(",", "").strip())
    if match is None:
        return None
    whole, fraction, unit = match.groups()
    size, digits = _NS[unit], fraction or ""
    return int(whole) * size + int(digits or 0) * size // int(10 ** len(digits))


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
    with progress(f"reading {'standard input' if path == STDIO else shown(path)}"):
        profile = _from_stdin() if path == STDIO else _from_file(path)
    print_notes(profile.metadata.get("notes"), shown(path) if one_of_several else "")
    return part_of(profile, window, step)


def part_of(profile: Profile, window: tuple[int, int] | None, step: int | None) -> Profile:
    """Return the given step and window of the profile."""
    with progress("choosing the part"):
        if step is not None:
            profile = profile.window(*_range_of_step(profile, step))
        if window is None:
            return profile
        from gpuprof_widgets.analyses.columns import format_ns

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


def _from_file(path: str) -> Profile:
    from gpuprof_widgets.profiles import Profile

    return Profile.load(path)


def _from_stdin() -> Profile:
    from gpuprof_widgets.profiles import Profile
    from gpuprof_widgets.trace.readers import parse

    name = Path("standard input")
    record = parse(sys.stdin.buffer.read(), name)
    return Profile(record.trace, record.calls, record.metadata, record.calls_of_workers)


def _range_of_step(profile: Profile, step: int) -> tuple[int, int]:
    from gpuprof_widgets.analyses.regions import steps

    table = steps(profile)
    rows = table[table["step"] == step]
    if len(rows):
        return int(rows["start_ns"].iloc[0]), int(rows["end_ns"].iloc[0])
    if not len(table):
        raise OptionError("the trace marks no steps: choose a range by --window T0:T1")
    numbers = ", ".join(map(str, table["step"].tolist()))
    raise OptionError(f"the trace has no step {step}; its steps are {numbers}")


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
