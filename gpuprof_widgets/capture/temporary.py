"""Folders for what is written while a recording runs or ends, gone as soon as it is read.

A rank of a distributed run is ended at any moment, so its folders lie within one that the process
removes which started it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpuprof_widgets.exceptions import RecordingError

_within: Path | None = None


def temporary_folder() -> Path:
    """A new folder; a `RecordingError` where there is none to be had."""
    try:
        return Path(tempfile.mkdtemp(prefix="gpuprof-", dir=_within))
    except OSError as error:
        raise RecordingError(
            f"there is no folder for temporary files ({error.strerror}: {error.filename}); "
            "set TMPDIR to one that can be written and restart"
        ) from error


def keep_folders_within(folder: Path) -> None:
    """Let all folders of this process, and of those that it forks, lie in this one."""
    global _within
    _within = folder
