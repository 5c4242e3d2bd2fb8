"""Opening a file of any kind that we know, recognised by its content."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.archive import is_archive, parse_archive
from gpuprof_widgets.trace.chrome_trace import is_json, parse_chrome_trace
from gpuprof_widgets.trace.files import read_bytes
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.pstats import is_pstats, parse_pstats


@dataclass(frozen=True)
class Reader:
    """A kind of file: what it is called, how it starts, and how it is read."""

    name: str
    recognises: Callable[[bytes], bool]
    parse: Callable[[bytes, Path], Record]


READERS = (
    Reader("a profile that gpuprof_widgets saved", is_archive, parse_archive),
    Reader("a file of cProfile (.prof, .pstats)", is_pstats, parse_pstats),
    Reader("a torch.profiler trace (.json, .json.gz)", is_json, parse_chrome_trace),
)


def load(path: str | os.PathLike[str]) -> Record:
    """The record in this file; it is recognised by its content, not by its name."""
    file = Path(path)
    return parse(read_bytes(file), file)


def parse(data: bytes, file: Path) -> Record:
    """The record in the content of a file, which errors and metadata name."""
    for reader in READERS:
        if reader.recognises(data):
            return reader.parse(data, file)
    known = "; ".join(reader.name for reader in READERS)
    raise TraceError(
        f"{file}: not a kind of file that can be read: it starts with {data[:16]!r}. "
        f"What can be read: {known}."
    )
