"""Names of kernels as nvprof stores them, mangled by the C++ compiler, and as people read them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache

LONGEST = 4_096
"""Names beyond it stay as they are: they may be nobody's, made to exhaust the stack."""

_MANGLED = re.compile(r"_Z[A-Za-z0-9_.$]+")

Demangle = Callable[[bytes], str | None]


def readable(name: str) -> str:
    """``gemm(float*)`` of ``_Z4gemmPf``; what is no mangled name, or cannot be read, as it is."""
    if len(name) > LONGEST or not _MANGLED.fullmatch(name):
        return name
    demangle = _demangler()
    return (demangle(name.encode()) if demangle else None) or name


@cache
def _demangler() -> Demangle | None:
    """`__cxa_demangle` of the C++ library; None where there is none."""
    try:
        library, free = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None).free
        function = library.__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

    def demangle(name: bytes) -> str | None:
        found = function(name, None, None, None)
        if not found:
            return None
        try:
            return ctypes.string_at(found).decode("utf-8", "replace")
        finally:
            free(found)

    return demangle
