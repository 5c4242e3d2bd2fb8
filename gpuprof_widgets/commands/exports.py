"""A table to a file or to standard output: whole, in full precision, times in ns."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuprof_widgets.commands.outputs import OutputFile
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.trace.files import write_whole

STDOUT = "-"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def csv_bytes(table: Any) -> bytes:
    """A header line and a line per row."""
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text.encode("utf-8", "backslashreplace")


def json_bytes(table: Any) -> bytes:
    """A list with an object per row, each on its own line; what is missing is null."""
    columns = [_plain_values(table[name]) for name in table.columns]
    names = [str(name) for name in table.columns]
    rows = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
    lines = ",\n".join(json.dumps(row, allow_nan=False, default=_plain) for row in rows)
    return f"[\n{lines}\n]\n".encode() if lines else b"[]\n"


def parquet_bytes(table: Any) -> bytes:
    """Parquet, with the types of the columns."""
    buffer = io.BytesIO()
    try:
        table.to_parquet(buffer, index=False)
    except ImportError as error:
        raise OptionError(
            "writing Parquet needs pyarrow: pip install 'gpuprof-widgets[parquet]'"
        ) from error
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Any], bytes]] = {
    "csv": csv_bytes,
    "json": json_bytes,
    "parquet": parquet_bytes,
}
"""The file formats of tables by the option that asks for each."""


def export_options(command: Decorated) -> Decorated:
    """``--csv FILE``, ``--json FILE``, ``--parquet FILE``; ``-`` is standard output."""
    for name in reversed(FORMATS):
        command = click.option(
            f"--{name}",
            type=OutputFile(),
            metavar="FILE",
            help=f"write the table as {'Parquet' if name == 'parquet' else name.upper()}; "
            "-: to standard output",
        )(command)
    return command


def export(table: Any, targets: dict[str, str | None]) -> bool:
    """Write the table to every target that is given, by format; whether there was any."""
    wanted = {name: target for name, target in targets.items() if target is not None}
    if list(wanted.values()).count(STDOUT) > 1:
        raise click.UsageError("only one table can go to standard output")
    for name, target in wanted.items():
        write_bytes(FORMATS[name](table), target)
    return bool(wanted)


def write_bytes(data: bytes, target: str) -> None:
    """To this file, whole or not at all, or to standard output."""
    if target != STDOUT:
        write_whole(Path(target), lambda file: file.write(data))
        return
    if sys.stdout.isatty() and not _is_text(data):
        raise OptionError("this is not for a terminal: name a file, or pipe it on")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain_values(values: Any) -> Iterable[Any]:
    """The values as JSON has them: not-a-number and whatever else is missing is None."""
    missing = values.isna().tolist()
    return [None if gone else value for value, gone in zip(values.tolist(), missing, strict=True)]


def _plain(value: Any) -> Any:
    """A value of numpy, or what only text can say."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
