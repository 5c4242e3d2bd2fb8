"""A Python program in a process of its own, and the CPU time and memory that it took."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Timer

ROOT = Path(__file__).parents[1]
LONGEST_REASON = 200


class ChildError(Exception):
    """The process did not end well; the message is the last line that it wrote, or its signal."""


@dataclass(frozen=True)
class Usage:
    """What a process took, its own children included: CPU seconds and the peak in bytes."""

    cpu: float
    peak: int


def run(interpreter: Path, code: str, *arguments: str, seconds: float = 3600) -> Usage:
    """Run the code to its end and return what the whole process took.

    It runs in the root of the clone, so that `import gpuprof_widgets` means the clone's package.
    Keep the caller small: until the program starts, the process counts as large as its caller.
    """
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [interpreter, "-c", code, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        late = Event()

        def stop() -> None:
            late.set()
            child.kill()

        limit = Timer(seconds, stop)
        limit.start()
        # Not child.wait(): only wait4 says what this one process took.
        _, status, used = os.wait4(child.pid, 0)
        limit.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            written = errors.read().decode(errors="replace")
            took = f"took more than {seconds:.0f} s" if late.is_set() else ""
            raise ChildError(took or reason(child.returncode, written))
    return Usage(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def reason(returncode: int, written: str) -> str:
    """Why a process ended with that code, in one line."""
    if returncode < 0:
        return f"ended by {signal.Signals(-returncode).name}"
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    return lines[-1][:LONGEST_REASON] if lines else f"ended with exit code {returncode}"
