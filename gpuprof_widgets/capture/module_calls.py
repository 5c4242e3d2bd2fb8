"""Enter a context manager around every call of an nn.Module, without changing any module.

While it does, `nn.Module._call_impl` has other code, which enters a context manager and runs
torch's code inside it. torch's global hooks are no alternative: with them torch calls more
functions, which a profile would show as the user's, and dynamo, which guards on the absence of
hooks, would compile again. The function object stays the same, so that whoever holds it (a module
compiled in place does) gets the marks too, and the plain code afterwards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, ClassVar

import torch
from torch import nn

Entrance = Callable[[], Any]
"""Makes the context manager around one call of a module."""
Around = Callable[[Callable[..., Any]], Callable[..., Any]]

_CALL: Any = nn.Module._call_impl
_PLAIN: CodeType = _CALL.__code__


def _marked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for ``_call_impl``; strings are placeholders, because its globals are torch's."""
    __tracebackhide__ = True
    known: Any = "gpuprof:known"
    first_entrance: Any = "gpuprof:first_entrance"
    original: Any = "gpuprof:original"
    with (known(id(self)) or first_entrance(self))():
        return original(self, *args, **kwargs)


def _line_of_call() -> int:
    """Return how many lines below its `def` the marked call calls torch's code."""
    code = _marked_call.__code__
    return max(line for _, _, line in code.co_lines() if line is not None) - code.co_firstlineno


FILE, LINE, NAME = _PLAIN.co_filename, _PLAIN.co_firstlineno - _line_of_call(), _PLAIN.co_name
"""Where the marked code claims to stand: tracebacks and warnings repeat the first line of torch's
own code. Python profiles, and `frame_filter`, tell the two apart by their first lines."""


class ModuleCalls:
    """Enters a context manager around calls of modules; torch.compile and export do not see it.

    ``known`` has the entrances of modules by their ``id``; ``first_entrance`` makes that of any
    other module, and must do so `unseen` by dynamo. While torch compiles or exports, calls are
    plain. ``compiled`` says whether a graph was made: code in a graph calls no modules.
    """

    _first: ClassVar[ModuleCalls | None] = None

    def __init__(
        self, known: dict[int, Entrance], first_entrance: Callable[[nn.Module], Entrance]
    ) -> None:
        self.compiled = False
        self._first_entrance = first_entrance
        original = FunctionType(_PLAIN, _CALL.__globals__, _CALL.__name__)
        # A code has to be hashable, and so do its constants.
        self.code = _filled(known.get, first_entrance, original)
        self._active = False
        self._suspensions = 0  # compilations and exports at work
        self._patched: list[tuple[Any, str, Any]] = []
        self._callbacks: list[tuple[Callable[[Any], None], Callable[[Any], None]]] = []

    def add(self) -> None:
        """Begin, unless another one is at work: of two at once the first marks."""
        if ModuleCalls._first not in (None, self):
            return
        ModuleCalls._first = self
        self._active = True
        self._follow_export()
        if _loaded("torch._dynamo") is None:
            self._patch(torch, "compile", self._loading_dynamo)
        else:
            self._follow_dynamo()
        self._mark()

    def remove(self) -> None:
        """Take everything out again; may be called twice."""
        if ModuleCalls._first is not self:
            return
        ModuleCalls._first = None
        self._active, self._suspensions = False, 0
        self._unmark()
        while self._patched:
            owner, name, original = self._patched.pop()
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        while self._callbacks:
            start, end = self._callbacks.pop()
            handler = _loaded("torch._dynamo").callback_handler
            if start in handler.start_callbacks:
                handler.remove_start_callback(start)
            if end in handler.end_callbacks:
                handler.remove_end_callback(end)

    def _mark(self) -> None:
        if _CALL.__code__ is _PLAIN:
            _CALL.__code__ = self.code

    def _unmark(self) -> None:
        if _CALL.__code__ is self.code:
            _CALL.__code__ = _PLAIN

    def _suspend(self) -> None:
        self._suspensions += 1
        self._unmark()

    def _resume(self) -> None:
        self._suspensions -= 1
        if self._active and self._suspensions <= 0:
            self._mark()

    def _patch(self, owner: Any, name: str, around: Around) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            self._patched.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, functools.wraps(original)(around(original)))

    def _without_marks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def exported(*args: Any, **kwargs: Any) -> Any:
            self._suspend()
            try:
                return original(*args, **kwargs)
            finally:
                self._resume()

        return exported

    def _loading_dynamo(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap torch.compile before its first use: it imports the dynamo that we have to follow."""

        def following(*args: Any, **kwargs: Any) -> Any:
            if self._active and not self._callbacks:
                import torch._dynamo  # noqa: F401

                self._follow_dynamo()
            return original(*args, **kwargs)

        return following

    def _follow_dynamo(self) -> None:
        # Between graphs our frames run under dynamo, which would compile them as well.
        skip = _loaded("torch._dynamo.decorators").skip
        skip(FunctionType(self.code, {}))
        skip(getattr(self._first_entrance, "__func__", self._first_entrance))
        skip(unseen)

        def start(*_: Any) -> None:  # torch 2.6 passes nothing, later versions what they compile
            self.compiled = True
            self._suspend()

        def end(*_: Any) -> None:
            self._resume()

        handler = _loaded("torch._dynamo").callback_handler
        self._callbacks.append((start, end))

        def register() -> None:
            handler.register_start_callback(start)
            handler.register_end_callback(end)

        def clearing(original: Callable[[], Any]) -> Callable[[], Any]:
            def clear() -> None:  # by torch._dynamo.reset(), after which it may compile again
                original()
                register()

            return clear

        register()
        self._patch(handler, "clear", clearing)

    def _follow_export(self) -> None:
        """Follow torch.export, whose working module is imported at the first export."""
        if (trace := _loaded("torch.export._trace")) is not None:
            self._patch(trace, "_export", self._without_marks)
        elif (export := _loaded("torch.export")) is not None:
            self._patch(export, "export", self._without_marks)


def unseen(function: Callable[[nn.Module], Entrance], module: nn.Module) -> Entrance:
    """Call the function with the module, unseen by dynamo.

    Not through `torch._dynamo.disable`, whose calls a profile could not tell from the user's.
    """
    # Only C functions are called before set_eval_frame: dynamo would look into ours.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    set_eval_frame = getattr(dynamo, "set_eval_frame", None)
    if set_eval_frame is None:
        return function(module)
    before = set_eval_frame(None)
    try:
        return function(module)
    finally:
        set_eval_frame(before)


def _filled(known: Any, first_entrance: Any, original: Any) -> CodeType:
    """Return the marked code with the objects in place of the placeholders, as torch's own."""
    objects = {
        "gpuprof:known": known,
        "gpuprof:first_entrance": first_entrance,
        "gpuprof:original": original,
    }
    code = _marked_call.__code__
    return code.replace(
        co_consts=tuple(
            objects.get(constant, constant) if isinstance(constant, str) else constant
            for constant in code.co_consts
        ),
        co_filename=FILE,
        co_firstlineno=LINE,
        co_name=NAME,
        co_qualname=_PLAIN.co_qualname,
    )


def _loaded(name: str) -> Any:
    """Return the module if it was imported; importing it would take a second."""
    return sys.modules.get(name)
