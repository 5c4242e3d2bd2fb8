"""cProfile around a run, and its result as a table of calls."""

from __future__ import annotations

import cProfile
import sys
from collections.abc import Callable
from pstats import add_func_stats  # type: ignore[attr-defined]
from typing import Any
from weakref import WeakSet

from gpuprof_widgets.capture.one_thread import hear_this_thread_only
from gpuprof_widgets.trace.model import Calls
from gpuprof_widgets.trace.pstats import calls_of_stats

_MONITORS = sys.version_info >= (3, 12)
"""Whether cProfile is a tool of `sys.monitoring` (and refuses a second one) or the profile hook."""

_ended: WeakSet[cProfile.Profile] = WeakSet()
"""Ours that have ended while another had the hook, or in another thread: they may still have it."""


class CallsRecording:
    """One use of cProfile, for the thread that starts it.

    The user's own cProfile comes first; ``lost`` says what that cost.
    """

    def __init__(self) -> None:
        self.lost: str | None = None
        self._profile: cProfile.Profile | None = None
        self._profiles: list[cProfile.Profile] = []  # one per start
        self._running = False
        self._watching = False

    def start(self) -> None:
        """Start recording, or set ``lost`` where another profiler holds the interpreter's hook.

        What is recorded after a stop and another start is added to what was before.
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
        self._profile = cProfile.Profile()
        self._profiles.append(self._profile)
        self._watch_entrance()
        self._running = True
        self._profile.enable()
        hear_this_thread_only(self._profile)

    def stop(self) -> None:
        """Stop, unless another profiler has taken the hook: that one is left running."""
        profile, running = self._profile, self._running
        self._running = False
        if running and profile is not None:
            hook: Any = sys.getprofile()
            profile.disable()
            if not _MONITORS and hook is not profile:
                _ended.add(profile)
                sys.setprofile(hook)
                self.lost = (
                    "another Python profiler took over in this run; "
                    "this profile has the Python calls before that"
                )
        self._unwatch_entrance()

    def calls(self) -> Calls | None:
        """What was recorded; None where nothing was."""
        if not self._profiles:
            return None
        stats: dict[Any, Any] = {}
        for profile in self._profiles:
            # Not create_stats(), which would end whatever profiler holds the hook by now.
            profile.snapshot_stats()
            for function, numbers in profile.stats.items():
                before = stats.get(function)
                stats[function] = add_func_stats(before, numbers) if before else numbers
        return calls_of_stats(stats)

    def _watch_entrance(self) -> None:
        """End this recording when the user enables a cProfile: two at once cannot be."""
        original: Callable[..., None] = cProfile.Profile.enable

        def enable(profile: cProfile.Profile, *args: Any, **kwargs: Any) -> None:
            if self._running and profile is not self._profile:
                self.stop()
                self.lost = (
                    "your own cProfile started in this run and has the Python calls from then on; "
                    "this profile has those before"
                )
            original(profile, *args, **kwargs)

        cProfile.Profile.enable = enable  # type: ignore[method-assign, assignment]
        self._watching = True

    def _unwatch_entrance(self) -> None:
        if self._watching:
            del cProfile.Profile.enable  # the method inherited from the C class shows again
            self._watching = False


def hook_is_taken() -> bool:
    """Whether another Python profiler runs, beside which cProfile cannot."""
    if sys.version_info >= (3, 12):
        return sys.monitoring.get_tool(sys.monitoring.PROFILER_ID) is not None
    return sys.getprofile() is not None
