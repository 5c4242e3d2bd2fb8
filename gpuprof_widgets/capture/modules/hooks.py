"""Hooks around the forward of every nn.Module, and nothing of them left in any module.

They are torch's global hooks: no instance is touched, so what the user copies, saves or pickles
meanwhile has nothing of ours, and modules made meanwhile are covered. torch runs them before the
module's own. So where there are own ones to be counted in, a hook of ours is among them, the last,
while the module's forward runs; a copy made by then has one that does nothing in its place.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import jit, nn
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

Before = Callable[[torch.nn.Module, Any], None]
After = Callable[[torch.nn.Module, Any, Any], None]
Around = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Last(functools.partial[None]):
    """A module's own hook for one call. Not a function, which torch.compile would look into."""

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes three arguments and returns None


class ModuleHooks:
    """The two hooks, out of sight of torch.compile and torch.export.

    Both take other ways where there are global hooks: they warn, fail, or compile again when the
    hooks are gone. So these are gone while they compile, and do not count for the warning.
    ``compiled`` says whether a graph was made or ran: what is inside one calls no hooks.
    """

    def __init__(self, before: Before, after: After, last: Callable[..., None]) -> None:
        self.compiled = False
        self._before, self._after = before, after
        self._last = self._unseen_last = last
        self._there = False
        self._absences = 0
        self._handles: list[Any] = []
        self._asked: Callable[[], Any] | None = None
        self._patched: dict[tuple[Any, str], Any] = {}
        self._callbacks: list[tuple[Callable[[Any], None], Callable[[Any], None]]] = []

    def add(self) -> None:
        """Put the hooks in."""
        self._there = True
        self._follow_export()
        if _loaded("torch._dynamo") is None:
            self._patch(torch, "compile", self._loading_dynamo)
        else:
            self._follow_dynamo()
        self._register()

    def remove(self) -> None:
        """Take everything out again; may be called twice."""
        self._there, self._absences = False, 0
        self._unregister()
        while self._patched:
            (owner, name), original = self._patched.popitem()
            setattr(owner, name, original)
        while self._callbacks:
            start, end = self._callbacks.pop()
            handler = _loaded("torch._dynamo").callback_handler
            # torch._dynamo.reset() has taken out everyone's.
            if start in handler.start_callbacks:
                handler.remove_start_callback(start)
            if end in handler.end_callbacks:
                handler.remove_end_callback(end)

    def last_of(self, module: nn.Module, mark: object) -> RemovableHandle | None:
        """A handle of ``last(mark, ...)``, to run after all hooks; None where ``after`` does."""
        latest = next(reversed(torch_modules._global_forward_hooks), None)
        after_all = not self._handles or latest == self._handles[-1].id
        if (after_all and not module._forward_hooks) or isinstance(module, jit.ScriptModule):
            return None
        last: Any = _Last(self._unseen_last, mark)
        return nn.Module.register_forward_hook(module, last, always_call=True)

    def if_one_raises(self, mark: object) -> RemovableHandle:
        """A handle of ``last(mark, ...)`` that torch also calls where a hook has raised."""
        last: Any = _Last(self._unseen_last, mark)
        return torch_modules.register_module_forward_hook(last, always_call=True)

    def _register(self) -> None:
        # Beside a graph these run under dynamo, which would compile them as well.
        unseen = getattr(_loaded("torch._dynamo"), "disable", lambda function: function)
        self._unseen_last = unseen(self._last)
        self._handles = [
            torch_modules.register_module_forward_pre_hook(unseen(self._before)),
            torch_modules.register_module_forward_hook(unseen(self._after), always_call=True),
        ]
        others: Any = torch_modules._global_forward_pre_hooks
        others.move_to_end(self._handles[0].id, last=False)
        self._asked = getattr(torch_modules, "_has_any_global_hook", None)  # torch 2.6 has no such
        if self._asked is not None:
            torch_modules._has_any_global_hook = unseen(self._not_counting(self._asked))

    def _unregister(self) -> None:
        if self._asked is not None:
            torch_modules._has_any_global_hook = self._asked
            self._asked = None
        while self._handles:
            self._handles.pop().remove()

    def _leave(self) -> None:
        self._absences += 1
        self._unregister()

    def _return(self) -> None:
        self._absences -= 1
        if self._there and self._absences <= 0 and not self._handles:
            self._register()

    @contextmanager
    def _absent(self) -> Iterator[None]:
        self._leave()
        try:
            yield
        finally:
            self._return()

    def _patch(self, owner: Any, name: str, around: Around) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            self._patched[owner, name] = original
            setattr(owner, name, functools.wraps(original)(around(original)))

    def _not_counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What torch asks before it runs a compiled module: ours do not count."""

        def has_any_global_hook() -> bool:
            self.compiled = True
            with self._absent():
                return bool(original())

        return has_any_global_hook

    def _without_hooks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def exported(*args: Any, **kwargs: Any) -> Any:
            with self._absent():
                return original(*args, **kwargs)

        return exported

    def _loading_dynamo(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.compile where nothing was compiled yet: it imports what has to be followed."""

        def following(*args: Any, **kwargs: Any) -> Any:
            if self._there and not self._callbacks:
                import torch._dynamo  # noqa: F401

                with self._absent():
                    self._follow_dynamo()
            return original(*args, **kwargs)

        return following

    def _follow_dynamo(self) -> None:
        def start(*_: Any) -> None:  # torch 2.6 says nothing to them, later ones what they compile
            self.compiled = True
            self._leave()

        def end(*_: Any) -> None:
            self._return()

        self._callbacks.append((start, end))
        _loaded("torch._dynamo").callback_handler.register_start_callback(start)
        _loaded("torch._dynamo").callback_handler.register_end_callback(end)

    def _follow_export(self) -> None:
        """`torch.export.export` imports what does the work when it is first called."""
        if (trace := _loaded("torch.export._trace")) is not None:
            self._patch(trace, "_export", self._without_hooks)
        elif (export := _loaded("torch.export")) is not None:
            self._patch(export, "export", self._without_hooks)


def _loaded(name: str) -> Any:
    """That module if it was imported: to import it would take a second."""
    return sys.modules.get(name)
