"""Torch profilers of this process, the user's own too: whether one runs, and when one starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler

_ENTRANCES = ("_prepare_profiler", "_enable_profiler")
"""Functions that every torch profiler calls as it starts."""


class Entrances:
    """Calls ``give_way`` just before another torch profiler starts: one of two stays empty."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._originals: dict[str, Callable[..., Any]] = {}

    def watch(self) -> None:
        """Watch from now on, until `unwatch`."""
        for name in _ENTRANCES:
            original = getattr(autograd_profiler, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(autograd_profiler, name, self._watched(original))

    def unwatch(self) -> None:
        """Restore the entrances; may be called twice."""
        while self._originals:
            name, original = self._originals.popitem()
            setattr(autograd_profiler, name, original)

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def entrance(*args: Any, **kwargs: Any) -> Any:
            self._give_way()
            return original(*args, **kwargs)

        return entrance


def profiler_is_running() -> bool:
    """Whether any torch profiler runs, in this thread or for all threads."""
    everywhere = getattr(autograd_profiler, "_is_profiler_enabled", False)
    return bool(everywhere or torch._C._autograd._profiler_enabled())
