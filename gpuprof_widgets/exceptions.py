"""The errors that the package raises.

GpuprofError
├── TraceError      a file that cannot be read as a trace or profile (also a ValueError)
├── OptionError     an option that does not exist or has a wrong value (also a ValueError)
└── RecordingError  recording could not be started, stopped or read (also a RuntimeError)
"""

from __future__ import annotations

from gpuprof_widgets.printable import printable, printable_lines


class GpuprofError(Exception):
    """Base of every error that gpuprof_widgets raises on purpose."""

    def __str__(self) -> str:
        """The message as a terminal may have it, in one line: it may quote names from a file."""
        return printable(super().__str__())


class TraceError(GpuprofError, ValueError):
    """A file cannot be read: the message names the file, the place, and what to do."""


class OptionError(GpuprofError, ValueError):
    """An option is unknown or has a value it cannot take."""


class RecordingError(GpuprofError, RuntimeError):
    """The recording could not be started, stopped or turned into a record."""

    def __str__(self) -> str:
        """In several lines where it ends in the traceback of another process."""
        return printable_lines(Exception.__str__(self))
