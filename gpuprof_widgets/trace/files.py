"""The bytes of a file: unpacked if they are gzip, whatever it is called; written whole or not."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import TraceError

GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path) -> bytes:
    """The content of the file; a `TraceError` names the file and says what to do."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise TraceError(
            f"{path}: there is no such file; check the path.{_nearby(path)}"
        ) from error
    except IsADirectoryError as error:
        raise TraceError(
            f"{path}: this is a directory; name one of the trace files in it.{_inside(path)}"
        ) from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror}); check the file.") from error
    return unpacked(data, path)


def unpacked(data: bytes, path: Path) -> bytes:
    """The content of what was read, unpacked if it is gzip; ``path`` is named in errors."""
    if not data:
        raise TraceError(f"{path}: the file is empty (0 bytes); record or copy the trace again.")
    return unpack(data, path) if data.startswith(GZIP_MAGIC) else data


def unpack(data: bytes, path: Path) -> bytes:
    """The content of gzip data (one member or several)."""
    try:
        return gzip.decompress(data)
    except EOFError as error:
        raise TraceError(
            f"{path}: the gzip data ends at byte {len(data)}, before its end mark: the file "
            "was cut off while it was written or copied. Copy it again, or record again."
        ) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{path}: starts as gzip but does not unpack ({error}); copy the file again."
        ) from error


def write_whole(path: str | os.PathLike[str], write: Callable[[Any], object]) -> Path:
    """Let ``write`` fill the file, which appears when it is complete, or not at all."""
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except OSError as error:
        raise TraceError(
            f"{target}: cannot be written ({error.strerror or error}); "
            "name a file in a folder that exists and that you may write to."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _nearby(path: Path) -> str:
    return _inside(path.parent) if path.parent.is_dir() else ""


def _inside(folder: Path) -> str:
    """A hint at the trace files that are in the folder."""
    names = sorted(
        p.name for p in folder.iterdir() if p.name.endswith((".json", ".json.gz", ".zip"))
    )
    return f" In {folder} there is: {', '.join(names[:5])}." if names else ""
