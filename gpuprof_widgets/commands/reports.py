"""What compares several profiles: as words, as a page, or one of its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from gpuprof_widgets.commands.analysis import show_or_export
from gpuprof_widgets.commands.exports import FORMATS, export_options, write_bytes
from gpuprof_widgets.commands.outputs import OutputFile
from gpuprof_widgets.commands.traces import print_notes, progress

if TYPE_CHECKING:
    import pandas as pd

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Report(Protocol):
    """A comparison; each of its tables is a method."""

    def report(self) -> str: ...

    def _repr_mimebundle_(self) -> dict[str, str]: ...


def report_options(tables: Sequence[str]) -> Callable[[Decorated], Decorated]:
    """``-o FILE`` for the page, ``--table NAME`` with all that tables take."""
    options = (
        click.option(
            "-o",
            "--output",
            type=OutputFile(),
            metavar="FILE",
            help="write the page with all views here; -: to standard output",
        ),
        click.option("--table", type=click.Choice(tables), help="print one table instead"),
        click.option("--sort", metavar="KEY", help="column to sort the table by; +KEY: rising"),
        click.option("--top", type=click.IntRange(min=1), metavar="N", help="rows to keep of it"),
        export_options,
    )

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def check(tables: Sequence[str], **given: Any) -> None:
    """A usage error before anything is read, where options ask for a table but do not say which."""
    asked = [name for name in ("sort", "top", *FORMATS) if given[name] is not None]
    if asked and given["table"] is None:
        raise click.UsageError(
            f"--{asked[0]} is of a table: say which by --table {'|'.join(tables)}"
        )


def answer(found: Report, *, notes: Sequence[str] = (), **given: Any) -> None:
    """Write the page, or print the table that is asked for, or the words."""
    from gpuprof_widgets.commands.printing import print_text
    from gpuprof_widgets.commands.sorting import sorted_by

    table, sort, output = given["table"], given["sort"], given["output"]
    if output is not None:
        with progress("drawing"):
            page = found.report().encode()
        write_bytes(page, output)
        if table is None:
            print_notes(notes)
    if table is not None:
        with progress(f"computing {table}"):
            rows: pd.DataFrame = getattr(found, table)()
        rows = rows if sort is None else sorted_by(rows, sort)
        targets = {name: given[name] for name in FORMATS}
        show_or_export(rows, top=given["top"], sort=sort, targets=targets, notes=tuple(notes))
    elif output is None:
        print_text(found._repr_mimebundle_()["text/plain"])
