"""Hooks around the forward of every nn.Module, and nothing of them left in any module.

They are torch's global hooks: no instance is touched, so what the user copies, saves or pickles
meanwhile has nothing of ours, and modules made meanwhile are covered.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_modules

Before = Callable[[torch.nn.Module, Any], None]
After = Callable[[torch.nn.Module, Any, Any], None]


class ModuleHooks:
    """The two hooks, out of sight of torch.compile.

    torch.compile warns of global hooks, and what it compiles while they are there is compiled
    again when they are gone. So they are gone while it compiles, and do not count for its
    warning; ``compiled`` says whether it was at work: what runs inside a graph calls no hooks.
    """

    def __init__(self, before: Before, after: After) -> None:
        self.compiled = False
        self._before, self._after = before, after
        self._handles: list[Any] = []
        self._patched: dict[tuple[Any, str], Any] = {}
        self._callbacks: list[tuple[Callable[[Any], None], Callable[[Any], None]]] = []

    def add(self) -> None:
        """Put the hooks in."""
        self._patch(torch_modules, "_has_any_global_hook", self._not_counting)
        if _dynamo() is None:
            self._patch(torch, "compile", self._following)
        else:
            self._follow_dynamo()
        self._register()

    def remove(self) -> None:
        """Take everything out again; may be called twice."""
        self._unregister()
        while self._patched:
            (owner, name), original = self._patched.popitem()
            setattr(owner, name, original)
        while self._callbacks:
            start, end = self._callbacks.pop()
            handler = _dynamo().callback_handler
            # torch._dynamo.reset() has taken out everyone's.
            if start in handler.start_callbacks:
                handler.remove_start_callback(start)
            if end in handler.end_callbacks:
                handler.remove_end_callback(end)

    def _register(self) -> None:
        before, after = self._before, self._after
        if (dynamo := _dynamo()) is not None:
            # Beside a graph the hooks run under dynamo, which would compile them as well.
            before, after = dynamo.disable(before), dynamo.disable(after)
        if not self._handles:
            self._handles = [
                torch_modules.register_module_forward_pre_hook(before),
                torch_modules.register_module_forward_hook(after, always_call=True),
            ]

    def _unregister(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _patch(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            self._patched[owner, name] = original
            setattr(owner, name, around(original))

    def _not_counting(self, original: Callable[[], Any]) -> Callable[[], bool]:
        """What torch asks before it runs a compiled module: ours do not count."""

        def has_any_global_hook() -> bool:
            self.compiled = True
            there = bool(self._handles)
            self._unregister()
            try:
                return bool(original())
            finally:
                if there:
                    self._register()

        return has_any_global_hook

    def _following(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.compile where nothing was compiled yet: it imports what has to be followed."""

        @functools.wraps(original)
        def following(*args: Any, **kwargs: Any) -> Any:
            if self._handles and not self._callbacks:
                import torch._dynamo  # noqa: F401

                self._follow_dynamo()
                self._unregister()
                self._register()
            return original(*args, **kwargs)

        return following

    def _follow_dynamo(self) -> None:
        def start(_: Any) -> None:
            self.compiled = True
            self._unregister()

        def end(_: Any) -> None:
            if self._callbacks:
                self._register()

        self._callbacks.append((start, end))
        _dynamo().callback_handler.register_start_callback(start)
        _dynamo().callback_handler.register_end_callback(end)


def _dynamo() -> Any:
    """torch._dynamo if it was imported: that takes a second, and without it nothing is compiled."""
    return sys.modules.get("torch._dynamo")
