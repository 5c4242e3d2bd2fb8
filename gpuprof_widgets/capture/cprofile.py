"""cProfile around a run: its calls as a table, its limits, and a note on threads it does not see.

`CallsRecording` starts and stops cProfile, and makes way for a profiler of the user's. From Python
3.12 on cProfile hears all threads; `hear_this_thread_only` undoes that. `note_on_threads` finds in
the calls who started threads, whose ops torch's profiler does not follow.
"""

from __future__ import annotations

import cProfile
import re
import sys
import threading
from collections.abc import Callable
from pstats import add_func_stats  # type: ignore[attr-defined]
from typing import Any
from weakref import WeakSet

import numpy as np

from gpuprof_widgets.trace.model import Calls
from gpuprof_widgets.trace.pstats import calls_of_stats

_MONITORS = sys.version_info >= (3, 12)
"""Whether cProfile uses `sys.monitoring`, which refuses a second one, or the profile hook."""

_ended: WeakSet[cProfile.Profile] = WeakSet()
"""Our profiles that ended while another held the hook, or in another thread: they may hold it."""


_THREAD = re.compile(r"(?:^|[/\\])threading\.py$")
_CARRIERS = re.compile(
    r"(?:^|[/\\])(?:multiprocessing[/\\](?:queues|pool)\.py|concurrent[/\\]futures[/\\]process\.py"
    r"|torch[/\\]utils[/\\]data[/\\]|tqdm[/\\]_monitor\.py)"
)
"""Code that starts threads without ops: they send work to processes, or watch a progress bar."""
_POOLS = re.compile(r"(?:^|[/\\])(?:concurrent[/\\]futures|multiprocessing|asyncio)[/\\]")
"""Code that starts threads on behalf of its callers."""
_COMPILERS = re.compile(r"(?:^|[/\\])torch[/\\]_inductor[/\\]")
"""Code that starts threads to compile, also through a pool: they run no ops either."""
_MOST_NAMED = 3
_NO_CALLS: Any = (0, 0, 0.0, 0.0, {})


class CallsRecording:
    """One use of cProfile, in the thread that starts it.

    The user's own cProfile takes precedence; ``lost`` then says what is missing here.
    """

    def __init__(self) -> None:
        self.lost: str | None = None
        self._profiles: list[cProfile.Profile] = []  # one per start
        self._running = False

    def start(self) -> None:
        """Start recording, or set ``lost`` where another profiler holds the interpreter's hook.

        Calls after a stop and another start are added to those before.
        """
        hook: Any = sys.getprofile()
        if hook in _ended:
            sys.setprofile(None)
        if hook_is_taken():
            self.lost = (
                "another Python profiler is already running and keeps the Python calls; "
                "this profile has none of them"
            )
            return
        self._profiles.append(cProfile.Profile())
        self._watch_entrance()
        self._running = True
        self._profiles[-1].enable()
        hear_this_thread_only(self._profiles[-1])

    def stop(self) -> None:
        """Stop; a profiler that has taken over the hook is left running."""
        if not self._running:
            return
        self._running = False
        profile = self._profiles[-1]
        hook: Any = sys.getprofile()
        profile.disable()
        if not _MONITORS and hook is not profile:
            _ended.add(profile)
            sys.setprofile(hook)
            self.lost = (
                "another Python profiler took over in this run; "
                "this profile has the Python calls before that"
            )
        del cProfile.Profile.enable  # the method inherited from the C class shows again

    def calls(self) -> Calls | None:
        """Return the recorded calls; None where nothing was recorded."""
        if not self._profiles:
            return None
        stats: dict[Any, Any] = {}
        for profile in self._profiles:
            _add_stats(stats, profile)
        return calls_of_stats(stats)

    def _watch_entrance(self) -> None:
        """End this recording when the user enables a cProfile: only one can run."""
        original: Callable[..., None] = cProfile.Profile.enable

        def enable(profile: cProfile.Profile, *args: Any, **kwargs: Any) -> None:
            if self._running and profile is not self._profiles[-1]:
                self.stop()
                self.lost = (
                    "your own cProfile started in this run and has the Python calls from then on; "
                    "this profile has those before"
                )
            original(profile, *args, **kwargs)

        cProfile.Profile.enable = enable  # type: ignore[method-assign, assignment]


def _add_stats(stats: dict[Any, Any], profile: cProfile.Profile) -> None:
    """Add the calls of a profile to those of others, as its `snapshot_stats` states them.

    But of several functions with one name on one line (lambdas; a marked function, once it has its
    plain code back) that keeps the last alone, and here they are added up, as the recursion that
    they are where one calls the other. Not `create_stats`, which would end whatever profiler holds
    the hook now.
    """
    entries = profile.getstats()
    names: dict[int, Any] = {id(entry.code): cProfile.label(entry.code) for entry in entries}
    for entry in entries:
        function = names[id(entry.code)]
        stats[function] = add_func_stats(stats.get(function, _NO_CALLS), (*_numbers(entry), {}))
    for entry in entries:
        caller = names[id(entry.code)]
        for called in entry.calls or ():
            if (function := names.get(id(called.code))) is not None:
                primitive, calls, own, total = _numbers(called)
                if function == caller and called.code is not entry.code:
                    repeated: Any = (-primitive, 0, 0.0, -total, {})
                    stats[function] = add_func_stats(stats[function], repeated)
                callers = stats[function][4]
                before = callers.get(caller, (0, 0, 0.0, 0.0))
                numbers = (calls, primitive, own, total)
                callers[caller] = tuple(a + b for a, b in zip(before, numbers, strict=True))


def _numbers(entry: Any) -> tuple[int, int, float, float]:
    """Return primitive calls, calls, own time and total time (s)."""
    calls = entry.callcount
    return calls - entry.reccallcount, calls, entry.inlinetime, entry.totaltime


def hook_is_taken() -> bool:
    """Whether another Python profiler runs, so that cProfile cannot."""
    if sys.version_info >= (3, 12):
        return sys.monitoring.get_tool(sys.monitoring.PROFILER_ID) is not None
    return sys.getprofile() is not None


def hear_this_thread_only(profile: Any) -> None:
    """Keep other threads out of a cProfile that was just enabled, from Python 3.12 on.

    There cProfile hears the calls and returns of every thread, but keeps one stack for all: a
    return in one thread ends the call of another, so that callers, times and even counts are wrong
    as soon as two threads run Python, as in any kernel. On 3.11 it hears its own thread only.
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
        profile.clear()  # drop what it heard meanwhile


# One gate per number of arguments, because these run at every call.
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


_GATES: dict[tuple[str, ...], Callable[[Any], Callable[..., None]]] = {
    ("PY_START", "PY_RESUME"): _at_start,
    ("PY_RETURN", "PY_YIELD", "PY_THROW", "PY_UNWIND"): _at_end,
    ("CALL", "C_RETURN", "C_RAISE"): _at_builtin,
}


def note_on_threads(calls: Calls | None, *, has_frames: bool) -> list[str]:
    """Return a sentence with the functions that started threads, if any did.

    ``has_frames``: whether samples, or stacks, have the Python of other threads.

    They are the callers of ``threading.Thread.start``; cProfile does not know the callers of code
    that was running already when it began.
    """
    if calls is None:
        return []
    starters, are_all = _starters(calls)
    if are_all and not starters:
        return []
    named = list(dict.fromkeys(_place(calls, starter) for starter in starters))
    if len(named) > _MOST_NAMED:
        named = [*named[:_MOST_NAMED], "others"]
    by = f" (by {', '.join(named)})" if named else ""
    advice = "" if has_frames else "; --python sampled shows their Python functions"
    return [
        f"threads were started{by}: torch's profiler follows only the thread in which it starts, "
        f"so their ops and modules are not in the record{advice}"
    ]


def _starters(calls: Calls) -> tuple[list[int], bool]:
    """Return who started threads that may run ops, and whether all starters are known.

    Pools are replaced by their callers.
    """
    functions, edges = calls.functions, calls.edges
    kinds = (_THREAD, _CARRIERS, _POOLS, _COMPILERS)
    in_thread, carries, pools, compiles = (
        functions["file"].str.contains(kind).to_numpy(dtype=bool) for kind in kinds
    )
    is_start = in_thread & (functions["name"] == "start").to_numpy(dtype=bool)
    starters: list[int] = []
    are_all, waiting = True, np.flatnonzero(is_start).tolist()
    seen = set(waiting)
    while waiting:
        callee = waiting.pop(0)
        by_caller = edges[edges["callee"] == callee]
        are_all &= int(functions["calls"].iloc[callee]) <= int(by_caller["calls"].sum())
        runs_ops = ~(compiles | (carries & is_start[callee]))
        callers = [
            caller for caller in by_caller["caller"] if runs_ops[caller] and caller not in seen
        ]
        seen.update(callers)
        waiting += [caller for caller in callers if pools[caller]]
        starters += [caller for caller in callers if not pools[caller]]
    return starters, are_all


def _place(calls: Calls, function: int) -> str:
    file, name = calls.functions["file"].iloc[function], calls.functions["name"].iloc[function]
    place = "/".join(re.split(r"[/\\]", file)[-2:])
    return place if name == "<module>" else f"`{name}` in {place}"
