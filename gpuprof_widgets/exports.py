"""A profile as a file, in the format that the ending of its name selects.

A new format is a function that writes it and a row of `WRITERS`. What needs pandas is imported in
functions: the help of the commands lists the formats.
"""

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpuprof_widgets.analyses import ANALYSES, plain_analyses
from gpuprof_widgets.exceptions import OptionError, RecordingError, did_you_mean
from gpuprof_widgets.trace.files import without_garbage_collection, write_whole
from gpuprof_widgets.trace.writers.tables import csv_bytes, parquet_bytes

if TYPE_CHECKING:
    import pandas as pd

    from gpuprof_widgets.trace.model import Record

AS_SHOWN = "flame_graph"
"""Stacks of the source that the page's flame graph shows: one of `STACKS`."""

DEVICE = "device"
"""Stacks by GPU time, as in the flame graph of the page."""

STACKS = {
    "ops": "ops, annotations and calls of the runtime",
    "merged": "Python frames and ops",
    "cprofile": "calls that cProfile counted",
}
"""The elements of the stacks of each source of a call tree."""


@dataclass(frozen=True)
class Writer:
    """A format: its name, the endings of its files, and the function that writes a record.

    ``write`` gets the record, the part of it to write, and the file. It raises a `RecordingError`
    where the record has nothing that the format can hold, and returns a note on the file, if any,
    such as that a table has no rows. ``parts`` lists the parts to choose from, the default first,
    and ``choice`` describes them; without parts the file holds all that the format can.
    ``opens_in``: programs that open it, for the docs.
    """

    name: str
    endings: tuple[str, ...]
    write: Callable[[Record, str, IO[bytes]], str | None]
    opens_in: str
    parts: Callable[[], Sequence[str]] = tuple
    choice: str = ""


def _archive(record: Record, _: str, file: IO[bytes]) -> None:
    from gpuprof_widgets.trace.archive import write

    write(record, file)


def _chrome_trace(record: Record, _: str, file: IO[bytes] | gzip.GzipFile) -> None:
    from gpuprof_widgets.trace.chrome_writer import chrome_trace, in_blocks

    if not len(record.trace.tracks) and not len(record.trace.counters):
        raise RecordingError(
            f"this profile has no timeline: neither threads nor counters. {_alternatives(record)}"
        )
    with without_garbage_collection():
        file.writelines(in_blocks(chrome_trace(record.trace, record.metadata)))


def _packed_chrome_trace(record: Record, _: str, file: IO[bytes]) -> None:
    from gpuprof_widgets.trace.chrome_writer import COMPRESSION

    # Without a name and a time, so that equal records make equal files.
    with gzip.GzipFile("", "wb", COMPRESSION, file, mtime=0) as packed:
        _chrome_trace(record, _, packed)


def _alternatives(record: Record) -> str:
    """Return a sentence with the formats that can hold some of this record."""
    calls = [".prof", ".speedscope.json", ".collapsed"] if record.calls is not None else []
    times = [".json"] if len(record.trace) else []
    return f"Write {', '.join([*times, *calls, '.gpuprof'])} or .html instead."


def _speedscope(record: Record, part: str, file: IO[bytes]) -> None:
    from gpuprof_widgets.analyses.call_tree import estimated_tree
    from gpuprof_widgets.trace.writers.stacks import speedscope

    label = str(record.metadata.get("label") or "gpuprof")
    if part == DEVICE:
        stacks = {"GPU time by call path, summed over streams": _by_gpu_time(record)}
        file.writelines(speedscope(None, stacks, name=label))
        return
    counted = {"cProfile (an estimate: it has no times)": record.calls} if record.calls else {}
    workers = {f"cProfile, {name}": calls for name, calls in record.calls_of_workers.items()}
    trees = {name: estimated_tree(calls) for name, calls in (counted | workers).items()}
    if not trees and not (record.trace.slices["dur"] > 0).any():
        raise RecordingError("this profile has neither slices with a duration nor Python calls")
    file.writelines(speedscope(record.trace, trees, name=label))


def _collapsed(record: Record, source: str, file: IO[bytes]) -> None:
    from gpuprof_widgets.analyses.call_tree import call_tree, flame_source
    from gpuprof_widgets.trace.writers.stacks import collapsed_stacks

    if source == DEVICE:
        file.writelines(collapsed_stacks(_by_gpu_time(record)))
        return
    chosen = flame_source(record) if source == AS_SHOWN else source
    tree = call_tree(record, source=chosen)
    if not (tree["self_ns"] > 0).any():
        raise RecordingError(
            f"this profile has no stacks of {STACKS[chosen]} that took time. "
            f"{_alternatives(record)}"
        )
    file.writelines(collapsed_stacks(tree))


def _by_gpu_time(record: Record) -> pd.DataFrame:
    """Return the call tree with GPU time as self times."""
    from gpuprof_widgets.analyses.call_tree import call_tree
    from gpuprof_widgets.analyses.reasons import why_empty

    tree = call_tree(record, time="device")
    if why := why_empty(tree):
        raise RecordingError(f"this profile has no stacks by GPU time: {why}.")
    return tree.assign(self_ns=tree["device_self_ns"])


def _pstats(record: Record, _: str, file: IO[bytes]) -> None:
    from gpuprof_widgets.analyses.python_calls import recorded_calls
    from gpuprof_widgets.trace.pstats import dump_pstats

    file.write(dump_pstats(recorded_calls(record)))


def _table(
    to_bytes: Callable[[pd.DataFrame], bytes], record: Record, name: str, file: IO[bytes]
) -> str | None:
    from gpuprof_widgets.analyses.reasons import why_empty

    table = ANALYSES[name].function(record)
    file.write(to_bytes(table))
    if len(table):
        return None
    why = why_empty(table) or "the trace has nothing of that kind"
    return f"the table {name} has no rows: {why}"


def _page(record: Record, _: str, file: IO[bytes]) -> None:
    from gpuprof_widgets.views.report import standalone_html

    file.write(standalone_html(record).encode())


def _png(record: Record, view: str, file: IO[bytes]) -> None:
    from gpuprof_widgets.views.picture import picture_png

    file.write(picture_png(record, view))


def _svg(record: Record, view: str, file: IO[bytes]) -> None:
    from gpuprof_widgets.views.picture import picture_svg

    file.write(picture_svg(record, view))


def _tables() -> Sequence[str]:
    return [row.name for row in plain_analyses()]


def _views() -> Sequence[str]:
    from gpuprof_widgets.views.picture import VIEWS

    return list(VIEWS)


_ANALYSIS = "the analysis (default: operators)"
_VIEW = "the view (all, timeline, flame_graph or ops)"

WRITERS = {
    "gpuprof": Writer(
        "everything, as `gpuprof run -o` writes it",
        (".gpuprof", ".zip"),
        _archive,
        "`gpuprof`; its members in Perfetto, snakeviz, pstats",
    ),
    "speedscope": Writer(
        "threads, streams and Python calls, for speedscope",
        (".speedscope.json",),
        _speedscope,
        "speedscope",
        lambda: ("all", DEVICE),
        "all, or device (by GPU time)",
    ),
    "chrome": Writer(
        "a Chrome trace, for Perfetto",
        (".json",),
        _chrome_trace,
        "Perfetto, `chrome://tracing`, HTA, anything for Kineto's files",
    ),
    "packed_chrome": Writer(
        "the same, packed", (".json.gz",), _packed_chrome_trace, "Perfetto, `chrome://tracing`, HTA"
    ),
    "collapsed": Writer(
        "stacks, for flamegraph.pl",
        (".collapsed", ".folded"),
        _collapsed,
        "flamegraph.pl, inferno, speedscope",
        lambda: (AS_SHOWN, *STACKS, DEVICE),
        "the source (flame_graph, ops, merged or cprofile), or device (by GPU time)",
    ),
    "pstats": Writer(
        "the Python calls, for pstats and snakeviz",
        (".prof", ".pstats"),
        _pstats,
        "pstats, snakeviz",
    ),
    "csv": Writer(
        "a table, for spreadsheets",
        (".csv",),
        partial(_table, csv_bytes),
        "spreadsheets, pandas",
        _tables,
        _ANALYSIS,
    ),
    "parquet": Writer(
        "a table, with its types",
        (".parquet",),
        partial(_table, parquet_bytes),
        "pandas, DuckDB, Spark",
        _tables,
        _ANALYSIS,
    ),
    "page": Writer(
        "the linked views, as one page", (".html", ".htm"), _page, "any browser, offline"
    ),
    "png": Writer("a picture of the views", (".png",), _png, "anything", _views, _VIEW),
    "svg": Writer("the same, as vectors and text", (".svg",), _svg, "anything", _views, _VIEW),
}
"""Every format that a record can be written in; the longest ending that fits a name decides."""


def writer_named(path: str | os.PathLike[str]) -> Writer | None:
    """Return the format of a file name by its ending, None if it has none."""
    name, by_ending = os.fspath(path).lower(), _by_ending()
    fitting = [ending for ending in by_ending if name.endswith(ending)]
    return by_ending[max(fitting, key=len)] if fitting else None


def writer_for(path: str | os.PathLike[str]) -> Writer:
    """Return the format of a file name by its ending, or raise an `OptionError`."""
    writer = writer_named(path)
    if writer is None:
        known = ", ".join(_by_ending())
        raise OptionError(
            f"{os.fspath(path)}: the end of the name chooses the format; end it in one of {known}"
        )
    return writer


def _by_ending() -> dict[str, Writer]:
    return {ending: writer for writer in WRITERS.values() for ending in writer.endings}


def export(
    record: Record,
    path: str | os.PathLike[str],
    *,
    what: str | None = None,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    say: Callable[[str], object] = warnings.warn,
) -> Path:
    """Write the record, whole or not at all, in the format of the name's ending.

    ``what`` and ``ranges``: as in `Profile.export`. ``say`` is called with each note on the file.
    Raises a `RecordingError` where the record has nothing that the format can hold.
    """
    writer = writer_for(path)
    part = part_of(writer, what, path)
    marked = with_ranges_in(record, ranges)
    notes: list[str | None] = []
    target = write_whole(
        Path(path).expanduser(), lambda file: notes.append(writer.write(marked, part, file))
    )
    for note in filter(None, notes):
        say(f"{target}: {note}")
    return target


def with_ranges_in(record: Record, ranges: Mapping[str, tuple[int, int]] | None) -> Record:
    """Return the record with these ranges on a track of its trace."""
    from gpuprof_widgets.trace.remarks import FOCUS, without_places
    from gpuprof_widgets.trace.window import with_ranges

    if not ranges:
        return record
    metadata = without_places(record.metadata, FOCUS)  # the numbers of slices become others
    return replace(record, trace=with_ranges(record.trace, ranges), metadata=metadata)


def part_of(writer: Writer, what: str | None, path: str | os.PathLike[str]) -> str:
    """Return the part of a record to write; an `OptionError` where the format has no such part."""
    parts = writer.parts()
    if what is None:
        return parts[0] if parts else ""
    if what in parts:
        return what
    if not parts:
        choosing = ", ".join(end for end, other in _by_ending().items() if other.parts())
        raise OptionError(
            f"{os.fspath(path)}: this format has no parts to choose, such as {what!r}; "
            f"only these have parts: {choosing}"
        )
    hint = did_you_mean(what, parts, quoted=True)
    raise OptionError(f"there is no {what!r} to write.{hint} There are: {', '.join(parts)}")
