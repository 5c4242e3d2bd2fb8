"""Opening a file of any known kind, recognised by its content.

`READERS` lists the kinds. `load` takes paths and URLs, `parse` the content of one file: both unpack
it, look into archives and ask the readers. Other packages add readers by entry point (`guarded`).
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.registry import Registry
from gpuprof_widgets.trace import remote
from gpuprof_widgets.trace.archive import is_archive, parse_archive
from gpuprof_widgets.trace.chrome_trace import is_json, parse_chrome_trace, quick_packed_record
from gpuprof_widgets.trace.databases import is_sqlite, parse_database
from gpuprof_widgets.trace.event_json import NoTraceError
from gpuprof_widgets.trace.files import as_utf8, empty, opened, state_of
from gpuprof_widgets.trace.known_metadata import with_usable_metadata
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.packing import (
    CutOffError,
    Growth,
    Member,
    TrailingBytesError,
    beginning,
    folder_members,
    is_container,
    members,
    packing,
    unpacked,
)
from gpuprof_widgets.trace.pstats import is_pstats, parse_pstats
from gpuprof_widgets.trace.readers.megengine_graph import is_megengine_graph, parse_megengine_graph
from gpuprof_widgets.trace.readers.memory_snapshot import is_pickle, parse_memory_snapshot
from gpuprof_widgets.trace.readers.spans import one_record, with_notes
from gpuprof_widgets.trace.readers.unread import advice
from gpuprof_widgets.trace.remote import RemotePath, common_folder, path_of

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Reader:
    """A kind of file: its name, how it is recognised and read, and the programs that write it.

    ``recognises`` gets the content of a file, unpacked, with JSON in UTF-8. For a file that is
    packed, in a folder or in an archive it first gets only the beginning (`HEAD_BYTES`), and for a
    packed Chrome trace nothing else. ``parse`` gets the whole content, and the path for metadata
    and errors; it raises a `TraceError` if the content is damaged.
    """

    name: str
    recognises: Callable[[bytes], bool]
    parse: Callable[[bytes, Path], Record]
    written_by: str = ""


def guarded(name: str, row: object, package: str) -> Reader:
    """Guard another package's reader; raise a TypeError for an object that is none.

    Its failures name that package, and do not stop other readers.
    """
    if not isinstance(row, Reader):
        raise TypeError(f"a {type(row).__name__} is no gpuprof_widgets.trace.readers.Reader")
    reader, has_failed = row, False

    def recognises(data: bytes) -> bool:
        nonlocal has_failed
        try:
            return bool(reader.recognises(data))
        except Exception as error:  # other people's code may raise anything
            if not has_failed:
                has_failed = True
                warnings.warn(
                    f"{package} failed to tell whether a file is {reader.name}, so no "
                    f"file is read as one: {type(error).__name__}: {error}",
                    stacklevel=2,
                )
            return False

    def parse(data: bytes, file: Path) -> Record:
        failed = f"{file}: {package}, which reads {reader.name}, has failed"
        try:
            record: object = reader.parse(data, file)
        except (TraceError, RecursionError, MemoryError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise TraceError(f"{failed}: {reason}. Report it there.") from error
        if not isinstance(record, Record):
            reason = f"its reader returns {type(record).__name__}, not Record"
            raise TraceError(f"{failed}: {reason}. Report it there.")
        return record

    return replace(reader, recognises=recognises, parse=parse)


READERS = Registry(
    "gpuprof_widgets.readers",
    {
        "gpuprof": Reader(
            "a profile that gpuprof_widgets saved (.gpuprof)",
            is_archive,
            parse_archive,
            "`profile.save`, `gpuprof run -o`",
        ),
        "sqlite": Reader(
            "a database of nvprof or Nsight Systems (.nvprof, .sqlite)",
            is_sqlite,
            parse_database,
            "`nvprof -o`, `nsys export --type sqlite`",
        ),
        "cprofile": Reader(
            "a file of cProfile (.prof, .pstats)",
            is_pstats,
            parse_pstats,
            "`python -m cProfile -o`, `Profile.dump_stats`, `pstats`",
        ),
        "memory_snapshot": Reader(
            "a CUDA memory snapshot (.pickle)",
            is_pickle,
            parse_memory_snapshot,
            "`torch.cuda.memory._dump_snapshot`",
        ),
        "megengine_graph": Reader(
            "a MegEngine profile of a static graph",
            is_megengine_graph,
            parse_megengine_graph,
            "`jit.trace(profiling=True)`, `load_and_run --profile`",
        ),
        "chrome": Reader(
            "a Chrome trace, as torch.profiler, TensorFlow, VizTracer and MegEngine write (.json)",
            is_json,
            parse_chrome_trace,
            "torch.profiler, TensorFlow, VizTracer, MegEngine, any program for Perfetto",
        ),
    },
    guarded,
)
"""The first reader that recognises the content reads it.

They are asked in order, those of other packages behind ours, and that of Chrome traces last,
because it recognises any JSON.
"""

HEAD_BYTES = 1 << 16
"""Bytes of a file in a folder or archive that decide whether it could be a trace."""


def load(path: Paths) -> Record:
    """Return the record in this file, which is recognised by its content, not by its name.

    A folder, an archive and several paths may hold one trace, the spans of one worker, or files of
    cProfile, which are added up. A path may be a URL (`trace.remote`).
    """
    if not isinstance(path, str | os.PathLike):
        return _of_several([path_of(name) for name in path])
    file = path_of(path)
    if isinstance(file, RemotePath):
        return _of_folder(file) if remote.is_folder(file) else parse(remote.content(file), file)
    if stat.S_ISDIR(state_of(file).st_mode):
        return _of_folder(file)
    content = opened(file)
    try:
        record = parse(content.data, file)
    except TraceError as error:
        if grown := content.growth():
            raise TraceError(f"{error} Also, {grown}.") from error
        raise
    return with_notes(record, filter(None, [content.growth()]))


def parse(data: bytes, file: Path) -> Record:
    """Return the record in the content of a file; errors and metadata name ``file``."""
    try:
        return _parsed(data, file, Growth(file, len(data)))
    except RecursionError as error:
        raise TraceError(
            f"{file}: something in it is nested deeper than in any trace; record again."
        ) from error
    except MemoryError as error:
        raise TraceError(
            f"{file}: the content of its {len(data):,} bytes does not fit in the memory of this "
            "machine; record a shorter run, or open it on a larger one."
        ) from error


def _of_several(files: Sequence[Path]) -> Record:
    """Read these files as if they were alone in a folder."""
    if not files:
        raise TraceError("no file was named: give the path of one, or of several of one run.")
    if len(files) == 1:
        return load(files[0])
    folder = common_folder([file.absolute() for file in files])
    named: dict[str, Path] = {}
    for file in dict.fromkeys(files):
        name = str(file.absolute()).removeprefix(f"{str(folder).rstrip('/')}/")
        is_another = isinstance(file, RemotePath) and name in named  # by its query
        named[f"{name} ({len(named) + 1})" if is_another else name] = file
    return one_record(
        [Member(name, 0, lambda _: b"") for name in named],
        folder,
        lambda member: load(named[member.name]),
        "For the ranks of one run: gpuprof_widgets.ranks([...]); to compare two runs: "
        "gpuprof_widgets.compare(A, B)",
    )


def _of_folder(folder: Path) -> Record:
    """Read the files of a folder, without the folders below."""
    files = folder_members(folder)
    candidates = _candidates(files, Growth(folder, sum(member.size for member in files)))
    if not candidates:
        raise TraceError(_no_trace_among(files, folder, "this is a directory"))
    return one_record(
        candidates,
        folder,
        lambda member: parse(member.read(member.size), folder / member.name),
        f"For the ranks of one run: gpuprof_widgets.ranks({str(folder)!r}), or gpuprof ranks; "
        "for one of them, name its file",
    )


def _parsed(data: bytes, file: Path, growth: Growth, *, in_archive: bool = False) -> Record:
    """Return the record in these bytes, which unpack to no more than ``growth`` allows."""
    if not data:
        raise TraceError(empty(file))
    notes: list[str] = []
    if packing(data):
        # Of a Chrome trace, the memory never holds the whole text. Without a record, the content
        # has to be unpacked as a whole, to be recognised, mended or understood.
        if _reader_of(beginning(data, HEAD_BYTES, copy(growth))) is READERS["chrome"]:
            record = quick_packed_record(data, file, growth)
            if record is not None:
                return with_usable_metadata(record)
        try:
            data = unpacked(data, file, growth)
        except CutOffError as error:
            return _of_cut_off(error, file)
        except TrailingBytesError as error:
            data, notes = error.data, [error.note]
        if packing(data):
            raise TraceError(
                f"{file}: it is packed twice. Unpack it first, and open what is in it."
            )
    if not data:
        raise TraceError(f"{file}: what is packed in it is empty (0 bytes); record again.")
    if is_container(data) and not is_archive(data):
        if in_archive:
            raise TraceError(f"{file}: an archive in an archive. Unpack it first, and open that.")
        return with_notes(_of_archive(data, file, growth), notes)
    text, more_notes = as_utf8(data)
    notes += more_notes
    reader = _reader_of(text)
    if reader is None:
        raise TraceError(
            _unread(data, file)
            or f"{file}: not a kind of file that can be read: it starts with {data[:16]!r}. "
            f"{_known()}"
        )
    try:
        return with_notes(with_usable_metadata(reader.parse(text, file)), notes)
    except (NoTraceError, RecursionError) as error:
        if words := _unread(text, file):
            raise TraceError(words) from error
        if isinstance(error, NoTraceError):
            raise TraceError(f"{error} {_known()}") from error
        raise


def _reader_of(text: bytes) -> Reader | None:
    """Return the reader that recognises this content."""
    readers = sorted(READERS.values(), key=lambda reader: reader is READERS["chrome"])
    return next((reader for reader in readers if reader.recognises(text)), None)


def _of_cut_off(error: CutOffError, file: Path) -> Record:
    """Read what was unpacked of a file that is cut off, if it is JSON, which can be mended."""
    text, notes = as_utf8(error.data)
    if not is_json(text):
        raise error
    try:
        record = with_usable_metadata(parse_chrome_trace(text, file))
    except TraceError:
        raise error from None
    return with_notes(record, [*notes, f"{error.note}: what comes later is missing"])


def _of_archive(data: bytes, file: Path, growth: Growth) -> Record:
    files = members(data, file, growth)
    candidates = _candidates(files, growth)
    if not candidates:
        raise TraceError(_no_trace_among(files, file, "an archive"))
    return one_record(
        candidates,
        file,
        # The path of a file in an archive is for messages; it is none to open.
        lambda member: _parsed(
            member.read(member.size), file / member.name.lstrip("/"), growth, in_archive=True
        ),
        "Unpack it and open one of its files, or, for the ranks of one run, the folder by "
        "gpuprof_widgets.ranks(FOLDER)",
    )


def _candidates(files: Sequence[Member], growth: Growth) -> list[Member]:
    """Return the files that may be traces: packed, or begun as a reader recognises."""
    candidates = []
    for member in files:
        text, _ = as_utf8(beginning(member.read(HEAD_BYTES), HEAD_BYTES, growth))
        is_known = any(reader.recognises(text) for reader in READERS.values())
        if packing(text) or is_container(text) or is_known:
            candidates.append(member)
    return candidates


def _no_trace_among(files: Sequence[Member], source: Path, kind: str) -> str:
    """Return what the files of a folder or archive are, none of which is a trace."""
    if len(files) == 1:
        (file,) = files
        if words := _unread(file.read(HEAD_BYTES), source / file.name.lstrip("/")):
            return words
    names = ", ".join(member.name for member in files[:6]) or "nothing"
    return (
        f"{source}: {kind}, and none of the {len(files)} files in it is a trace (there is: "
        f"{names}). Name the file or folder with the trace."
    )


def _unread(data: bytes, file: Path) -> str:
    """Return what to do with a file of a known kind that is not read; "" for any other."""
    here = Path(file.name) if isinstance(file, RemotePath) else file  # commands take no URLs
    words = advice(data, here)
    return f"{file}: {words}" if words else ""


def _known() -> str:
    known = "; ".join(reader.name for reader in READERS.values())
    return f"What can be read: {known}; packed (.gz, .zst, .xz), in an archive or in a folder."
