"""Torch profilers of this process, the user's own too: whether one runs, and when one starts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerAction, profile
from torch.profiler.profiler import PROFILER_STEP_NAME

_ENTRANCES = ("_prepare_profiler", "_enable_profiler")
"""Functions that every torch profiler calls as it starts."""


class Entrances:
    """Tells just before another torch profiler starts: one of two stays empty."""

    def __init__(self) -> None:
        self._originals: dict[str, Callable[..., Any]] = {}

    def watch(self, give_way: Callable[[], None]) -> None:
        """Call ``give_way`` whenever one starts, until `unwatch`."""
        for name in _ENTRANCES:
            original = getattr(autograd_profiler, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(autograd_profiler, name, _watched(original, give_way))

    def unwatch(self) -> None:
        """Restore the entrances; may be called twice."""
        while self._originals:
            name, original = self._originals.popitem()
            setattr(autograd_profiler, name, original)


def _watched(original: Callable[..., Any], give_way: Callable[[], None]) -> Callable[..., Any]:
    def entrance(*args: Any, **kwargs: Any) -> Any:
        give_way()
        return original(*args, **kwargs)

    return entrance


def profiler_is_running() -> bool:
    """Whether any torch profiler runs, in this thread or for all threads."""
    everywhere = getattr(autograd_profiler, "_is_profiler_enabled", False)
    return bool(everywhere or torch._C._autograd._profiler_enabled())


def profiler_is_warming_up() -> bool:
    """Whether a torch.profiler with a schedule is in its warm-up.

    Another profile before it starts would end its preparations, and then torch crashes.
    """
    if PROFILER_STEP_NAME not in autograd_profiler.KinetoStepTracker._step_dict:
        return False  # there is none: searching all objects takes tens of milliseconds
    kinds: tuple[type[profile], ...] = (profile, *profile.__subclasses__())
    profiles = [found for found in gc.get_referrers(*kinds) if isinstance(found, kinds)]
    return any(
        found.current_action is ProfilerAction.WARMUP
        and found.profiler is not None
        # Where events of several cycles add up, the results are those of an earlier cycle.
        and (getattr(found, "acc_events", False) or found.profiler.kineto_results is None)
        for found in profiles
    )
