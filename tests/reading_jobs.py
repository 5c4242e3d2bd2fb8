"""What processes that read files may be asked to do; they import it, so it imports little."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gpuprof_widgets.exceptions import TraceError


def process_of(file: Path) -> tuple[str, int]:
    """The name of the file, and the process that reads it."""
    return file.name, os.getpid()


def fail(file: Path) -> str:
    """The name of the file, or the error that it stands for."""
    if file.name == "value":
        raise ValueError("no such value")
    if file.name == "trace":
        raise TraceError(f"{file}: no trace")
    return file.name


def die(file: Path) -> str:
    """The name of the file, but "always" ends the process, "once" the first time."""
    before = file.with_suffix(".before")
    if file.name == "always" or (file.name == "once" and not before.exists()):
        before.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return file.name


def wait_unless_quick(file: Path) -> None:
    """Say in a file which process it is; go on until somebody ends it, unless it is "quick"."""
    file.with_suffix(".unfinished").write_text(str(os.getpid()))
    file.with_suffix(".unfinished").rename(file.with_suffix(".pid"))
    while file.name != "quick":
        time.sleep(0.1)


def wait_or_fail(file: Path) -> None:
    """Wait in the process that reads "slow"; when it does, raise an error in the other one."""
    if file.name == "slow":
        wait_unless_quick(file)
    while not file.with_name("slow.pid").exists():
        time.sleep(0.01)
    fail(file)


def header_of_http(file: Path) -> str:
    """A header that requests have, as fsspec is configured."""
    from fsspec.config import conf

    return str(conf["http"]["headers"]["x"])
