"""What processes that read files may be asked to do; they import it, so it imports little."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

from gpuprof_widgets.exceptions import TraceError


class PickyError(Exception):
    """An error that cannot be made from its arguments, as unpickling does."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def process_of(file: Path) -> tuple[str, int]:
    """The name of the file, and the process that reads it."""
    return file.name, os.getpid()


def read_after_the_next(file: Path) -> str:
    """The name of the file, once the next one has been read: 1 before 0."""
    file.touch()
    while file.name == "0" and not file.with_name("1").exists():
        time.sleep(0.01)
    return file.name


def read_noisily(file: Path) -> str:
    """The name of the file, with much noise on what may be the pipes."""
    print("printed")
    os.write(1, b"written\n")
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    logging.getLogger().error("logged")
    sys.stdout.write("not flushed")
    return file.name + sys.stdin.read() + str(os.read(0, 9), "ascii")


def read_with_a_warning(file: Path) -> str:
    """The name of the file, which is odd."""
    warnings.warn(f"{file.name} is odd", stacklevel=1)
    return file.name


def fail(file: Path) -> str:
    """Raise what the name of the file says."""
    error = {
        "value": ValueError("no such value"),
        "exit": SystemExit(3),
        "picky": PickyError("it", "not so"),
        "trace": TraceError(f"{file}: no trace"),
    }.get(file.name)
    if error is not None:
        raise error
    return file.name


def unpicklable(file: Path) -> object:
    """What cannot be sent."""
    return lambda: file


def die(file: Path) -> str:
    """The name of the file, but "always" ends the process, "once" the first time."""
    before = file.with_suffix(".before")
    if file.name == "always" or (file.name == "once" and not before.exists()):
        before.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return file.name


def die_quietly(file: Path) -> str:
    """End the process as if all were well."""
    os._exit(0)


def wait_forever(file: Path) -> None:
    """Say in a file which process it is, and go on until somebody ends it."""
    file.with_suffix(".unfinished").write_text(str(os.getpid()))
    file.with_suffix(".unfinished").rename(file.with_suffix(".pid"))
    while True:
        time.sleep(60)


def wait_unless_quick(file: Path) -> int:
    """The process that reads; only "quick" is ever read."""
    if file.name != "quick":
        wait_forever(file)
    file.with_suffix(".pid").write_text(str(os.getpid()))
    return os.getpid()


def fail_or_wait(file: Path) -> str:
    """Fail once the slow file is read, which is until somebody ends that process."""
    if file.name == "slow":
        wait_forever(file)
    while not file.with_name("slow.pid").exists():
        time.sleep(0.01)
    return fail(file)


def header_of_http(file: Path) -> str:
    """A header that requests have, as fsspec is configured."""
    from fsspec.config import conf

    return str(conf["http"]["headers"]["x"])


def session_of(file: Path) -> int:
    """The session of the process, to which a terminal sends its Ctrl-C."""
    return os.getsid(0)
