"""The errors that the package raises, and text made safe to print.

An error may quote names from a file, so `printable` lives here: it writes out control characters.
So does `in_words`, which says what to install where an import fails.

GpuprofError
├── TraceError      a file that cannot be read as a trace or profile (also a ValueError)
├── OptionError     an option that does not exist or has a wrong value (also a ValueError)
└── RecordingError  recording could not be started, stopped or read (also a RuntimeError)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any
from unicodedata import category

LINES = "\n"
SOURCE = "\n\t"
"""Characters that `printable` keeps in text of several lines, and in source code."""


INSTALLED_AS = {
    "IPython": "ipython",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "jupyter_client": "jupyter-client",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""What pip calls the packages whose module has another name."""


def missing_package(error: BaseException) -> str | None:
    """Return pip's name of the package whose absence raised the error; None for another error.

    A module that a package lacks is another error: the package is there, in a wrong version. So is
    a module of Python itself, such as ``_sqlite3``, if this Python was built without it.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name or "." in error.name:
        return None
    if error.name in sys.stdlib_module_names or error.name.startswith("_"):
        return None
    return INSTALLED_AS.get(error.name, error.name)


def in_words(error: BaseException, *, install: str = "pip install") -> str:
    """Return the error with its type; for a package that is missing, the command to type."""
    package = missing_package(error)
    if package is None:
        return f"{type(error).__name__}: {error}"
    return f"{package} is not installed: type `{install} {package}`"


def did_you_mean(word: str, known: Iterable[str], *, quoted: bool = False) -> str:
    """Return a question after the end of a sentence, if one of the known words is like this one."""
    from difflib import get_close_matches  # here, because `import gpuprof_widgets` needs none

    close = get_close_matches(word, list(known), n=1)
    return f" Did you mean {repr(close[0]) if quoted else close[0]}?" if close else ""


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with unprintable characters written out, except those to ``keep``.

    `str.isprintable` decides, but spaces of all widths stay too. Written out are escape codes, bidi
    controls, characters without width and halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or category(c) == "Zs" or c in keep
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def printable_lines(text: str) -> str:
    """Return text of several lines, as `printable`."""
    return printable(text, keep=LINES)


def printable_values(value: Any) -> Any:
    """Return a JSON value with all texts and keys printable; tabs and line ends stay."""
    if isinstance(value, str):
        return printable(value, keep=SOURCE)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return list(map(printable_values, value))
    return value


class GpuprofError(Exception):
    """Base of every error that gpuprof_widgets raises on purpose."""

    def __str__(self) -> str:
        """Return the message in one line, safe for a terminal: it may quote names from a file."""
        return printable(super().__str__())


class TraceError(GpuprofError, ValueError):
    """A file cannot be read; the message names the file and the place, and says what to do."""


class OptionError(GpuprofError, ValueError):
    """An option does not exist, or it has a value that it cannot take."""


class RecordingError(GpuprofError, RuntimeError):
    """The recording could not be started, stopped or turned into a record."""

    def __str__(self) -> str:
        """Return the message, in several lines if it ends in another process's traceback."""
        return printable_lines(Exception.__str__(self))
