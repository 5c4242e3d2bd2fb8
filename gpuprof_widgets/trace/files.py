"""Files: read their bytes, write them whole or not at all, turn their text into UTF-8."""

from __future__ import annotations

import codecs
import errno
import gc
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.packing import unpacked

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_REGULAR = (
    (stat.S_ISSOCK, "a socket, which no trace is read from; name a file"),
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


def read_bytes(path: Path) -> bytes:
    """Return the content of the file, unpacked; a `TraceError` names the file and the remedy."""
    return unpacked(opened(path).data, path).data


def opened(path: Path) -> Opened:
    """Read the file as it is, up to its size at the start; errors as in `read_bytes`."""
    state = state_of(path)
    if stat.S_ISDIR(state.st_mode):
        raise TraceError(f"{path}: this is a directory; name one of the files in it.")
    for is_kind, advice in _NOT_REGULAR:
        if is_kind(state.st_mode) and not _is_open_pipe(path):
            raise TraceError(f"{path}: this is {advice}.")
    try:
        with path.open("rb") as file:
            data = file.read(state.st_size if stat.S_ISREG(state.st_mode) else -1)
    except OSError as error:
        raise TraceError(cannot(path, error)) from error
    if not data:
        raise TraceError(empty(path))
    return Opened(path, data, state.st_size, state.st_mtime_ns)


def beginning_of(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; errors as in `read_bytes`."""
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
        raise TraceError(
            f"{path}: there is no such file; check the path.{_nearby(path)}"
        ) from error
    except OSError as error:
        raise TraceError(cannot(path, error)) from error
    except ValueError as error:  # the path has a zero byte
        raise TraceError(f"{str(path)!r}: this is no path ({error}); check it.") from error


def empty(path: Path) -> str:
    """Return the message for a file without content."""
    return f"{path}: the file is empty (0 bytes); record or copy the trace again."


def _is_open_pipe(path: Path) -> bool:
    """Whether this is a pipe that is open in this process, like bash's ``<(zcat trace.gz)``."""
    return "/pipe:[" in os.path.realpath(path)


def cannot(path: Path, error: OSError) -> str:
    """Return the message for a file that the system does not let us read."""
    if isinstance(error, PermissionError):
        return (
            f"{path}: no permission to read it; ask its owner, or look at it with ls -l and change "
            "that with chmod."
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
            "make room there, or name a file elsewhere; what was there before is as it was."
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


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks; UTF-32 comes first, because its mark begins like that of UTF-16."""

_UNMARKED = (
    (re.compile(rb"[{\[\s]\0\0\0"), "utf-32-le"),
    (re.compile(rb"\0\0\0[{\[\s]"), "utf-32-be"),
    (re.compile(rb"[{\[\s]\0[^\0]\0"), "utf-16-le"),
    (re.compile(rb"\0[{\[\s]\0[^\0]"), "utf-16-be"),
)
_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[\[{\"\d\]-])")
"""Start of JSON. cProfile's files start with a brace too, but no quotation mark follows."""

_REPLACED = "\ufffd"
_CHINESE = "gb18030"
_LATIN = "latin-1"
_NOT_LATIN = re.compile(rb"[\x80-\x9f\xfe\xff]|[\xc2-\xf4][\x80-\xbf]|\xc3(?![A-Za-z])")
"""Bytes that Latin-1 text does not have: controls, bytes that are more frequent in damaged files
than in words, and multi-byte characters of UTF-8. The last alternative is the first byte of most
accented letters in UTF-8, where no letter follows it."""
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]+")
_BLOCK_BYTES = 1 << 20


def as_utf8(data: bytes) -> tuple[bytes, list[str]]:
    """Return JSON text as UTF-8, and notes on repairs; other data stays as it is.

    It reads UTF-8, UTF-16 and UTF-32 with or without a byte order mark, GBK, which programs on a
    Chinese Windows write, and Latin-1. Other bytes that are not UTF-8 become U+FFFD.
    """
    encoding, start = _marked(data)
    if encoding != "utf-8":
        return _from_wide(data, encoding, start)
    text = data[start:] if start else data
    if not _JSON.match(text):
        return (text, []) if start else (data, [])
    text, ends = _without_padding(text)
    repaired, notes = valid_utf8(text)
    return repaired, ends + notes


def _marked(data: bytes) -> tuple[str, int]:
    """Return the encoding, and the length of its byte order mark."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding, len(mark)
    matches = (encoding for pattern, encoding in _UNMARKED if pattern.match(data))
    return next(matches, "utf-8"), 0


def _from_wide(data: bytes, encoding: str, start: int) -> tuple[bytes, list[str]]:
    blocks = _decoded(data, encoding, start)
    text = b"".join(block.encode("utf-8", "replace") for block in blocks)
    marks = text.count(_REPLACED.encode())
    return text, [_lost(marks, encoding.upper())] if marks else []


def _decoded(data: bytes, encoding: str, start: int = 0, errors: str = "replace") -> Iterator[str]:
    """Yield the text in blocks, so that the memory never holds all of it next to its bytes."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    for at in range(start, len(data), _BLOCK_BYTES):
        yield decoder.decode(data[at : at + _BLOCK_BYTES])
    yield decoder.decode(b"", final=True)


def _without_padding(text: bytes) -> tuple[bytes, list[str]]:
    """Remove the zero bytes at the end of a file whose last blocks were not written."""
    if not text.endswith(b"\0"):
        return text, []
    kept = text.rstrip(b"\0")
    return kept, [f"{len(text) - len(kept):,} zero bytes at the end of the file were left out"]


def valid_utf8(text: bytes) -> tuple[bytes, list[str]]:
    """Return text in UTF-8, GBK or Latin-1 as valid UTF-8, and notes on repairs."""
    if text.isascii() or _is_utf8(text):
        return text, []
    wrong, right = _counted(text)
    if not right and _is_latin(text):
        latin = b"".join(block.encode() for block in _decoded(text, _LATIN))
        return latin, [
            f"the file is not in UTF-8: it was read as Latin-1 (beyond ASCII: {wrong:,})"
        ]
    if wrong > max(right, 1):
        chinese = _strictly(text, _CHINESE)
        if chinese is not None:
            return chinese, ["the file is not in UTF-8: it was read as GBK"]
    repaired = b"".join(block.encode() for block in _decoded(text, "utf-8"))
    return repaired, [_lost(wrong, "UTF-8")]


def _is_utf8(text: bytes) -> bool:
    try:
        return all(block is not None for block in _decoded(text, "utf-8", errors="strict"))
    except UnicodeDecodeError:
        return False


def _counted(text: bytes) -> tuple[int, int]:
    """Count the characters beyond ASCII that are not UTF-8, and those that are."""
    wrong = beyond = 0
    for block in _decoded(text, "utf-8"):
        wrong += block.count(_REPLACED)
        beyond += len(block) - len(block.encode("ascii", "ignore"))
    return wrong, beyond - wrong


def _is_latin(text: bytes) -> bool:
    """Whether most bytes beyond ASCII stand alone, as in Latin-1 words; GBK has two per character.

    Where two bytes could be a character of UTF-8, whole or cut, the text is damaged UTF-8.
    """
    if _NOT_LATIN.search(text):
        return False
    runs = Counter(len(run[0]) == 1 for run in _BEYOND_ASCII.finditer(text))
    return runs[True] > runs[False]


def _strictly(text: bytes, encoding: str) -> bytes | None:
    try:
        return b"".join(block.encode() for block in _decoded(text, encoding, errors="strict"))
    except UnicodeDecodeError:
        return None


def _lost(count: int, encoding: str) -> str:
    noun, verb = ("character", "is") if count == 1 else ("characters", "are")
    return f"{count:,} {noun} of the file {verb} not {encoding} and became {_REPLACED}"
