"""cProfile for one thread: from Python 3.12 on it hears all of them.

DataLoader workers import this as well: it needs the standard library alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any


def hear_this_thread_only(profile: Any) -> None:
    """Keep other threads out of a cProfile that was enabled just now, from Python 3.12 on.

    There it hears the calls and returns of every thread, but keeps one stack for all: a return in
    one thread ends the call of another, so that callers, times and even counts are wrong as soon
    as two threads run Python, as in any kernel. On 3.11 it never heard the others.
    """
    if sys.version_info >= (3, 12):
        tool = sys.monitoring.PROFILER_ID
        for names, only_here in _GATES.items():
            for name in names:
                event = getattr(sys.monitoring.events, name)
                # Registering returns what was registered before: cProfile's own callback.
                callback = sys.monitoring.register_callback(tool, event, None)
                if callback is not None:
                    sys.monitoring.register_callback(tool, event, only_here(callback))
        profile.clear()  # of what it heard while its callbacks were exchanged


# One per number of arguments, thread and callback as defaults: these run at every call.
def _at_start(callback: Any) -> Callable[..., None]:
    here = threading.get_ident()

    def gate(code: Any, offset: int, thread: Any = threading.get_ident) -> None:
        if thread() == here:
            callback(code, offset)

    return gate


def _at_end(callback: Any) -> Callable[..., None]:
    here = threading.get_ident()

    def gate(code: Any, offset: int, value: Any, thread: Any = threading.get_ident) -> None:
        if thread() == here:
            callback(code, offset, value)

    return gate


def _at_builtin(callback: Any) -> Callable[..., None]:
    here = threading.get_ident()

    def gate(
        code: Any, offset: int, called: Any, first: Any, thread: Any = threading.get_ident
    ) -> None:
        if thread() == here:
            callback(code, offset, called, first)

    return gate


_GATES = {
    ("PY_START", "PY_RESUME"): _at_start,
    ("PY_RETURN", "PY_YIELD", "PY_THROW", "PY_UNWIND"): _at_end,
    ("CALL", "C_RETURN", "C_RAISE"): _at_builtin,
}
