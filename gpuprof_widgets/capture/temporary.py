"""Folders for what is written while recording, named after the process, which may be killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def temporary_folder() -> Path:
    """A new folder of this process; an `OSError` where there is none to be had."""
    return Path(tempfile.mkdtemp(prefix=_prefix(os.getpid())))


def remove_folders_of(process: int) -> None:
    """Remove what a process that was killed could not remove itself."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(process)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(process: int) -> str:
    return f"gpuprof-{process}-"
