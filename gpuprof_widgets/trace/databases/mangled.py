"""Names of kernels as nvprof stores them, mangled by the C++ compiler, and as people read them.

The C++ library reads them, in a process of its own with little memory and time: a name of 250
letters can stand for a text of gigabytes, and others could end the process that reads them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable

LONGEST = 4_096
"""Names and readable names beyond it stay as they are: they may be nobody's."""

_MANGLED = re.compile(r"_Z[A-Za-z0-9_.$]+")
_SECONDS = 2
"""Of a processor; names of real traces take a few milliseconds."""
_DEMANGLER = f"""
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
free = ctypes.CDLL(None).free
demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
for line in sys.stdin.buffer:
    found = demangle(line.rstrip(), None, None, None)
    text = ctypes.string_at(found) if found else b""
    free(found)
    sys.stdout.buffer.write((text if len(text) <= {LONGEST} else b"") + b"\\n")
    sys.stdout.buffer.flush()
"""
"""Answers each line with a line, which is empty where the name cannot be read."""


def readable(names: Iterable[str]) -> dict[str, str]:
    """``gemm(float*)`` of ``_Z4gemmPf``, by name; what cannot be read is as it was."""
    distinct = dict.fromkeys(names)
    mangled = [name for name in distinct if len(name) <= LONGEST and _MANGLED.fullmatch(name)]
    found = dict(zip(mangled, _demangled(mangled), strict=False)) if mangled else {}
    return {name: found.get(name) or name for name in distinct}


def _demangled(names: list[str]) -> list[str]:
    """A line for each name, or fewer where the process did not come to its end."""
    command = [sys.executable, "-I", "-S", "-c", _DEMANGLER]
    given = "".join(f"{name}\n" for name in names).encode()
    try:
        answered = subprocess.run(
            command, input=given, capture_output=True, timeout=30, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        answered = error.stdout or b""
    except (OSError, TypeError):  # no Python can be started, as in an embedded one
        return []
    return answered.decode("utf-8", "replace").split("\n")
