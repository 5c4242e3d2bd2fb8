"""Small files of every kind: a trace as Kineto writes it, and archives of files in memory."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

KINETO_EVENT = """
  {
    "ph": "X", "cat": "cpu_op", "name": %s, "pid": %s, "tid": 7,
    "ts": %s, "dur": 2.500
  }"""


def kineto(*names: str, start_us: int = 1, pid: int = 100, **header: Any) -> bytes:
    """A trace of ops one after another, laid out as Kineto lays it out."""
    ops = [
        KINETO_EVENT % (json.dumps(name), pid, f"{start_us + 10 * number}.000")
        for number, name in enumerate(names)
    ]
    head = json.dumps({"schemaVersion": 1, **header})[:-1]
    return f'{head},\n  "traceEvents": [{",".join(ops)}\n  ]\n}}\n'.encode()


def zip_of(files: Mapping[str, bytes]) -> bytes:
    """A zip with these files by name, the same bytes at any time of day."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def tar_of(files: Mapping[str, bytes], kind: int = tarfile.DEFAULT_FORMAT) -> bytes:
    """A tar with these files by name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()
