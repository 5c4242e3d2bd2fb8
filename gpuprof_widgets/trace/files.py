"""The bytes of a file: read if it is one, whatever it is called; written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.packing import unpacked

_NOT_REGULAR = (
    (stat.S_ISSOCK, "a socket, which no trace is read from; name a file"),
    (stat.S_ISFIFO, "a pipe; read it through standard input: gpuprof view - < PIPE"),
    (stat.S_ISCHR, "a device, not a file; name a file, or - for standard input"),
    (stat.S_ISBLK, "a disk, not a file; name a file"),
)


@dataclass(frozen=True)
class Opened:
    """The bytes that a file had, and its size and time of change when they were read."""

    path: Path
    data: bytes
    size: int
    changed_ns: int

    def growth(self) -> str:
        """What became of the file since, in one sentence; nothing where it stayed as it was."""
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
    """The content of the file, unpacked; a `TraceError` names the file and says what to do."""
    return unpacked(opened(path).data, path).data


def opened(path: Path) -> Opened:
    """The file as it is, no byte more than it had at first; errors as in `read_bytes`."""
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
    """The first bytes of a file; errors as in `read_bytes`."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise TraceError(cannot(path, error)) from error


def state_of(path: Path) -> os.stat_result:
    """What the system says of the file; a `TraceError` where it cannot be reached."""
    try:
        return path.stat()
    except FileNotFoundError as error:
        raise TraceError(
            f"{path}: there is no such file; check the path.{_nearby(path)}"
        ) from error
    except OSError as error:
        raise TraceError(cannot(path, error)) from error
    except ValueError as error:  # a zero byte
        raise TraceError(f"{str(path)!r}: this is no path ({error}); check it.") from error


def empty(path: Path) -> str:
    """The words for a file without content."""
    return f"{path}: the file is empty (0 bytes); record or copy the trace again."


def _is_open_pipe(path: Path) -> bool:
    """Whether this stands for a pipe that is open here, as bash's ``<(zcat trace.gz)`` does."""
    return "/pipe:[" in os.path.realpath(path)


def cannot(path: Path, error: OSError) -> str:
    """The words where the system does not let the file be read."""
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

    A process that is killed meanwhile leaves the file as it was, and beside it what it had written:
    ``.NAME.XXXXXXXX.unfinished``. A device or a FIFO is written to, never replaced.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                write(file)
        else:
            _write_beside(target.resolve(), write)
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


def _write_beside(target: Path, write: Callable[[Any], object]) -> None:
    """Fill a file of another name, then give it the target's."""
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.unfinished")
    try:
        with unfinished.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _nearby(path: Path) -> str:
    """A hint at the trace files that are in the folder."""
    if not path.parent.is_dir():
        return ""
    names = sorted(
        p.name for p in path.parent.iterdir() if p.name.endswith((".json", ".json.gz", ".zip"))
    )
    return f" In {path.parent} there is: {', '.join(names[:5])}." if names else ""
