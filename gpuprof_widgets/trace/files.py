"""Files: read their bytes, write them whole or not at all, turn their text into UTF-8."""

from __future__ import annotations

import codecs
import errno
import gc
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.remote import lost_slash

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_REGULAR = (
    (stat.S_ISSOCK, "a socket, not a file; name a file"),
    (stat.S_ISFIFO, "a pipe; read it through standard input: gpuprof view - < PIPE"),
    (stat.S_ISCHR, "a device, not a file; name a file, or - for standard input"),
    (stat.S_ISBLK, "a disk, not a file; name a file"),
)


@dataclass(frozen=True)
class Opened:
    """The bytes of a file, with its size and time of change when they were read."""

    path: Path
    data: bytes
    size: int
    changed_ns: int

    def growth(self) -> str:
        """Return a sentence if the file has changed since, else ""."""
        try:
            now = self.path.stat()
        except OSError:
            return ""
        if (now.st_size, now.st_mtime_ns) == (self.size, self.changed_ns):
            return ""
        return (
            f"the file was written while it was read: it had {self.size:,} bytes then and has "
            f"{now.st_size:,} now. Wait until its writer is done, and open it again"
        )


def opened(path: Path) -> Opened:
    """Read the file as it is, up to its size at the start; a `TraceError` says why it cannot be."""
    state = state_of(path)
    if stat.S_ISDIR(state.st_mode):
        raise TraceError(f"{path}: this is a directory; name one of the files in it.")
    for is_kind, advice in _NOT_REGULAR:
        # A pipe that is open in this process, like bash's <(zcat trace.gz), can be read.
        if is_kind(state.st_mode) and "/pipe:[" not in os.path.realpath(path):
            raise TraceError(f"{path}: this is {advice}.")
    data = beginning_of(path, state.st_size if stat.S_ISREG(state.st_mode) else -1)
    if not data:
        raise TraceError(empty(path))
    return Opened(path, data, state.st_size, state.st_mtime_ns)


def beginning_of(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, all of them for -1; errors as in `opened`."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise TraceError(cannot(path, error)) from error


def state_of(path: Path) -> os.stat_result:
    """Return the system's ``stat`` of the file; a `TraceError` if the file cannot be reached."""
    try:
        return path.stat()
    except FileNotFoundError as error:
        if hint := lost_slash(path):  # what follows a question mark may be a signature
            raise TraceError(
                f"{str(path).partition('?')[0]}: there is no such file.{hint}"
            ) from None
        raise TraceError(
            f"{path}: there is no such file; check the path.{_nearby(path)}"
        ) from error
    except OSError as error:
        raise TraceError(cannot(path, error)) from error
    except ValueError as error:  # the path has a zero byte
        raise TraceError(f"{str(path)!r}: this is not a path ({error}); check it.") from error


def empty(path: Path) -> str:
    """Return the message for a file without content."""
    return f"{path}: the file is empty (0 bytes); record or copy the trace again."


def cannot(path: Path, error: OSError) -> str:
    """Return the message for a file that the system does not let us read."""
    if isinstance(error, PermissionError):
        return (
            f"{path}: no permission to read it; ask its owner, or change its permissions "
            "with chmod."
        )
    if error.errno == errno.ELOOP:
        return f"{path}: a link that leads to itself; name the file itself."
    return f"{path}: cannot be read ({error.strerror or error}); check the file and its disk."


def write_whole(path: str | os.PathLike[str], write: Callable[[Any], object]) -> Path:
    """Let ``write`` fill the file, which appears when it is complete, or not at all.

    A process that is killed meanwhile leaves the old file as it was, and the unfinished one as
    ``.NAME.XXXXXXXX.unfinished`` in the same folder. A device or a FIFO is written to, never
    replaced.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                write(file)
        else:
            _write_and_rename(target.resolve(), write)
    except OSError as error:
        advice = (
            "make room there, or name a file elsewhere; a file that was there before is unchanged."
            if error.errno in _NO_ROOM
            else "name a file in a folder that exists and that you may write to."
        )
        raise TraceError(
            f"{target}: cannot be written ({error.strerror or error}); {advice}"
        ) from error
    return target


def _write_and_rename(target: Path, write: Callable[[Any], object]) -> None:
    """Fill a file of another name, then rename it to the target."""
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.unfinished")
    try:
        with unfinished.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _nearby(path: Path) -> str:
    """Return a hint at the trace files in the path's folder, "" if there are none."""
    if not path.parent.is_dir():
        return ""
    names = sorted(
        p.name for p in path.parent.iterdir() if p.name.endswith((".json", ".json.gz", ".zip"))
    )
    return f" In {path.parent} there is: {', '.join(names[:5])}." if names else ""


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable Python's collector, which would scan the millions of objects of a file repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[\[{\"\d\]-])")
"""Start of JSON. cProfile's files start with a brace too, but no quotation mark follows."""

_REPLACED = "\ufffd"
_BLOCK_BYTES = 1 << 20


def as_utf8(data: bytes) -> tuple[bytes, list[str]]:
    """Return JSON text as UTF-8, and notes on repairs; other data stays as it is.

    UTF-8, UTF-16 and UTF-32 are known by their byte order mark, or by zero bytes at the start.
    Bytes that are no text become U+FFFD.
    """
    encoding = json.detect_encoding(data)
    if not encoding.startswith("utf-8"):
        return _repaired(data, encoding)
    text = data.removeprefix(codecs.BOM_UTF8)
    if not _JSON.match(text):
        return text, []
    kept = text.rstrip(b"\0")  # the last blocks of a file may have been reserved and never written
    zeros = len(text) - len(kept)
    notes = [f"{zeros:,} zero bytes at the end of the file were left out"] if zeros else []
    repaired, repairs = valid_utf8(kept)
    return repaired, notes + repairs


def valid_utf8(text: bytes) -> tuple[bytes, list[str]]:
    """Return the text with U+FFFD in place of bytes that are not UTF-8, and a note on them."""
    try:
        if text.isascii() or all(codecs.iterdecode(_blocks(text), "utf-8")):
            return text, []
    except UnicodeDecodeError:
        pass
    return _repaired(text, "utf-8")


def _repaired(data: bytes, encoding: str) -> tuple[bytes, list[str]]:
    decoded = codecs.iterdecode(_blocks(data), encoding, "replace")
    text = b"".join(block.encode() for block in decoded)
    count = text.count(_REPLACED.encode()) - data.count(_REPLACED.encode())
    noun, verb = ("character", "is") if count == 1 else ("characters", "are")
    note = f"{count:,} {noun} of the file {verb} not {encoding.upper()} and became {_REPLACED}"
    return text, [note] if count else []


def _blocks(data: bytes) -> Iterator[bytes]:
    """Yield the data in blocks, so that the memory never holds all of its text next to it."""
    return (data[at : at + _BLOCK_BYTES] for at in range(0, len(data), _BLOCK_BYTES))
